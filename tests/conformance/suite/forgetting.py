"""Jobs whose rows are deleted when they end (``Options.forget``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State
from mainspring.jobs.rules import Event, Settlement
from tests.conformance.suite.driver import NOW, done

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from tests.conformance.suite.driver import Store

FORGET = Options(forget=True)
ENDS = [Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.EXPIRE]
STAYS = [Event.RETRY, Event.SNOOZE, Event.RELEASE, Event.LOSE]


def leaves_nothing(store: Store, *jobs: Job) -> None:
    """Check that no row and no count is left of jobs."""
    assert store.list() == []
    assert not any(store.counts().values())
    (found,) = store.group(ops.Find([job.id for job in jobs]))
    assert found == {}


class Forgetting:
    """Each end deletes the row; other events do not."""

    @pytest.mark.parametrize("event", ENDS)
    def test_the_end_of_a_held_job_deletes_it(self, store: Store, event: Event) -> None:
        job = store.leased(options=FORGET, unique=b"u")
        store.end(job, event)
        leaves_nothing(store, job)
        assert store.submit(store.job(unique=b"u")) == {}, "its unique is free again"

    def test_lists_by_tag_leave_it_out(self, store: Store) -> None:
        job = store.leased(options=Options(forget=True, tags=("t",)))
        assert store.list(tag="t") == []
        store.end(job)
        leaves_nothing(store, job)

    def test_a_running_job_is_deleted_too(self, store: Store) -> None:
        job = store.leased(options=FORGET)
        store.assign(job)
        store.end(job)
        leaves_nothing(store, job)

    @pytest.mark.parametrize("event", STAYS)
    def test_an_attempt_that_is_no_end_keeps_the_row(self, store: Store, event: Event) -> None:
        job = store.leased(options=FORGET)
        store.end(job, event, at=0, due_us=NOW)
        assert store.state(job.id) in {State.PENDING, State.SCHEDULED}
        store.wake(NOW)
        (second,) = store.claim()
        assert second.payload == b"p"
        store.end(second)
        leaves_nothing(store, job)

    def test_jobs_that_stay_are_settled_in_the_same_operation(self, store: Store) -> None:
        forgotten, kept = store.leased(options=FORGET), store.leased()
        back, failed = store.leased(options=FORGET), store.leased(function=b"g", options=FORGET)
        settlements = [
            done(forgotten),
            done(kept),
            Settlement(back, Event.RELEASE, 0),
            Settlement(failed, Event.FAIL, 1),
        ]
        assert store.settle(*settlements) == set()
        assert {job.id: State(job.state) for job in store.list()} == {
            kept.id: State.SUCCEEDED,
            back.id: State.PENDING,
        }
        store.counts()

    def test_a_second_settlement_is_stale(self, store: Store) -> None:
        job = store.leased(options=FORGET)
        outcomes = store.group(ops.Settle([done(job)]), ops.Settle([done(job)]))
        assert outcomes == [set(), {job.id}]
        assert store.settle(done(job)) == {job.id}
        leaves_nothing(store, job)

    def test_a_settlement_under_another_term_deletes_nothing(self, store: Store) -> None:
        job, other = store.leased(options=FORGET), store.leased(options=FORGET)
        job.term += 1
        assert store.settle(done(job), done(other)) == {job.id}
        assert store.state(job.id) is State.LEASED
        assert store.state(other.id) is None

    @pytest.mark.parametrize("due_us", [0, NOW + 1])
    def test_a_waiting_job_that_is_cancelled_is_deleted(self, store: Store, due_us: int) -> None:
        state = State.SCHEDULED if due_us else State.PENDING
        job = store.submitted(options=FORGET, unique=b"u", due_us=due_us, state=state)
        cancelled = store.cancel(job.id, b"{}")
        assert cancelled.before == state
        assert cancelled.job is not None
        assert State(cancelled.job.state) is State.CANCELLED
        leaves_nothing(store, job)
        assert store.submit(store.job(unique=b"u")) == {}

    def test_a_waiting_job_that_expires_is_deleted(self, store: Store) -> None:
        job = store.submitted(options=FORGET, expires_us=NOW)
        ((expired, before),) = store.wake(NOW).expired
        assert (expired.id, before, State(expired.state)) == (job.id, State.PENDING, State.EXPIRED)
        leaves_nothing(store, job)

    def test_it_is_recovered_and_given_up(self, store: Store) -> None:
        job = store.leased(options=FORGET)
        store.assign(job)
        store.reopen()
        assert store.recover() == 1
        (second,) = store.claim()
        assert (second.id, second.attempt) == (job.id, 1)
        store.end(second, Event.FAIL, error=b"{}")
        leaves_nothing(store, job)

    def test_there_is_nothing_to_redrive_or_to_sweep(self, store: Store) -> None:
        job = store.leased(options=FORGET)
        store.end(job, Event.FAIL)
        assert store.redrive(job.id) == ops.Redriven(None, redriven=False)
        assert store.sweep(NOW + 1, NOW + 1) == 0
