"""Ended terms and their jobs, and nodes that drain."""

from __future__ import annotations

import pytest

from mainspring.errors import StoreFencedError
from mainspring.jobs import store as ops
from mainspring.jobs.model import Priority, State
from tests.conformance.suite.driver import Store, done
from tests.conformance.suite.operations import recover, submit, submit_waited, subscribers, wait


class Departing:
    """Tests of shared stores: nodes that leave, or are gone."""

    # ---- terms that end ----

    def test_a_term_that_has_ended_commits_nothing(self, store: Store, other: Store) -> None:
        job, held = store.job(), store.leased()
        other.end_term(store.term)
        for operation in (
            submit(store, job),
            ops.Settle([done(held)]),
            ops.Claim(store.term, [ops.ClaimRequest(b"f", 1)]),
            ops.Subscribe(store.term, [held.id]),
        ):
            with pytest.raises(StoreFencedError):
                store.group(operation)
        assert other.find(job.id) is None
        assert other.state(held.id) is State.LEASED
        self._continue(store)

    @staticmethod
    def _continue(store: Store) -> None:
        """Continue a node, whose term was ended, under its next term."""
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
        lost = frozenset({ops.LostAttempt(running.id, b"f", 1)})
        assert recover(store, other.term) == ops.Recovered(2, {(b"f", Priority.HIGH): 2}, False, lost)
        found = [store.present(job.id) for job in (leased, running, theirs)]
        assert [(job.state, job.attempt, job.suspects, job.term) for job in found] == [
            (State.PENDING, 0, 1, 0),
            (State.PENDING, 1, 0, 0),
            (State.LEASED, 0, 0, third.term),
        ]
        assert recover(store, other.term).number == 0
        assert store.settle(done(leased)) == {leased.id}, "its term has ended"
        assert [job.id for job in store.claim()] == [leased.id, running.id, jobs[3].id, jobs[4].id]
        self._continue(other)

    def test_recovery_loads_the_node_of_a_term_that_began_later(self, store: Store, other: Store) -> None:
        other.submit(other.job(state=State.LEASED))
        store.end_term(other.term)
        assert recover(store, other.term).number == 1
        assert store.opened.nodes[other.term] == "n2"
        self._continue(other)

    def test_recovery_has_a_limit(self, store: Store, other: Store) -> None:
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
        self._continue(other)

    def test_recovery_at_once_counts_each_job_once(self, store: Store, other: Store) -> None:
        third = store.beside("n3")
        other.submit(*[other.job(state=State.LEASED) for _ in range(50)])
        store.end_term(other.term)
        outcomes = store.groups(*((node, [ops.Recover(node.term, [other.term])]) for node in (store, third)))
        assert sum(outcome[0].number for outcome in outcomes if isinstance(outcome, list)) == 50
        assert {job.suspects for job in store.claim()} == {1}
        self._continue(other)

    def test_recovery_removes_waiters(self, store: Store, other: Store) -> None:
        kept, dropped, both = (submit_waited(other, foreground=foreground) for foreground in (False, True, True))
        wait(store, both.id)
        store.end_term(other.term)
        recover(store, other.term)
        assert subscribers(store, kept.id, dropped.id, both.id) == {}
        states = [store.state(job.id) for job in (kept, dropped, both)]
        assert states == [State.PENDING, None, State.PENDING]
        self._continue(other)

    def test_a_foreground_job_of_a_node_that_is_gone_runs_again_for_others(self, store: Store, other: Store) -> None:
        job = submit_waited(store, foreground=True)
        assert [one.id for one in other.claim()] == [job.id]
        store.end_term(other.term)
        assert recover(store, other.term).number == 1
        assert [one.id for one in store.claim()] == [job.id]
        self._continue(other)

    def test_a_node_that_leaves_ends_its_term(self, store: Store, other: Store) -> None:
        store.submitted()
        (claimed,) = other.claim()
        other.end(claimed)
        assert store.members() == ["n1", "n2"]
        other.close_engine()
        assert store.members() == ["n1"], "no node has to wait until its lease ends"
        assert other.term not in store.abandoned()
        other.open()

    def test_a_node_that_leaves_while_it_holds_jobs_is_waited_for(self, store: Store, other: Store) -> None:
        store.submitted()
        (claimed,) = other.claim()
        other.close_engine()
        assert store.members() == ["n1", "n2"], "the node that finds it dead recovers its jobs"
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
        assert other.beat() == ["n2"], "whatever its own row contains"
        store.end_term(other.term)
        assert store.draining() == []
        assert not store.drain(other.term), "its row is gone"
        released = store.beside("n2")
        assert released.beat() == store.draining() == ["n2"]
        assert store.drain(released.term, draining=False)
        assert released.beat() == store.draining() == []
        self._continue(other)

    def test_a_node_that_has_left_drains_no_longer(self, store: Store, other: Store) -> None:
        store.drain(other.term)
        other.reopen("n2")
        assert other.beat() == []
        store.drain(other.term)
        store.end_term(other.term)
        other.reopen("n2")
        assert other.beat() == [], "even if its term had been ended"
