"""Cancel, Redrive, Wake and Sweep."""

from __future__ import annotations

import pytest

from mainspring.jobs import rules
from mainspring.jobs.model import Priority, State
from mainspring.jobs.rules import WORKER_LOST, Event, Settlement
from tests.conformance.suite.driver import NOW, Store

ENDS = [Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.EXPIRE]
UNSUCCESSFUL = ENDS[1:]


class Waiting:
    """Tests of jobs that no node holds."""

    # ---- Cancel ----

    @pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING])
    def test_a_waiting_job_is_cancelled(self, store: Store, state: State) -> None:
        job = store.submitted(state=state, due_us=NOW, unique=b"u")
        cancelled, before = store.cancel(job.id, b"{}", NOW + 1)
        assert before == state
        assert cancelled is not None
        found = store.present(job.id)
        for one in (cancelled, found):
            assert (one.id, one.state, one.ended_us, one.error) == (job.id, State.CANCELLED, NOW + 1, b"{}")
        assert store.wake(NOW).due == {}
        assert store.claim() == []
        store.submitted(unique=b"u")

    @pytest.mark.parametrize("running", [False, True], ids=["leased", "running"])
    def test_a_held_job_is_not_cancelled(self, store: Store, running: bool) -> None:
        job = store.leased()
        if running:
            store.assign(job)
        held = State.RUNNING if running else State.LEASED
        cancelled, before = store.cancel(job.id)
        assert cancelled is not None
        assert (cancelled.state, before, store.state(job.id)) == (held, held, held)
        store.end(job)

    @pytest.mark.parametrize("event", ENDS)
    def test_an_ended_job_is_not_cancelled(self, store: Store, event: Event) -> None:
        job = store.leased()
        store.end(job, event, at=NOW, error=b"{}")
        cancelled, before = store.cancel(job.id, b"no", NOW + 1)
        assert cancelled is not None
        assert (cancelled.state, before) == (rules.target(event), rules.target(event))
        assert store.present(job.id).ended_us == NOW

    def test_an_unknown_job_is_not_cancelled(self, store: Store) -> None:
        assert store.cancel(12345).job is None
        assert store.cancel(10**19 - 1).job is None

    # ---- Redrive ----

    @pytest.mark.parametrize("event", UNSUCCESSFUL)
    def test_an_unsuccessful_job_is_redriven_as_if_new(self, store: Store, event: Event) -> None:
        job = store.leased(unique=b"u", expires_us=NOW)
        job.suspects = 2
        store.end(job, event, started_us=NOW)
        redriven = store.redrive(job.id)
        assert redriven.redriven
        assert redriven.job is not None
        found = store.present(job.id)
        for one in (redriven.job, found):
            assert (one.state, one.attempt, one.suspects, one.term) == (State.PENDING, 0, 0, 0)
            assert (one.started_us, one.ended_us, one.expires_us) == (0, 0, 0)
        second = store.job(unique=b"u")
        assert store.submit(second)[second.id].id == job.id, "it has its unique again"
        assert [one.id for one in store.claim()] == [job.id]

    def test_a_rival_has_the_unique(self, store: Store) -> None:
        job = store.leased(unique=b"u")
        store.end(job, Event.FAIL)
        rival = store.submitted(unique=b"u")
        redriven = store.redrive(job.id)
        assert (redriven.redriven, redriven.rival) == (False, rival.id)
        assert redriven.job is not None
        assert store.state(job.id) is State.FAILED
        store.cancel(rival.id)
        assert store.redrive(job.id).redriven

    def test_only_unsuccessful_jobs_are_redriven(self, store: Store) -> None:
        succeeded = store.leased()
        store.end(succeeded)
        jobs = [store.leased(), store.submitted(), store.submitted(state=State.SCHEDULED, due_us=NOW), succeeded]
        for job in jobs:
            before = store.state(job.id)
            redriven = store.redrive(job.id)
            assert (redriven.redriven, redriven.rival) == (False, None)
            assert redriven.job is not None
            assert redriven.job.state == store.state(job.id) == before

    def test_an_unknown_job_is_not_redriven(self, store: Store) -> None:
        assert store.redrive(12345) == (None, False, None)
        assert store.redrive(10**19 - 1) == (None, False, None)

    # ---- Wake ----

    def test_jobs_become_pending_when_they_are_due(self, store: Store) -> None:
        jobs = [
            store.job(name, state=State.SCHEDULED, due_us=NOW + at, priority=priority)
            for name, at, priority in (
                (b"f", 3, Priority.HIGH),
                (b"f", 1, Priority.HIGH),
                (b"f", 2, Priority.LOW),
                (b"g", 2, Priority.LOW),
                (b"f", 2, Priority.LOW),
            )
        ]
        store.submit(*jobs)
        assert store.wake(NOW) == ({}, [], NOW + 1)
        woken = store.wake(NOW + 2)
        assert woken.due == {(b"f", Priority.HIGH): 1, (b"f", Priority.LOW): 2, (b"g", Priority.LOW): 1}
        assert woken.next_us == NOW + 3
        assert [job.id for job in store.claim()] == [jobs[1].id, jobs[2].id, jobs[4].id]
        assert store.wake(NOW + 3) == ({(b"f", Priority.HIGH): 1}, [], 0)

    def test_waking_has_a_limit(self, store: Store) -> None:
        store.submit(*[store.job(state=State.SCHEDULED, due_us=NOW + at) for at in range(5)])
        assert store.wake(NOW + 9, limit=3) == ({(b"f", Priority.NORMAL): 3}, [], NOW + 3)
        assert store.wake(NOW + 9, limit=3) == ({(b"f", Priority.NORMAL): 2}, [], 0)

    @pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING])
    def test_a_job_that_is_not_started_in_time_expires(self, store: Store, state: State) -> None:
        job = store.submitted(state=state, due_us=NOW + 9, expires_us=NOW + 1, unique=b"u")
        woken = store.wake(NOW)
        assert (woken.expired, woken.next_us) == ([], NOW + 1)
        ((expired, before),) = store.wake(NOW + 1).expired
        assert before == state
        for one in (expired, store.present(job.id)):
            assert (one.id, one.state, one.ended_us) == (job.id, State.EXPIRED, NOW + 1)
        assert store.wake(NOW + 9) == ({}, [], 0)
        store.submitted(unique=b"u")

    def test_an_expired_job_does_not_become_due(self, store: Store) -> None:
        store.submitted(state=State.SCHEDULED, due_us=NOW, expires_us=NOW)
        woken = store.wake(NOW)
        assert (woken.due, len(woken.expired)) == ({}, 1)

    def test_a_held_job_does_not_expire_until_it_is_released(self, store: Store) -> None:
        job = store.leased(expires_us=NOW)
        assert store.wake(NOW).expired == []
        store.end(job, Event.RELEASE)
        assert store.wake(NOW).expired == [], "the delivery was counted"
        assert store.state(job.id) is State.PENDING

        (job,) = store.claim()
        job.attempt = -1
        store.end(job, Event.RELEASE)
        assert [one.id for one, _ in store.wake(NOW).expired] == [job.id], "no delivery is counted, and it is late"

    def test_a_job_that_was_tried_needs_no_waking(self, store: Store) -> None:
        job = store.leased(expires_us=NOW + 1)
        store.end(job, Event.RETRY, due_us=NOW + 9)
        store.wake(NOW + 2)
        assert store.wake(NOW + 2).next_us == NOW + 9

    def test_a_job_that_was_lost_with_a_worker_does_not_expire(self, store: Store) -> None:
        job = store.leased(expires_us=NOW + 1)
        job.suspects = WORKER_LOST
        assert store.settle(Settlement(job, Event.LOSE, 0)) == set()
        assert store.wake(NOW + 2) == ({}, [], 0)
        assert store.state(job.id) is State.PENDING

    def test_expiring_has_a_limit(self, store: Store) -> None:
        store.submit(*[store.job(expires_us=NOW + at) for at in range(5)])
        numbers = [len(store.wake(NOW + 9, limit=2).expired) for _ in range(4)]
        assert numbers == [2, 2, 1, 0]

    # ---- Sweep ----

    @pytest.mark.parametrize("event", ENDS)
    def test_dead_letters_have_a_time_of_their_own(self, store: Store, event: Event) -> None:
        job = store.leased()
        store.end(job, event, at=NOW)
        dead = event is Event.FAIL
        late, early = NOW + 1, NOW
        assert store.sweep(early if dead else late, late if dead else early) == 1
        assert store.find(job.id) is None
        assert store.counts() == {}

    @pytest.mark.parametrize("event", ENDS)
    def test_what_ended_later_stays(self, store: Store, event: Event) -> None:
        job = store.leased()
        store.end(job, event, at=NOW)
        dead = event is Event.FAIL
        assert store.sweep(NOW if not dead else NOW + 1, NOW if dead else NOW + 1) == 0
        assert store.state(job.id) is rules.target(event)

    def test_what_has_not_ended_stays(self, store: Store) -> None:
        store.leased()
        store.submit(store.job(), store.job(state=State.SCHEDULED, due_us=1))
        redriven = store.leased(function=b"g")
        store.end(redriven, Event.FAIL, at=1)
        store.redrive(redriven.id)
        assert store.sweep(NOW * 2, NOW * 2) == 0

    def test_sweeping_takes_at_most_so_many(self, store: Store) -> None:
        store.submit(*[store.job() for _ in range(8)])
        for job, event in zip(store.claim(), ENDS * 2, strict=True):
            store.end(job, event)
        assert [store.sweep(NOW + 1, NOW + 1, limit=3) for _ in range(4)] == [3, 3, 2, 0]
        assert store.list() == []
