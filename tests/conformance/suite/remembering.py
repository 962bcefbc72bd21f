"""The arguments and the attempts that stores keep with jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.features import Feature
from mainspring.jobs import store as ops
from mainspring.jobs.model import NO_UNIQUE, Options
from mainspring.jobs.rules import Event, Settlement
from mainspring.jobs.settlement_records import RECORDS_LIMIT, AttemptRecord, decode_records, encode_record
from mainspring.queries import Recall, Recalled
from tests.conformance.suite.driver import NOW, Store, done

if TYPE_CHECKING:
    from mainspring.jobs.model import Job

UNSUCCESSFUL = [Event.FAIL, Event.CANCEL, Event.EXPIRE]
ENOUGH = 10**6


def record(number: int, message: str = "") -> AttemptRecord:
    """Return a record."""
    return AttemptRecord(number, NOW, NOW + number, "n1", "w", "failed", "ValueError", message)


def recall(store: Store, job: Job, most: int = ENOUGH) -> Recalled:
    """Return what a store has of a job."""
    found = store.read(Recall(job.id, most))
    assert found is not None
    return found


def settle(
    store: Store, job: Job, event: Event, attempt: AttemptRecord | None = None, payload: bytes | None = b""
) -> None:
    """Settle a job with a record, and with what is kept of its payload."""
    settlement = Settlement(job, event, job.attempt + 1, due_us=NOW, ended_us=NOW)
    settlement.record = b"" if attempt is None else encode_record(attempt)
    settlement.payload = payload
    assert store.settle(settlement) == set()


class Remembering:
    """Tests of what `Recall` reads."""

    @pytest.fixture
    def recalling(self, store: Store) -> Store:
        """Return the store, if it keeps arguments and attempts."""
        if Feature.RECORDS in store.engine.lacks:
            pytest.skip("this engine keeps no arguments and attempts")
        return store

    def test_a_live_job_has_its_payload_and_no_attempts(self, recalling: Store) -> None:
        job = recalling.submitted(payload=b"load")
        assert recall(recalling, job) == Recalled(b"load", True, b"")
        assert recall(recalling, job, 3) == Recalled(None, True, b"")
        assert recall(recalling, recalling.submitted(payload=b"")) == Recalled(b"", True, b"")
        assert recalling.read(Recall(recalling.new_id(), ENOUGH)) is None
        assert recalling.read(Recall(2**63, ENOUGH)) is None

    @pytest.mark.parametrize("unique", [NO_UNIQUE, b"u"])
    def test_a_success_keeps_its_payload_if_it_is_small_enough(self, recalling: Store, unique: bytes) -> None:
        whole = recalling.leased(payload=b"load", unique=unique)
        settle(recalling, whole, Event.SUCCEED, payload=None)
        assert recall(recalling, whole) == Recalled(b"load", True, b"")
        redacted = recalling.leased(payload=b"secret")
        settle(recalling, redacted, Event.SUCCEED, payload=b"***")
        assert recall(recalling, redacted) == Recalled(b"***", True, b"")
        dropped = recalling.leased(payload=b"load")
        settle(recalling, dropped, Event.SUCCEED)
        assert recall(recalling, dropped)[:2] == (None, False)

    def test_each_job_of_a_group_keeps_its_own(self, recalling: Store) -> None:
        jobs = [recalling.leased(payload=b"load") for _ in range(3)]
        settlements = [done(job) for job in jobs]
        settlements[0].payload = None
        settlements[2].payload, settlements[2].record = b"*", encode_record(record(2))
        assert recalling.settle(*settlements) == set()
        found = [recall(recalling, job) for job in jobs]
        assert [one.payload for one in found] == [b"load", None, b"*"]
        assert [decode_records(one.attempts) for one in found] == [[], [], [record(2)]]

    @pytest.mark.parametrize("event", UNSUCCESSFUL)
    def test_a_job_without_success_keeps_its_whole_payload(self, recalling: Store, event: Event) -> None:
        job = recalling.leased(payload=b"secret")
        settle(recalling, job, event, payload=b"***")
        assert recall(recalling, job)[:2] == (b"secret", True)
        assert recalling.redrive(job.id).redriven
        (claimed,) = recalling.claim()
        assert claimed.payload == b"secret"

    @pytest.mark.parametrize("end", [Event.SUCCEED, *UNSUCCESSFUL])
    def test_attempts_are_kept_in_order_to_the_end(self, recalling: Store, end: Event) -> None:
        job = recalling.leased()
        settle(recalling, job, Event.RETRY, record(1, "ä\0\n"))
        recalling.wake(NOW)
        (job,) = recalling.claim()
        settle(recalling, job, Event.LOSE, record(2))
        (job,) = recalling.claim()
        settle(recalling, job, end, record(3))
        assert decode_records(recall(recalling, job).attempts) == [record(1, "ä\0\n"), record(2), record(3)]

    def test_a_settlement_without_a_record_adds_none(self, recalling: Store) -> None:
        job = recalling.leased()
        settle(recalling, job, Event.RETRY, record(1))
        recalling.wake(NOW)
        (job,) = recalling.claim()
        settle(recalling, job, Event.RELEASE)
        (job,) = recalling.claim()
        settle(recalling, job, Event.SUCCEED)
        assert decode_records(recall(recalling, job).attempts) == [record(1)]

    def test_a_waiting_job_that_ends_and_is_redriven_keeps_its_attempts(self, recalling: Store) -> None:
        jobs = [recalling.leased(expires_us=NOW + 1), recalling.leased()]
        settle(recalling, jobs[0], Event.LOSE, record(1))
        settle(recalling, jobs[1], Event.RETRY, record(1))
        recalling.cancel(jobs[0].id)
        recalling.cancel(jobs[1].id)
        for job in jobs:
            assert recalling.redrive(job.id).redriven
            assert decode_records(recall(recalling, job).attempts) == [record(1)]

    def test_the_newest_attempts_are_kept(self, recalling: Store) -> None:
        job = recalling.leased()
        sizes = []
        for number in range(1, 80):
            settle(recalling, job, Event.LOSE, record(number, "x" * 1000))
            (job,) = recalling.claim()
            lines = recall(recalling, job).attempts
            sizes.append(len(lines))
            numbers = [one.number for one in decode_records(lines)]
            assert numbers == list(range(numbers[0], number + 1))
        assert RECORDS_LIMIT - 1100 < max(sizes) <= RECORDS_LIMIT
        assert sizes[-1] < max(sizes), "it began again"

    def test_the_attempts_of_a_lost_node_are_recorded(self, recalling: Store) -> None:
        if recalling.engine.shared:
            pytest.skip("other tests recover the jobs of shared stores")
        running, leased = recalling.leased(), recalling.leased()
        forgotten = (
            recalling.leased(options=Options(forget=True)) if Feature.WORKFLOWS not in recalling.engine.lacks else None
        )
        recalling.assign(running, *([] if forgotten is None else [forgotten]))
        recalling.reopen()
        recalling.group(ops.Recover(recalling.term, now_us=NOW))
        lost = AttemptRecord(1, 0, NOW, "n1", "", "lost")
        assert decode_records(recall(recalling, running).attempts) == [lost]
        assert recall(recalling, leased).attempts == b""
        if forgotten is not None:
            assert recall(recalling, forgotten).attempts == b""
