"""Requests to stop held jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.errors import StoreError
from mainspring.features import Feature
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State, StopRequest
from mainspring.jobs.rules import Event, Settlement
from mainspring.jobs.settlement_records import decode_records
from mainspring.queries import Recall
from tests.conformance.suite.driver import NOW, done, released

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Engine
    from tests.conformance.suite.driver import Store

REQUEST = StopRequest(NOW + 3, b'{"asked"}')
GIVES_BACK = [Event.RETRY, Event.SNOOZE, Event.RELEASE, Event.LOSE]


def request(store: Store, *jobs: tuple[int, int | None]) -> set[int]:
    """Store a request to cancel jobs; return those that are held so."""
    (held,) = store.group(ops.RequestStop(jobs, REQUEST))
    assert isinstance(held, set)
    return held


def cancelled(store: Store, job: Job, ended_us: int = NOW + 3) -> None:
    """Check that a job was cancelled by the request, and that nothing can claim it."""
    found = store.present(job.id)
    assert (State(found.state), found.error, found.ended_us, found.due_us) == (
        State.CANCELLED,
        REQUEST.error,
        ended_us,
        0,
    )
    assert store.claim() == []
    assert store.wake(NOW * 2) == ops.Woken({}, [], 0)


class Stopping:
    """A job with a request is not given back."""

    @pytest.mark.parametrize("event", GIVES_BACK)
    def test_a_job_that_is_given_back_is_cancelled(self, store: Store, event: Event) -> None:
        job = store.leased(unique=b"u")
        assert request(store, (job.id, store.term)) == {job.id}
        assert store.state(job.id) is State.LEASED
        settlement = Settlement(job, event, 1, due_us=NOW + 9, started_us=NOW, error=b"{}")
        assert store.settle(settlement) == set()
        assert settlement.event is Event.CANCEL, "the node learns of it"
        cancelled(store, job)
        assert store.submit(store.job(unique=b"u")) == {}

    def test_it_does_not_end_before_it_began(self, store: Store) -> None:
        job = store.leased()
        request(store, (job.id, None))
        assert store.settle(Settlement(job, Event.LOSE, 1, started_us=NOW + 7)) == set()
        cancelled(store, job, NOW + 7)

    @pytest.mark.parametrize("event", [Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.EXPIRE])
    def test_an_end_stays_what_it_is(self, store: Store, event: Event) -> None:
        job = store.leased()
        request(store, (job.id, None))
        store.end(job, event, error=b"{}")
        found = store.present(job.id)
        assert (State(found.state), found.ended_us, found.error) == (
            {
                Event.SUCCEED: State.SUCCEEDED,
                Event.FAIL: State.FAILED,
                Event.CANCEL: State.CANCELLED,
                Event.EXPIRE: State.EXPIRED,
            }[event],
            NOW,
            b"{}",
        )

    @pytest.mark.parametrize("runs", [False, True])
    def test_it_survives_the_node(self, store: Store, *, runs: bool) -> None:
        job, other = store.leased(), store.leased(function=b"g")
        if runs:
            store.assign(job)
        request(store, (job.id, store.term))
        store.reopen()
        (recovered,) = store.group(ops.Recover(store.term))
        assert (recovered.number, recovered.pending, recovered.lost) == (1, {(b"g", 1): 1}, frozenset())
        cancelled(store, job)
        assert store.state(other.id) is State.PENDING
        if Feature.RECORDS not in store.engine.lacks:
            recalled = store.read(Recall(job.id))
            assert recalled is not None
            ended = [(one.outcome, one.stop_us) for one in decode_records(recalled.attempts)]
            assert ended == [("lost", REQUEST.at_us)] * runs

    def test_a_job_that_is_given_back_with_others_is_cancelled_alone(self, store: Store) -> None:
        jobs = [store.leased() for _ in range(4)]
        request(store, (jobs[1].id, None))
        settlements = [released(jobs[0]), released(jobs[1]), done(jobs[2]), Settlement(jobs[3], Event.FAIL, 1)]
        assert store.settle(*settlements) == set()
        states = [store.state(job.id) for job in jobs]
        assert states == [State.PENDING, State.CANCELLED, State.SUCCEEDED, State.FAILED]

    def test_a_stale_settlement_cancels_nothing(self, store: Store) -> None:
        job = store.leased()
        request(store, (job.id, None))
        job.term += 1
        assert store.settle(released(job)) == {job.id}
        assert store.state(job.id) is State.LEASED

    def test_only_held_jobs_take_a_request(self, store: Store) -> None:
        pending, later = store.submitted(function=b"g"), store.submitted(state=State.SCHEDULED, due_us=NOW)
        ended, held = store.leased(), store.leased()
        store.end(ended)
        ids = [pending.id, later.id, ended.id, 1]
        assert request(store, *((job_id, None) for job_id in ids), (held.id, store.term + 1)) == set()
        assert store.settle(released(held)) == set()
        (claimed,) = store.claim(b"g")
        assert store.settle(released(claimed)) == set()
        assert store.state(held.id) is store.state(pending.id) is State.PENDING

    def test_a_request_follows_the_settlements_of_its_group(self, store: Store) -> None:
        job = store.leased()
        outcomes = store.group(ops.RequestStop([(job.id, None)], REQUEST), ops.Settle([released(job)]))
        assert outcomes == [set(), set()]
        assert store.state(job.id) is State.PENDING

    @pytest.mark.parametrize("event", [Event.LOSE, Event.SUCCEED])
    def test_a_request_survives_a_group_that_fails(self, store: Store, event: Event) -> None:
        job = store.leased()
        request(store, (job.id, store.term))
        before = store.present(job.id)
        large = ops.Submit([store.job(b"big", b"x" * 100_000) for _ in range(50)])
        settlement = Settlement(job, event, 1, started_us=NOW)
        with self.spoiled(store.engine), pytest.raises(StoreError):
            store.group(ops.Settle([settlement]), large)
        assert store.present(job.id) == before
        assert store.settle(released(job)) == set()
        cancelled(store, job)

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        """Return a context in which large groups fail; the test is skipped for engines without one."""
        del engine
        pytest.skip("nothing can be spoiled in this engine")

    def test_a_redriven_job_has_no_request(self, store: Store) -> None:
        job = store.leased()
        request(store, (job.id, None))
        store.end(job, Event.FAIL)
        assert store.redrive(job.id).redriven
        (claimed,) = store.claim()
        assert store.settle(released(claimed)) == set()
        assert store.state(job.id) is State.PENDING

    def test_a_job_without_an_outcome_is_deleted(self, store: Store) -> None:
        job = store.leased(options=Options(forget=True))
        request(store, (job.id, None))
        assert store.settle(released(job)) == set()
        assert store.list() == []
