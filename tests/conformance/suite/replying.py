"""Kept answers of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.access.idempotency import (
    FindReply,
    Keep,
    KeptReply,
    KeyedAct,
    Release,
    RequestKey,
    Reservation,
    Reserve,
    SweepReplies,
    encode,
)
from mainspring.errors import StoreError, UsageError
from mainspring.jobs import store as ops

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Engine
    from tests.conformance.suite.driver import Store

REPLY = KeptReply(201, {b"location": b"/x"}, b"{}")


def reserve(
    store: Store, key: bytes, request: bytes = b"r", at_us: int = 100, expired_us: int = 0
) -> Reservation | None:
    """Reserve a key; return the outcome."""
    (outcome,) = store.group(Reserve(key, request, at_us, expired_us))
    assert outcome is None or isinstance(outcome, Reservation)
    return outcome


def once(*jobs: Job, key: bytes = b"k", request: bytes = b"r", expired_us: int = 0) -> ops.SubmitOnce:
    """Return the submission of a request with a key. Its answer is what was joined."""

    def reply(outcomes: list[Any]) -> KeptReply:
        return KeptReply(201, {}, repr(outcomes).encode())

    return ops.SubmitOnce(list(jobs), keyed_act=KeyedAct(RequestKey(key, request, 100, expired_us), reply))


class Replying:
    """Tests of kept answers in a store."""

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        """See `Lifetime.spoiled`."""
        del engine
        pytest.skip("nothing can be spoiled in this engine")

    def test_a_key_is_reserved_once(self, store: Store) -> None:
        assert store.group(Reserve(b"k", b"r", 100, 0), Reserve(b"k", b"s", 101, 0)) == [
            None,
            Reservation(b"r", 100, None),
        ]
        store.reopen()
        assert reserve(store, b"k", b"t") == Reservation(b"r", 100, None)
        assert reserve(store, b"other") is None

    def test_an_answer_is_kept(self, store: Store) -> None:
        reserve(store, b"k")
        store.group(Keep(b"k", encode(REPLY)), Release(b"k"))
        store.reopen()
        assert reserve(store, b"k") == Reservation(b"r", 100, REPLY)
        store.group(Keep(b"unknown", encode(REPLY)))
        assert reserve(store, b"unknown") is None

    def test_a_released_key_can_be_reserved(self, store: Store) -> None:
        reserve(store, b"k")
        store.group(Release(b"k"))
        assert reserve(store, b"k") is None

    def test_old_answers_are_deleted_and_count_no_more(self, store: Store) -> None:
        for number in range(4):
            reserve(store, b"k%d" % number, at_us=100 + number)
        store.group(Keep(b"k0", encode(REPLY)))
        assert reserve(store, b"k0", b"new", at_us=200, expired_us=101) is None
        assert reserve(store, b"k0") == Reservation(b"new", 200, None)
        assert store.group(SweepReplies(103)) == [2]
        assert reserve(store, b"k3", expired_us=103) == Reservation(b"r", 103, None)
        assert reserve(store, b"k1") is None

    # ---- in the transaction of the act ----

    def test_a_submission_keeps_its_answer_and_is_not_repeated(self, store: Store) -> None:
        job, plain = store.job(), store.job()
        assert store.group(once(job), ops.Submit([plain])) == [{}, {}]
        store.reopen()
        kept = Reservation(b"r", 100, KeptReply(201, {}, b"[{}]"))
        repeated, more = store.job(), store.job()
        assert store.group(once(repeated), FindReply(b"k", 0), ops.Submit([more])) == [kept, kept, {}]
        assert store.group(once(repeated, request=b"other")) == [kept]
        assert [one.id for one in store.claim()] == [job.id, plain.id, more.id]
        assert store.group(FindReply(b"unknown", 0), FindReply(b"k", 101)) == [None, None]
        assert store.group(once(repeated, expired_us=101)) == [{}]

    def test_of_requests_with_one_key_in_a_group_the_first_is_done(self, store: Store) -> None:
        first, second, other = store.job(), store.job(), store.job()
        kept = Reservation(b"r", 100, KeptReply(201, {}, b"[{}]"))
        submissions = once(first), once(other, key=b"a"), once(second, request=b"s")
        assert store.group(*submissions) == [{}, {}, kept]
        assert {one.id for one in store.claim()} == {first.id, other.id}

    def test_the_answer_to_a_submission_has_the_jobs_that_it_joined(self, store: Store) -> None:
        first = store.submitted(unique=b"u")
        second = store.job(unique=b"u")
        (joined,) = store.group(once(second))
        assert joined[second.id].id == first.id
        (kept,) = store.group(once(store.job()))
        assert kept.reply.body == repr([joined]).encode()

    def test_the_key_of_a_refused_submission_is_free(self, store: Store) -> None:
        def refused(_: list[Any]) -> KeptReply:
            raise UsageError("no")

        submission, repeated = ops.SubmitOnce([], keyed_act=KeyedAct(RequestKey(b"k", b"r", 100, 0), refused)), once()
        assert store.group(submission, repeated) == [{}, Reservation(b"r", 100, None)]
        assert store.group(once(job := store.job())) == [{}]
        assert [one.id for one in store.claim()] == [job.id]

    def test_operations_of_one_request_are_done_together(self, store: Store) -> None:
        jobs = [store.job(), store.job()]
        first = once(jobs[0])
        second = ops.SubmitOnce([jobs[1]], keyed_act=first.keyed_act)
        assert store.group(first, second) == [{}, {}]
        kept, other = store.group(first, second)
        assert kept == other == Reservation(b"r", 100, KeptReply(201, {}, b"[{}, {}]"))

    def test_a_group_that_fails_leaves_no_key(self, store: Store) -> None:
        large = ops.Submit([store.job(b"big", b"x" * 100_000) for _ in range(50)])
        with self.spoiled(store.engine), pytest.raises(StoreError):
            store.group(once(store.job()), large)
        assert store.group(FindReply(b"k", 0)) == [None]
        assert store.group(once(store.job())) == [{}]
