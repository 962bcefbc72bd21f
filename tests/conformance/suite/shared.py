"""Several nodes on one store: joins, claims and settlements across them, shares of the queue, and messages."""

from __future__ import annotations

import pytest

from mainspring.errors import StoreError
from mainspring.events import Pending
from mainspring.ids import SLOTS, slot_of
from mainspring.jobs import store as ops
from mainspring.jobs.model import Priority, State
from tests.conformance.suite.departing import Departing
from tests.conformance.suite.driver import NOW, Store, done, released
from tests.conformance.suite.limiting import Granting
from tests.conformance.suite.operations import backlog, submit, wait_for_settled
from tests.conformance.suite.replying import once
from tests.conformance.suite.subscribing import Subscribing
from tests.conformance.suite.suite import EngineSuite, JobsSuite


class Sharing(Subscribing, Departing):
    """Tests of stores that several nodes have open at once."""

    @pytest.fixture
    def other(self, store: Store) -> Store:
        """Return a second node on the same store; it is closed with the first."""
        return store.beside()

    # ---- one content ----

    def test_each_node_has_its_own_term(self, store: Store, other: Store) -> None:
        assert store.term != other.term
        job = store.submitted()
        assert other.present(job.id).id == job.id
        assert (other.opened.nodes[store.term], other.opened.nodes[other.term]) == ("n1", "n2")

    def test_a_later_nodes_name_is_found_by_its_jobs(self, store: Store) -> None:
        job = store.beside("late").submitted()
        store.present(job.id)
        assert store.opened.nodes[job.id // 10**12] == "late"

    def test_another_node_claims_and_settles_a_job(self, store: Store, other: Store) -> None:
        job = store.submitted(function=b"first named here", payload=b"whole")
        (claimed,) = other.claim(b"first named here")
        assert (claimed.id, claimed.payload, claimed.term) == (job.id, b"whole", other.term)
        assert store.claim(b"first named here") == []
        other.end(claimed, result=b"r")
        assert (store.present(job.id).state, store.present(job.id).result) == (State.SUCCEEDED, b"r")
        assert store.counts() == other.counts()

    def test_a_settlement_names_the_term_that_holds_the_job(self, store: Store, other: Store) -> None:
        job = store.leased()
        assert other.settle(done(job)) == set(), "any node may send it: the term is the guard"
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
                *((node, [ops.Claim(node.term, [ops.ClaimRequest(b"f", 7)])]) for node in (store, other))
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
            _, joined = store.groups((store, [ops.Settle([done(held)])]), (other, [submit(other, new, waiter=True)]))
            assert isinstance(joined, list)
            assert store.state(held.id) is State.SUCCEEDED
            if joined == [{}]:
                claimed = store.claim()
                while not claimed:  # a claim may skip a job that another node has just stored
                    claimed = store.claim()
                assert [job.id for job in claimed] == [new.id]
            else:
                assert joined[0][new.id].id == held.id
                wait_for_settled(other, held.id)
        store.counts()

    # ---- hash slots ----

    def test_a_claim_may_be_for_some_slots(self, store: Store) -> None:
        jobs = [store.job() for _ in range(40)]
        store.submit(*jobs)
        half = frozenset(range(SLOTS // 2))
        mine = [job.id for job in jobs if slot_of("default", b"f", b"", job.id) in half]
        want = ops.ClaimRequest(b"f", 15, half)
        ((claimed,),) = store.group(ops.Claim(store.term, [want]))
        assert [job.id for job in claimed] == mine[:15]
        ((claimed,),) = store.group(ops.Claim(store.term, [ops.ClaimRequest(b"f", 100, half)]))
        assert [job.id for job in claimed] == mine[15:]
        assert [job.id for job in store.claim()] == [job.id for job in jobs if job.id not in mine]

    def test_every_node_may_claim_overdue_jobs(self, store: Store) -> None:
        nobody: frozenset[int] = frozenset()
        old = [
            store.job(created_us=NOW - 5),
            store.job(created_us=NOW - 5, state=State.SCHEDULED, due_us=NOW - 1),
            store.job(created_us=NOW - 5, state=State.SCHEDULED, due_us=NOW),
            store.job(created_us=NOW),
        ]
        store.submit(*old)
        store.wake(NOW)
        ((claimed,),) = store.group(ops.Claim(store.term, [ops.ClaimRequest(b"f", 9, nobody, NOW)]))
        assert [job.id for job in claimed] == [job.id for job in old[:2]]
        assert len(store.claim()) == 2

    def test_slots_hold_after_a_job_comes_back(self, store: Store) -> None:
        job = store.leased(unique=b"u")
        store.settle(released(job))
        slot = slot_of("default", b"f", b"u", job.id)
        for slots in (frozenset(range(SLOTS)) - {slot}, frozenset({slot})):
            ((claimed,),) = store.group(ops.Claim(store.term, [ops.ClaimRequest(b"f", 9, slots)]))
            assert bool(claimed) == (slot in slots)

    # ---- the backlog, and hints ----

    def test_the_backlog_has_the_unfinished_jobs(self, store: Store, other: Store) -> None:
        assert backlog(store)[:3] == ({}, {}, 0)
        other.submit(
            other.job(),
            other.job(priority=Priority.HIGH),
            other.job(b"g", state=State.SCHEDULED, due_us=NOW + 5),
            other.job(b"h", state=State.LEASED),
            other.job(expires_us=NOW + 3),
        )
        found = backlog(store)
        assert found.pending == {(b"f", Priority.NORMAL): 2, (b"f", Priority.HIGH): 1}
        assert found.live == {b"f": 3, b"g": 1, b"h": 1}
        assert found.next_us == NOW + 3
        (claimed,) = other.claim(limit=1)
        other.end(claimed)
        found = backlog(other)
        assert found.pending == {(b"f", Priority.NORMAL): 2}
        assert found.live == {b"f": 2, b"g": 1, b"h": 1}

    def test_the_backlog_of_some_functions(self, store: Store, other: Store) -> None:
        for function in (b"f", b"g", b"g", b"h"):
            store.submitted(function=function)
        found = backlog(other, b"g", b"h", b"unknown")
        assert found.pending == {(b"g", Priority.NORMAL): 2, (b"h", Priority.NORMAL): 1}
        assert found.live == {b"g": 2, b"h": 1}
        assert backlog(other, b"unknown").live == {}

    def test_the_backlog_includes_its_group(self, store: Store) -> None:
        found, _ = store.group(ops.ReadBacklog(), submit(store, store.job()))
        assert found.pending == {(b"f", Priority.NORMAL): 1}

    def test_other_nodes_are_notified_of_pending_jobs(self, store: Store, other: Store) -> None:
        def notified(node: Store, name: bytes) -> None:
            node.wait_for(lambda messages: any(isinstance(one, Pending) and name in one.functions for one in messages))

        store.submitted(function=b"submitted")
        notified(other, b"submitted")
        held = store.leased(function=b"released")
        store.settle(released(held))
        notified(other, b"released")
        store.submitted(function=b"due", state=State.SCHEDULED, due_us=NOW)
        store.wake(NOW)
        notified(other, b"due")


class SharedReplying:
    """Tests of stores that keep the answers to requests with a key."""

    def test_a_request_with_a_key_is_done_at_one_of_two_nodes(self, store: Store, other: Store) -> None:
        for number in range(5):
            keys = [b"a%d" % number, b"b%d" % number]
            first = [once(store.job(), key=key) for key in keys]
            second = [once(other.job(), key=key) for key in reversed(keys)]
            done, repeated = store.groups((store, first), (other, second))
            assert not isinstance(done, StoreError)
            assert not isinstance(repeated, StoreError)
            for outcomes in zip(done, reversed(repeated), strict=True):
                assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Reservation", "dict"]
                assert all(outcome == {} or outcome.reply is not None for outcome in outcomes)
        assert len(store.claim()) == 10


class SharedJobsSuite(JobsSuite, Sharing):
    """The contract of an engine that several nodes have open at once, without limits."""


class SharedEngineSuite(EngineSuite, Sharing, Granting, SharedReplying):
    """The contract of engines that several nodes have open at once: that of all engines, and of shared ones."""
