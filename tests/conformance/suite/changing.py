"""Clients' changes of single jobs: reschedule, delete, and redrive with other arguments or later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, Priority, State
from mainspring.jobs.rules import Event
from tests.conformance.suite.driver import NOW, released

if TYPE_CHECKING:
    from tests.conformance.suite.driver import Store

LATER = NOW + 60_000_000
ENDS = [Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.EXPIRE]


def reschedule(store: Store, job_id: int, now_us: int = NOW, **changes: Any) -> ops.Rescheduled:
    """Reschedule a job."""
    (rescheduled,) = store.group(ops.Reschedule(job_id, now_us, **changes))
    assert isinstance(rescheduled, ops.Rescheduled)
    return rescheduled


def delete(store: Store, job_id: int) -> ops.Deleted:
    """Delete an ended job."""
    (deleted,) = store.group(ops.DeleteEnded(job_id))
    assert isinstance(deleted, ops.Deleted)
    return deleted


class Deleting:
    """Tests of deletions, which results with a time of their own need, too."""

    @pytest.mark.parametrize("event", ENDS)
    def test_an_ended_job_is_deleted(self, store: Store, event: Event) -> None:
        job = store.leased(unique=b"u", options=Options(keep_unique=1e6))
        store.end(job, event)
        before = store.present(job.id)
        outcome = delete(store, job.id)
        assert outcome.deleted
        assert outcome.job is not None
        assert (outcome.job.id, outcome.job.state) == (job.id, before.state)
        assert store.find(job.id) is None
        assert store.list() == []
        assert delete(store, job.id) == ops.Deleted(None, deleted=False)
        assert store.submit(store.job(unique=b"u", options=Options(keep_unique=1e6))) == {}
        assert store.sweep(LATER, LATER) == 0

    def test_a_live_job_is_not_deleted(self, store: Store) -> None:
        later = store.submitted(state=State.SCHEDULED, due_us=LATER)
        held, pending = store.leased(), store.submitted()
        for job in (later, held, pending):
            outcome = delete(store, job.id)
            assert not outcome.deleted
            assert outcome.job is not None
            assert store.find(job.id) is not None
        assert not delete(store, 1).deleted

    def test_a_job_is_deleted_once(self, store: Store) -> None:
        job = store.leased()
        store.end(job)
        first, second = store.group(ops.DeleteEnded(job.id), ops.DeleteEnded(job.id))
        assert (first.deleted, second.deleted) == (True, False)
        assert second.job is None


class Changing:
    """Tests of clients' changes."""

    # ---- reschedule ----

    def test_a_pending_job_is_postponed(self, store: Store) -> None:
        job = store.submitted(unique=b"u")
        outcome = reschedule(store, job.id, due_us=LATER)
        assert (outcome.before, outcome.priority) == (State.PENDING, Priority.NORMAL)
        assert outcome.job is not None
        assert (outcome.job.state, outcome.job.due_us) == (State.SCHEDULED, LATER)
        assert outcome.job == store.present(job.id)
        assert store.claim() == []
        assert store.wake(NOW).next_us == LATER
        assert store.wake(LATER).due == {(b"f", 1): 1}
        assert [one.id for one in store.claim()] == [job.id]

    def test_a_scheduled_job_runs_earlier_or_at_once(self, store: Store) -> None:
        first, second = (store.submitted(state=State.SCHEDULED, due_us=LATER) for _ in range(2))
        assert reschedule(store, first.id, due_us=NOW + 5).before == State.SCHEDULED
        assert reschedule(store, second.id, due_us=NOW).job == store.present(second.id)
        assert [one.id for one in store.claim()] == [second.id]
        assert store.wake(NOW + 5).due == {(b"f", 1): 1}
        assert [one.id for one in store.claim()] == [first.id]
        assert store.wake(LATER) == ops.Woken({}, [], 0)

    def test_a_job_moves_to_another_priority(self, store: Store) -> None:
        jobs = [store.submitted() for _ in range(3)]
        outcome = reschedule(store, jobs[2].id, priority=Priority.HIGH)
        assert (outcome.before, outcome.priority) == (State.PENDING, Priority.NORMAL)
        reschedule(store, jobs[0].id, priority=Priority.LOW)
        claimed = store.claim()
        assert [one.id for one in claimed] == [jobs[at].id for at in (2, 1, 0)]
        assert [one.priority for one in claimed] == [Priority.HIGH, Priority.NORMAL, Priority.LOW]
        assert store.claim() == []

    def test_a_job_moves_there_and_back(self, store: Store) -> None:
        job = store.submitted(key=b"k")
        for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.NORMAL):
            reschedule(store, job.id, priority=priority)
        (claimed,) = store.claim()
        assert claimed.priority == Priority.NORMAL
        assert store.settle(released(claimed)) == set()
        (claimed,) = store.claim()
        assert store.claim() == []

    def test_a_job_expires_at_another_time_or_not_at_all(self, store: Store) -> None:
        first, second = store.submitted(expires_us=NOW + 5), store.submitted()
        reschedule(store, first.id, expires_us=0)
        reschedule(store, second.id, expires_us=NOW + 9)
        assert store.wake(NOW + 5).next_us == NOW + 9
        woken = store.wake(NOW + 9)
        assert [job.id for job, _ in woken.expired] == [second.id]
        assert store.state(first.id) is State.PENDING

    def test_nothing_else_changes(self, store: Store) -> None:
        options = Options(timeout=5.0)
        job = store.submitted(unique=b"u", key=b"k", options=options, expires_us=LATER, payload=b"load")
        before = store.present(job.id)
        outcome = reschedule(store, job.id)
        assert outcome.job == before == store.present(job.id)
        (claimed,) = store.claim()
        assert (claimed.payload, claimed.key, claimed.options) == (b"load", b"k", options)

    def test_a_held_or_ended_job_is_not_rescheduled(self, store: Store) -> None:
        held, ended = store.leased(), store.leased(function=b"g")
        store.end(ended)
        for job in (held, ended):
            before = store.present(job.id)
            outcome = reschedule(store, job.id, due_us=LATER, priority=Priority.HIGH, expires_us=LATER)
            assert outcome.before == before.state
            assert outcome.job is not None
            assert outcome.job.state == before.state
            assert store.present(job.id) == before
        assert reschedule(store, 1, due_us=LATER).job is None

    def test_a_job_that_is_released_in_the_same_group_is_rescheduled(self, store: Store) -> None:
        job = store.leased()
        operations = (ops.Settle([released(job)]), ops.Reschedule(job.id, NOW, due_us=LATER))
        stale, outcome = store.group(*operations, ops.Claim(store.term, [ops.ClaimRequest(b"f", 5)]))[:2]
        assert (stale, outcome.before) == (set(), State.PENDING)
        assert store.state(job.id) is State.SCHEDULED

    def test_changes_in_one_group_follow_each_other(self, store: Store) -> None:
        job = store.submitted()
        first, second = store.group(
            ops.Reschedule(job.id, NOW, due_us=LATER), ops.Reschedule(job.id, NOW, priority=Priority.LOW)
        )
        assert (first.before, second.before) == (State.PENDING, State.SCHEDULED)
        assert second.job == store.present(job.id)
        assert (second.job.due_us, second.job.priority) == (LATER, Priority.LOW)

    # ---- redrive ----

    def test_a_redriven_job_gets_other_arguments(self, store: Store) -> None:
        job = store.leased(payload=b"old")
        store.end(job, Event.FAIL)
        (outcome,) = store.group(ops.Redrive(job.id, payload=b"other"))
        assert outcome.redriven
        assert outcome.job.input_size == 5
        (claimed,) = store.claim()
        assert (claimed.payload, claimed.input_size) == (b"other", 5)

    def test_a_redriven_job_may_run_later(self, store: Store) -> None:
        job = store.leased(unique=b"u")
        store.end(job, Event.FAIL)
        (outcome,) = store.group(ops.Redrive(job.id, due_us=LATER))
        assert outcome.redriven
        assert (outcome.job.state, outcome.job.due_us) == (State.SCHEDULED, LATER)
        assert store.claim() == []
        assert store.wake(LATER).due == {(b"f", 1): 1}
        (claimed,) = store.claim()
        assert (claimed.id, claimed.attempt) == (job.id, 0)

    def test_empty_arguments_are_arguments(self, store: Store) -> None:
        job = store.leased(payload=b"old")
        store.end(job, Event.FAIL)
        assert store.group(ops.Redrive(job.id, payload=b""))[0].redriven
        (claimed,) = store.claim()
        assert (claimed.payload, claimed.input_size) == (b"", 0)
