"""Who waits at which node for which job; and foreground jobs that go when nobody does."""

# ruff: noqa: D102 - the tests' names say it
from __future__ import annotations

import pytest

from mainspring.events.relay import Settled
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event
from mainspring.testing.conformance.asking import leave, settled, submit, wait, waited, watchers
from mainspring.testing.conformance.driver import NOW, Store, again, done

ENDS = [Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.EXPIRE]


class Listening:
    """Tests of stores that several nodes have open at once: of those who wait."""

    # ---- who waits ----

    @pytest.mark.parametrize("event", ENDS)
    def test_whoever_waits_elsewhere_is_told(self, store: Store, other: Store, event: Event) -> None:
        job = waited(store)
        (claimed,) = other.claim()
        other.end(claimed, event)
        settled(store, job.id)

    def test_whoever_joins_with_a_client_is_told(self, store: Store, other: Store) -> None:
        job = store.leased(unique=b"u")
        jobs = [other.job(unique=b"u") for _ in range(2)]
        (joined,) = other.group(submit(other, *jobs, waiter=True))
        assert {found.id for found in joined.values()} == {job.id}
        store.end(job)
        settled(other, job.id)

    def test_whoever_joins_in_one_group_is_told(self, store: Store, other: Store) -> None:
        first, second = store.job(unique=b"u"), store.job(unique=b"u")
        outcomes = store.group(submit(store, first), submit(store, second, waiter=True))
        winner = first if outcomes[0] == {} else second
        (claimed,) = other.claim()
        assert claimed.id == winner.id
        other.end(claimed)
        settled(store, winner.id)

    def test_whoever_asks_later_is_told(self, store: Store, other: Store) -> None:
        job = store.leased()
        found = wait(other, job.id, 12345, 10**19 - 1)
        assert {job_id: one.state for job_id, one in found.items()} == {job.id: State.LEASED}
        assert watchers(store, job.id, 12345) == {job.id: [other.term]}
        store.end(job)
        settled(other, job.id)
        assert watchers(store, job.id) == {}

    def test_of_an_ended_job_nobody_is_told(self, store: Store, other: Store) -> None:
        job = store.leased()
        store.end(job, result=b"r")
        found = wait(other, job.id)
        assert (found[job.id].state, found[job.id].result) == (State.SUCCEEDED, b"r")
        assert watchers(store, job.id) == {}

    def test_to_begin_to_wait_and_the_end_at_once(self, store: Store, other: Store) -> None:
        for _ in range(20):
            job = store.leased()
            _, found = store.groups(
                (store, [ops.Settle([done(job)])]),
                (other, [ops.Subscribe(other.term, [job.id])]),
            )
            assert isinstance(found, list)
            if not State(found[0][job.id].state).ended:
                settled(other, job.id)
            assert watchers(store, job.id) == {}

    def test_watchers_are_those_elsewhere(self, store: Store, other: Store) -> None:
        third = store.beside("n3")
        job = waited(store)
        wait(other, job.id)
        wait(other, job.id)
        wait(third, job.id)
        assert watchers(store, job.id) == {job.id: sorted([other.term, third.term])}
        assert watchers(other, job.id) == {job.id: sorted([store.term, third.term])}
        leave(other, job.id)
        assert watchers(store, job.id) == {job.id: [third.term]}

    @pytest.mark.parametrize("how", ["cancel", "expire"])
    def test_whoever_waits_for_what_ends_without_a_worker_is_told(self, store: Store, other: Store, how: str) -> None:
        job = waited(store, expires_us=NOW)
        if how == "cancel":
            other.cancel(job.id)
        else:
            assert [one.id for one, _ in other.wake(NOW).expired] == [job.id]
        settled(store, job.id)

    def test_what_goes_on_is_told_to_nobody(self, store: Store, other: Store) -> None:
        job = waited(store)
        (claimed,) = other.claim()
        other.settle(again(claimed))
        assert watchers(other, job.id) == {job.id: [store.term]}
        (claimed,) = other.claim()
        other.end(claimed)
        settled(store, job.id)
        assert sum(isinstance(message, Settled) for message in store.heard) == 1

    # ---- foreground jobs ----

    @pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING, State.LEASED])
    def test_a_foreground_job_that_nobody_waits_for_is_dropped(self, store: Store, state: State) -> None:
        job = waited(store, foreground=True, state=state, due_us=NOW, unique=b"u")
        assert store.present(job.id).foreground
        assert leave(store, job.id) == {job.id}
        assert store.find(job.id) is None
        assert store.counts() == {}
        store.submitted(unique=b"u")

    def test_as_long_as_somebody_waits_it_stays(self, store: Store, other: Store) -> None:
        job = waited(store, foreground=True)
        wait(other, job.id)
        assert leave(store, job.id) == set()
        assert store.state(job.id) is State.PENDING
        assert leave(other, job.id) == {job.id}

    def test_a_job_that_runs_is_not_dropped(self, store: Store) -> None:
        job = waited(store, foreground=True, state=State.LEASED)
        store.assign(job)
        assert leave(store, job.id) == set()
        assert store.state(job.id) is State.RUNNING

    def test_a_job_that_another_node_holds_is_not_dropped(self, store: Store, other: Store) -> None:
        job = waited(store, foreground=True)
        (claimed,) = other.claim()
        assert claimed.foreground
        assert leave(store, job.id) == set()
        assert leave(other, job.id) == {job.id}, "nobody waits there either"

    def test_a_background_job_is_not_dropped(self, store: Store) -> None:
        job = waited(store)
        assert leave(store, job.id, 12345, 10**19 - 1) == set()
        assert store.state(job.id) is State.PENDING

    def test_a_job_that_is_put_back_after_its_end_stays_though_nobody_waits(self, store: Store) -> None:
        job = waited(store, foreground=True, state=State.LEASED, unique=b"u")
        store.end(job, Event.FAIL)
        redriven = store.redrive(job.id)
        assert redriven.redriven
        assert not store.present(job.id).foreground
        assert leave(store, job.id) == set()
        assert store.state(job.id) is State.PENDING

    def test_a_background_job_that_joins_keeps_a_foreground_one(self, store: Store, other: Store) -> None:
        job = waited(store, foreground=True, unique=b"u")
        same = other.job(unique=b"u", foreground=True)
        assert other.submit(same)[same.id].id == job.id
        assert store.present(job.id).foreground
        background = other.job(unique=b"u")
        assert other.submit(background)[background.id].id == job.id
        assert not store.present(job.id).foreground
        assert leave(store, job.id) == set()

    def test_the_same_in_one_operation(self, store: Store) -> None:
        jobs = [store.job(unique=b"u", foreground=foreground) for foreground in (True, False, True)]
        (joined,) = store.group(submit(store, *jobs, waiter=True))
        assert set(joined) == {job.id for job in jobs[1:]}
        assert not store.present(jobs[0].id).foreground

    def test_to_leave_and_to_join_at_once(self, store: Store, other: Store) -> None:
        for number in range(20):
            unique = b"%d" % number
            job = waited(store, foreground=True, unique=unique)
            new = other.job(unique=unique, foreground=True)
            dropped, joined = store.groups(
                (store, [ops.Unsubscribe(store.term, [job.id])]),
                (other, [submit(other, new, waiter=True)]),
            )
            assert isinstance(dropped, list)
            assert isinstance(joined, list)
            live = new.id if dropped[0] else job.id
            assert (joined[0] == {}) == bool(dropped[0])
            assert store.find_unique((b"f", unique)) == [(live, State.PENDING, 0)]
            assert leave(other, live) == {live}
