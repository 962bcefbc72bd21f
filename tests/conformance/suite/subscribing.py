"""Waiting clients of several nodes, and foreground jobs that are dropped without them."""

from __future__ import annotations

import pytest

from mainspring.events import Settled
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event
from tests.conformance.suite.driver import NOW, Store, done, released
from tests.conformance.suite.operations import leave, submit, submit_waited, subscribers, wait, wait_for_settled

ENDS = [Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.EXPIRE]


class Subscribing:
    """Tests of shared stores: clients that wait."""

    # ---- waiting clients ----

    @pytest.mark.parametrize("event", ENDS)
    def test_a_client_that_waits_at_another_node_is_notified(self, store: Store, other: Store, event: Event) -> None:
        job = submit_waited(store)
        (claimed,) = other.claim()
        other.end(claimed, event)
        wait_for_settled(store, job.id)

    def test_a_client_whose_job_joins_is_notified(self, store: Store, other: Store) -> None:
        job = store.leased(unique=b"u")
        jobs = [other.job(unique=b"u") for _ in range(2)]
        (joined,) = other.group(submit(other, *jobs, waiter=True))
        assert {found.id for found in joined.values()} == {job.id}
        store.end(job)
        wait_for_settled(other, job.id)

    def test_a_client_whose_job_joins_in_one_group_is_notified(self, store: Store, other: Store) -> None:
        first, second = store.job(unique=b"u"), store.job(unique=b"u")
        outcomes = store.group(submit(store, first), submit(store, second, waiter=True))
        winner = first if outcomes[0] == {} else second
        (claimed,) = other.claim()
        assert claimed.id == winner.id
        other.end(claimed)
        wait_for_settled(store, winner.id)

    def test_a_client_that_waits_later_is_notified(self, store: Store, other: Store) -> None:
        job = store.leased()
        found = wait(other, job.id, 12345, 10**19 - 1)
        assert {job_id: one.state for job_id, one in found.items()} == {job.id: State.LEASED}
        assert subscribers(store, job.id, 12345) == {job.id: [other.term]}
        store.end(job)
        wait_for_settled(other, job.id)
        assert subscribers(store, job.id) == {}

    def test_no_client_is_notified_of_a_job_that_had_ended(self, store: Store, other: Store) -> None:
        job = store.leased()
        store.end(job, result=b"r")
        found = wait(other, job.id)
        assert (found[job.id].state, found[job.id].result) == (State.SUCCEEDED, b"r")
        assert subscribers(store, job.id) == {}

    def test_a_wait_and_the_end_of_its_job_at_once(self, store: Store, other: Store) -> None:
        for _ in range(20):
            job = store.leased()
            _, found = store.groups(
                (store, [ops.Settle([done(job)])]),
                (other, [ops.Subscribe(other.term, [job.id])]),
            )
            assert isinstance(found, list)
            if not State(found[0][job.id].state).ended:
                wait_for_settled(other, job.id)
            assert subscribers(store, job.id) == {}

    def test_subscribers_are_those_of_other_nodes(self, store: Store, other: Store) -> None:
        third = store.beside("n3")
        job = submit_waited(store)
        wait(other, job.id)
        wait(other, job.id)
        wait(third, job.id)
        assert subscribers(store, job.id) == {job.id: sorted([other.term, third.term])}
        assert subscribers(other, job.id) == {job.id: sorted([store.term, third.term])}
        leave(other, job.id)
        assert subscribers(store, job.id) == {job.id: [third.term]}

    @pytest.mark.parametrize("how", ["cancel", "expire"])
    def test_a_client_is_notified_of_a_job_that_ends_without_a_worker(
        self, store: Store, other: Store, how: str
    ) -> None:
        job = submit_waited(store, expires_us=NOW)
        if how == "cancel":
            other.cancel(job.id)
        else:
            assert [one.id for one, _ in other.wake(NOW).expired] == [job.id]
        wait_for_settled(store, job.id)

    def test_no_client_is_notified_of_a_release(self, store: Store, other: Store) -> None:
        job = submit_waited(store)
        (claimed,) = other.claim()
        other.settle(released(claimed))
        assert subscribers(other, job.id) == {job.id: [store.term]}
        (claimed,) = other.claim()
        other.end(claimed)
        wait_for_settled(store, job.id)
        assert sum(isinstance(message, Settled) for message in store.messages) == 1

    # ---- foreground jobs ----

    @pytest.mark.parametrize("state", [State.SCHEDULED, State.PENDING, State.LEASED])
    def test_a_foreground_job_without_waiting_clients_is_dropped(self, store: Store, state: State) -> None:
        job = submit_waited(store, foreground=True, state=state, due_us=NOW, unique=b"u")
        assert store.present(job.id).foreground
        assert leave(store, job.id) == {job.id}
        assert store.find(job.id) is None
        assert store.counts() == {}
        store.submitted(unique=b"u")

    def test_a_foreground_job_stays_while_a_client_waits(self, store: Store, other: Store) -> None:
        job = submit_waited(store, foreground=True)
        wait(other, job.id)
        assert leave(store, job.id) == set()
        assert store.state(job.id) is State.PENDING
        assert leave(other, job.id) == {job.id}

    def test_a_job_that_runs_is_not_dropped(self, store: Store) -> None:
        job = submit_waited(store, foreground=True, state=State.LEASED)
        store.assign(job)
        assert leave(store, job.id) == set()
        assert store.state(job.id) is State.RUNNING

    def test_a_job_that_another_node_holds_is_not_dropped(self, store: Store, other: Store) -> None:
        job = submit_waited(store, foreground=True)
        (claimed,) = other.claim()
        assert claimed.foreground
        assert leave(store, job.id) == set()
        assert leave(other, job.id) == {job.id}, "no client waits there either"

    def test_a_background_job_is_not_dropped(self, store: Store) -> None:
        job = submit_waited(store)
        assert leave(store, job.id, 12345, 10**19 - 1) == set()
        assert store.state(job.id) is State.PENDING

    def test_a_redriven_job_stays_without_waiting_clients(self, store: Store) -> None:
        job = submit_waited(store, foreground=True, state=State.LEASED, unique=b"u")
        store.end(job, Event.FAIL)
        redriven = store.redrive(job.id)
        assert redriven.redriven
        assert not store.present(job.id).foreground
        assert leave(store, job.id) == set()
        assert store.state(job.id) is State.PENDING

    def test_a_background_job_that_joins_keeps_a_foreground_one(self, store: Store, other: Store) -> None:
        job = submit_waited(store, foreground=True, unique=b"u")
        same = other.job(unique=b"u", foreground=True)
        assert other.submit(same)[same.id].id == job.id
        assert store.present(job.id).foreground
        background = other.job(unique=b"u")
        assert other.submit(background)[background.id].id == job.id
        assert not store.present(job.id).foreground
        assert leave(store, job.id) == set()

    def test_a_background_job_of_the_same_operation_keeps_a_foreground_one(self, store: Store) -> None:
        jobs = [store.job(unique=b"u", foreground=foreground) for foreground in (True, False, True)]
        (joined,) = store.group(submit(store, *jobs, waiter=True))
        assert set(joined) == {job.id for job in jobs[1:]}
        assert not store.present(jobs[0].id).foreground

    def test_a_leave_and_a_join_at_once(self, store: Store, other: Store) -> None:
        for number in range(20):
            unique = b"%d" % number
            job = submit_waited(store, foreground=True, unique=unique)
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
