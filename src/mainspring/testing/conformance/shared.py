"""Several nodes on one store: joins, claims and settlements across them, who waits where, terms that end, and messages."""

# ruff: noqa: D102 - the tests' names say it
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.errors import StoreFencedError
from mainspring.events.relay import Pending, Settled
from mainspring.ids import SLOTS, slot_of
from mainspring.jobs import store as ops
from mainspring.jobs.model import Priority, State
from mainspring.jobs.rules import Event
from mainspring.testing.conformance.driver import NOW, Store, again, done, ignore
from mainspring.testing.conformance.limiting import Leasing
from mainspring.testing.conformance.suite import EngineSuite, JobsSuite

if TYPE_CHECKING:
    from mainspring.jobs.model import Job

ENDS = [Event.SUCCEED, Event.FAIL, Event.CANCEL, Event.EXPIRE]


def submit(store: Store, *jobs: Job, waiter: bool = False) -> ops.Submit:
    """Return an operation that stores jobs; with a waiter, a client of this node waits for each."""
    return ops.Submit(list(jobs), ignore, ignore, store.term if waiter else 0)


def waited(store: Store, **values: Any) -> Job:
    """Submit a job that a client of this node waits for."""
    job = store.job(**values)
    assert store.group(submit(store, job, waiter=True)) == [{}]
    return job


def wait(store: Store, *ids: int) -> dict[int, Job]:
    """Note that clients of this node wait for jobs."""
    (found,) = store.group(ops.Wait(store.term, list(ids), ignore, ignore))
    assert isinstance(found, dict)
    return found


def leave(store: Store, *ids: int) -> set[int]:
    """Nobody at this node waits for jobs any more."""
    (dropped,) = store.group(ops.Leave(store.term, list(ids), ignore, ignore))
    assert isinstance(dropped, set)
    return dropped


def watchers(store: Store, *ids: int) -> dict[int, list[int]]:
    """Ask who waits elsewhere."""
    (found,) = store.group(ops.Watchers(store.term, list(ids), ignore, ignore))
    assert isinstance(found, dict)
    return {job_id: sorted(terms) for job_id, terms in found.items()}


def recover(store: Store, *terms: int, limit: int = 1000) -> ops.Recovered:
    """Give back what ended terms hold."""
    (recovered,) = store.group(ops.Recover(store.term, ignore, ignore, list(terms), limit))
    assert isinstance(recovered, ops.Recovered)
    return recovered


def look(store: Store) -> ops.Outlook:
    """Look at what waits."""
    (outlook,) = store.group(ops.Look())
    assert isinstance(outlook, ops.Outlook)
    return outlook


def settled(store: Store, *ids: int) -> None:
    """Wait until the node was told that jobs have ended."""
    store.hears(
        lambda heard: (
            set(ids) <= {job_id for message in heard if isinstance(message, Settled) for job_id in message.ids}
        )
    )


class Sharing:
    """Tests of stores that several nodes have open at once."""

    @pytest.fixture
    def other(self, store: Store) -> Store:
        """Give a test a second node on the same store; it is closed with the first."""
        return store.beside()

    # ---- one content ----

    def test_nodes_have_terms_of_their_own(self, store: Store, other: Store) -> None:
        assert store.term != other.term
        job = store.submitted()
        assert other.present(job.id).id == job.id
        assert (other.opened.nodes[store.term], other.opened.nodes[other.term]) == ("n1", "n2")

    def test_a_node_that_came_later_is_known_by_its_jobs(self, store: Store) -> None:
        job = store.beside("late").submitted()
        store.present(job.id)
        assert store.opened.nodes[job.id // 10**12] == "late"

    def test_what_one_submits_another_claims_and_settles(self, store: Store, other: Store) -> None:
        job = store.submitted(function=b"first named here", payload=b"whole")
        (claimed,) = other.claim(b"first named here")
        assert (claimed.id, claimed.payload, claimed.term) == (job.id, b"whole", other.term)
        assert store.claim(b"first named here") == []
        other.end(claimed, result=b"r")
        assert (store.present(job.id).state, store.present(job.id).result) == (State.SUCCEEDED, b"r")
        assert store.counts() == other.counts()

    def test_a_settlement_names_the_term_that_holds_the_job(self, store: Store, other: Store) -> None:
        job = store.leased()
        assert other.settle(done(job)) == set(), "whoever sends it: the lease is the guard"
        job = store.leased()
        job.term = other.term
        assert other.settle(done(job)) == {job.id}

    def test_a_unique_is_one_for_all_nodes(self, store: Store, other: Store) -> None:
        first = store.submitted(unique=b"u")
        second = other.job(unique=b"u")
        assert other.submit(second) == {second.id: (first.id, State.PENDING, 0)}

    # ---- at once ----

    def test_of_equal_uniques_at_once_one_is_stored(self, store: Store, other: Store) -> None:
        for number in range(10):
            jobs = {node: [node.job(unique=b"%d %d" % (number, at)) for at in range(20)] for node in (store, other)}
            outcomes = store.groups(
                (store, [submit(store, *jobs[store])]), (other, [submit(other, *reversed(jobs[other]))])
            )
            joined: dict[int, ops.Found] = {}
            for outcome in outcomes:
                assert isinstance(outcome, list)
                joined.update(outcome[0])
            assert len(joined) == 20
            everything = {job.id: job.unique for some in jobs.values() for job in some}
            assert all(everything[job_id] == everything[found.id] for job_id, found in joined.items())
            assert {found.id for found in joined.values()} == everything.keys() - joined.keys()
        assert sum(store.counts().values()) == 200

    def test_claims_at_once_do_not_share(self, store: Store, other: Store) -> None:
        jobs = [store.job() for _ in range(100)]
        store.submit(*jobs)
        claimed: list[int] = []
        while True:
            outcomes = store.groups(
                *((node, [ops.Claim(node.term, [ops.Want(b"f", 7)], ignore, ignore)]) for node in (store, other))
            )
            taken = [job.id for outcome in outcomes if isinstance(outcome, list) for job in outcome[0][0]]
            claimed += taken
            if not taken:
                break
        assert sorted(claimed) == [job.id for job in jobs]

    def test_a_unique_that_is_freed_at_this_moment_is_taken_or_joined(self, store: Store, other: Store) -> None:
        for number in range(20):
            unique = b"%d" % number
            held = store.leased(unique=unique)
            new = other.job(unique=unique)
            _, joined = store.groups(
                (store, [ops.Settle([done(held)], ignore, ignore)]), (other, [submit(other, new, waiter=True)])
            )
            assert isinstance(joined, list)
            assert store.state(held.id) is State.SUCCEEDED
            if joined == [{}]:
                claimed = store.claim()
                while not claimed:  # what another node has just stored may be passed over
                    claimed = store.claim()
                assert [job.id for job in claimed] == [new.id]
            else:
                assert joined[0][new.id].id == held.id
                settled(other, held.id)
        store.counts()

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
                (store, [ops.Settle([done(job)], ignore, ignore)]),
                (other, [ops.Wait(other.term, [job.id], ignore, ignore)]),
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
                (store, [ops.Leave(store.term, [job.id], ignore, ignore)]),
                (other, [submit(other, new, waiter=True)]),
            )
            assert isinstance(dropped, list)
            assert isinstance(joined, list)
            live = new.id if dropped[0] else job.id
            assert (joined[0] == {}) == bool(dropped[0])
            assert store.find_unique((b"f", unique)) == [(live, State.PENDING, 0)]
            assert leave(other, live) == {live}

    # ---- hash slots ----

    def test_a_claim_may_be_for_some_slots(self, store: Store) -> None:
        jobs = [store.job() for _ in range(40)]
        store.submit(*jobs)
        half = frozenset(range(SLOTS // 2))
        mine = [job.id for job in jobs if slot_of("default", b"f", b"", job.id) in half]
        want = ops.Want(b"f", 15, half)
        ((claimed,),) = store.group(ops.Claim(store.term, [want], ignore, ignore))
        assert [job.id for job in claimed] == mine[:15]
        ((claimed,),) = store.group(ops.Claim(store.term, [ops.Want(b"f", 100, half)], ignore, ignore))
        assert [job.id for job in claimed] == mine[15:]
        assert [job.id for job in store.claim()] == [job.id for job in jobs if job.id not in mine]

    def test_what_is_overdue_is_anybodys(self, store: Store) -> None:
        nobody: frozenset[int] = frozenset()
        old = [
            store.job(created_us=NOW - 5),
            store.job(created_us=NOW - 5, state=State.SCHEDULED, due_us=NOW - 1),
            store.job(created_us=NOW - 5, state=State.SCHEDULED, due_us=NOW),
            store.job(created_us=NOW),
        ]
        store.submit(*old)
        store.wake(NOW)
        ((claimed,),) = store.group(ops.Claim(store.term, [ops.Want(b"f", 9, nobody, NOW)], ignore, ignore))
        assert [job.id for job in claimed] == [job.id for job in old[:2]]
        assert len(store.claim()) == 2

    def test_slots_hold_after_a_job_comes_back(self, store: Store) -> None:
        job = store.leased(unique=b"u")
        store.settle(again(job))
        slot = slot_of("default", b"f", b"u", job.id)
        for slots in (frozenset(range(SLOTS)) - {slot}, frozenset({slot})):
            ((claimed,),) = store.group(ops.Claim(store.term, [ops.Want(b"f", 9, slots)], ignore, ignore))
            assert bool(claimed) == (slot in slots)

    # ---- terms that end ----

    def test_a_term_that_has_ended_commits_nothing(self, store: Store, other: Store) -> None:
        job, held = store.job(), store.leased()
        other.end_term(store.term)
        for operation in (
            submit(store, job),
            ops.Settle([done(held)], ignore, ignore),
            ops.Claim(store.term, [ops.Want(b"f", 1)], ignore, ignore),
            ops.Wait(store.term, [held.id], ignore, ignore),
        ):
            with pytest.raises(StoreFencedError):
                store.group(operation)
        assert other.find(job.id) is None
        assert other.state(held.id) is State.LEASED
        self._again(store)

    @staticmethod
    def _again(store: Store) -> None:
        """A node whose term was ended goes on under the next one."""
        store.reopen()
        store.submitted(function=b"again")

    def test_recovery_gives_back_what_ended_terms_hold(self, store: Store, other: Store) -> None:
        third = store.beside("n3")
        jobs = [store.job(unique=b"%d" % at, priority=Priority.HIGH) for at in range(5)]
        store.submit(*jobs)
        leased, running = other.claim(limit=2)
        other.assign(running)
        (theirs,) = third.claim(limit=1)
        store.end_term(other.term)
        assert recover(store, other.term) == (2, {(b"f", Priority.HIGH): 2}, False)
        found = [store.present(job.id) for job in (leased, running, theirs)]
        assert [(job.state, job.attempt, job.suspects, job.term) for job in found] == [
            (State.PENDING, 0, 1, 0),
            (State.PENDING, 1, 0, 0),
            (State.LEASED, 0, 0, third.term),
        ]
        assert recover(store, other.term).number == 0
        assert store.settle(done(leased)) == {leased.id}, "it was made under a term that has ended"
        assert [job.id for job in store.claim()] == [leased.id, running.id, jobs[3].id, jobs[4].id]
        self._again(other)

    def test_recovery_takes_so_many_at_a_time(self, store: Store, other: Store) -> None:
        other.submit(*[other.job(state=State.LEASED) for _ in range(7)])
        store.end_term(other.term)
        numbers, more = [], True
        while more:
            outcome = recover(store, other.term, limit=3)
            numbers.append(outcome.number)
            more = outcome.more
        assert sum(numbers) == 7
        assert max(numbers) == 3
        assert len(store.claim()) == 7
        self._again(other)

    def test_recovery_at_once_counts_each_job_once(self, store: Store, other: Store) -> None:
        third = store.beside("n3")
        other.submit(*[other.job(state=State.LEASED) for _ in range(50)])
        store.end_term(other.term)
        outcomes = store.groups(
            *((node, [ops.Recover(node.term, ignore, ignore, [other.term])]) for node in (store, third))
        )
        assert sum(outcome[0].number for outcome in outcomes if isinstance(outcome, list)) == 50
        assert {job.suspects for job in store.claim()} == {1}
        self._again(other)

    def test_recovery_forgets_who_waited(self, store: Store, other: Store) -> None:
        kept, dropped, both = (waited(other, foreground=foreground) for foreground in (False, True, True))
        wait(store, both.id)
        store.end_term(other.term)
        recover(store, other.term)
        assert watchers(store, kept.id, dropped.id, both.id) == {}
        states = [store.state(job.id) for job in (kept, dropped, both)]
        assert states == [State.PENDING, None, State.PENDING]
        self._again(other)

    def test_a_foreground_job_of_a_node_that_is_gone_runs_again_for_others(self, store: Store, other: Store) -> None:
        job = waited(store, foreground=True)
        assert [one.id for one in other.claim()] == [job.id]
        store.end_term(other.term)
        assert recover(store, other.term).number == 1
        assert [one.id for one in store.claim()] == [job.id]
        self._again(other)

    def test_a_node_that_leaves_ends_its_term(self, store: Store, other: Store) -> None:
        store.submitted()
        (claimed,) = other.claim()
        other.end(claimed)
        assert store.members() == ["n1", "n2"]
        other.close_engine()
        assert store.members() == ["n1"], "nobody has to wait for its lease"
        assert other.term not in store.abandoned()
        other.open()

    def test_a_node_that_leaves_while_it_holds_jobs_is_waited_for(self, store: Store, other: Store) -> None:
        store.submitted()
        (claimed,) = other.claim()
        other.close_engine()
        assert store.members() == ["n1", "n2"], "whoever finds it dead gives its jobs back"
        assert store.abandoned() == []
        store.end_term(other.term)
        assert store.abandoned() == [other.term]
        assert recover(store, other.term).number == 1
        assert store.abandoned() == []
        assert [job.id for job in store.claim()] == [claimed.id]
        other.open()

    # ---- draining ----

    def test_a_node_that_was_asked_to_drain_reads_so_under_each_of_its_terms(self, store: Store, other: Store) -> None:
        assert store.drain(other.term)
        assert store.draining() == other.draining() == ["n2"]
        assert other.beat() == ["n2"], "whatever its own row says"
        store.end_term(other.term)
        assert store.draining() == []
        assert not store.drain(other.term), "there is no such row"
        again = store.beside("n2")
        assert again.beat() == store.draining() == ["n2"]
        assert store.drain(again.term, draining=False)
        assert again.beat() == store.draining() == []
        self._again(other)

    def test_a_node_that_has_left_drains_no_longer(self, store: Store, other: Store) -> None:
        store.drain(other.term)
        other.reopen("n2")
        assert other.beat() == []
        store.drain(other.term)
        store.end_term(other.term)
        other.reopen("n2")
        assert other.beat() == [], "also where its term had been ended"

    # ---- looking, and hints ----

    def test_a_look_shows_what_waits(self, store: Store, other: Store) -> None:
        assert look(store) == ({}, {}, 0, *look(store)[3:])
        other.submit(
            other.job(),
            other.job(priority=Priority.HIGH),
            other.job(b"g", state=State.SCHEDULED, due_us=NOW + 5),
            other.job(b"h", state=State.LEASED),
            other.job(expires_us=NOW + 3),
        )
        outlook = look(store)
        assert outlook.pending == {(b"f", Priority.NORMAL): 2, (b"f", Priority.HIGH): 1}
        assert outlook.live == {b"f": 3, b"g": 1, b"h": 1}
        assert outlook.next_us == NOW + 3
        (claimed,) = other.claim(limit=1)
        other.end(claimed)
        outlook = look(other)
        assert outlook.pending == {(b"f", Priority.NORMAL): 2}
        assert outlook.live == {b"f": 2, b"g": 1, b"h": 1}

    def test_a_look_sees_its_group(self, store: Store) -> None:
        outlook, _ = store.group(ops.Look(), submit(store, store.job()))
        assert outlook.pending == {(b"f", Priority.NORMAL): 1}

    def test_others_hear_of_what_is_pending(self, store: Store, other: Store) -> None:
        def told(node: Store, name: bytes) -> None:
            node.hears(lambda heard: any(isinstance(one, Pending) and name in one.functions for one in heard))

        store.submitted(function=b"submitted")
        told(other, b"submitted")
        held = store.leased(function=b"released")
        store.settle(again(held))
        told(other, b"released")
        store.submitted(function=b"due", state=State.SCHEDULED, due_us=NOW)
        store.wake(NOW)
        told(other, b"due")


class SharedJobsSuite(JobsSuite, Sharing):
    """The contract of an engine that several nodes have open at once, and that keeps no limits."""


class SharedEngineSuite(EngineSuite, Sharing, Leasing):
    """The contract of engines that several nodes have open at once: everything, and what concerns them alone."""
