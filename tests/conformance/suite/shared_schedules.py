"""Schedules of a shared store: concurrent groups of several nodes decide each fire time once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from mainspring.errors import ConflictError, UsageError
from mainspring.jobs import store as job_ops
from mainspring.jobs.rules import Event
from mainspring.schedules import store as ops
from mainspring.schedules.model import FireState, Overlap
from tests.conformance.suite.schedules import ScheduleSuite
from tests.conformance.suite.scheduling import Scheduling

if TYPE_CHECKING:
    from mainspring.jobs.rules import Settlement
    from mainspring.storage.engine import Operation

ROUNDS = 10


class SharedScheduleSuite(ScheduleSuite):
    """``ScheduleSuite`` and the contract among nodes."""

    @pytest.fixture
    def other(self, s: Scheduling) -> Scheduling:
        """Return a second node."""
        return Scheduling(s.make, s.store.beside())

    @staticmethod
    def at_once(first: Scheduling, one: Operation, second: Scheduling, two: Operation) -> tuple[Any, Any]:
        """Commit one group of each of two nodes concurrently; return the outcomes."""
        (a, b) = first.store.groups((first.store, [one]), (second.store, [two]))
        assert isinstance(a, list), a
        assert isinstance(b, list), b
        return a[0], b[0]

    @staticmethod
    def settle(end: Settlement) -> job_ops.Settle:
        """Return the operation that settles a job."""
        return job_ops.Settle([end])

    def test_one_of_two_nodes_fires(self, s: Scheduling, other: Scheduling) -> None:
        for name in ("a", "b", "c"):
            s.add(name)
        for minute in range(ROUNDS):
            s.at(minute)
            other.at(minute)
            first, second = s.firing(), other.firing()
            one, two = self.at_once(s, first, other, second)
            for name in ("a", "b", "c"):
                assert one[name].won != two[name].won
                assert one[name].stored == two[name].stored == s.stored(name)
                assert s.outcomes(name) == ["fired"] * (minute + 1)
        assert len(s.claim("a")) == ROUNDS

    def test_two_parents_that_end_on_two_nodes_start_their_child_once(self, s: Scheduling, other: Scheduling) -> None:
        s.add("a")
        s.add("x")
        s.add("b", parents=("a", "x"))
        for minute in range(ROUNDS):
            s.at(minute)
            other.at(minute)
            s.fire()
            one, two = s.settlement(s.running("a")), other.settlement(other.running("x"))
            assert self.at_once(s, self.settle(one), other, self.settle(two)) == (set(), set())
            assert s.outcomes("b") == ["fired"] * (minute + 1)
        assert len(s.claim("b")) == ROUNDS

    @pytest.mark.parametrize("event", [Event.SUCCEED, Event.FAIL])
    def test_two_parents_of_whom_one_fails(self, s: Scheduling, other: Scheduling, event: Event) -> None:
        s.add("a", wait_for_children=True)
        s.add("x", wait_for_children=True)
        s.add("b", parents=("a", "x"), wait_for_children=True)
        s.add("c", parents=("b", "a"))
        for minute in range(ROUNDS):
            s.at(minute)
            s.fire()
            one, two = s.settlement(s.running("a"), Event.FAIL), other.settlement(other.running("x"), event)
            self.at_once(s, self.settle(one), other, self.settle(two))
            assert s.outcomes("b") == s.outcomes("c") == ["parent"] * (minute + 1)
            s.repair()
            assert s.outcomes("a")[-1] == "failed"
            assert s.outcomes("x")[-1] in {"succeeded", "failed"}

    def test_a_run_ends_while_the_next_one_is_due(self, s: Scheduling, other: Scheduling) -> None:
        s.add("a", overlap=Overlap.QUEUE)
        s.fire()
        for minute in range(1, ROUNDS):
            s.at(minute)
            other.at(minute)
            end = s.settlement(s.running("a"))
            self.at_once(s, self.settle(end), other, other.firing())
            # In either order the new run starts, and no repair is needed.
            assert s.outcomes("a") == ["succeeded"] * minute + ["fired"]
        assert s.repair() == 0

    def test_the_children_of_one_occasion_end_on_two_nodes(self, s: Scheduling, other: Scheduling) -> None:
        s.add("a", wait_for_children=True, overlap=Overlap.QUEUE)
        s.add("b", parents=("a",))
        s.add("c", parents=("a",))
        for minute in range(ROUNDS):
            s.at(minute)
            s.fire()
            s.run("a")
            one, two = s.settlement(s.running("b")), other.settlement(other.running("c"))
            self.at_once(s, self.settle(one), other, self.settle(two))
            assert s.outcomes("a") == ["succeeded"] * (minute + 1)

    def test_families_are_busy_on_both_nodes(self, s: Scheduling, other: Scheduling) -> None:
        """All groups end, whatever they wait for, and leave consistent rows."""
        s.add("a", overlap=Overlap.QUEUE, wait_for_children=True)
        s.add("b", parents=("a",), overlap=Overlap.QUEUE)
        s.add("c", parents=("a",), overlap=Overlap.FORBID)
        s.add("d", parents=("b", "c"), overlap=Overlap.QUEUE)
        s.add("z", overlap=Overlap.FORBID)
        s.add("y", parents=("z",))
        for minute in range(3 * ROUNDS):
            s.at(minute)
            other.at(minute)
            one, two = s.firing(), other.firing("z")
            ends = []
            for node in (s, other):
                jobs = [job for name in "abcdyz" for job in node.store.claim(name.encode(), limit=1)]
                events = [Event.FAIL if (minute + at) % 7 == 0 else Event.SUCCEED for at in range(len(jobs))]
                settlements = [node.settlement(job, event) for job, event in zip(jobs, events, strict=True)]
                ends.append(job_ops.Settle(settlements))
            outcomes = s.store.groups((s.store, [one, ends[0]]), (other.store, [ends[1], two]))
            assert all(isinstance(outcome, list) for outcome in outcomes), outcomes
        # Each node may get the jobs of its earlier requests.
        while held := [(node, job) for node in (s, other) for name in "abcdyz" for job in node.claim(name)]:
            for node, job in held:
                node.end(job)
            s.repair()
        for name in "az":
            assert len(s.history(name)) == 3 * ROUNDS
        for name in "bcd":
            assert [row.fire_us for row in s.history(name)] == [row.fire_us for row in s.history("a")]
        for name in "abcdyz":
            assert all(row.finished for row in s.history(name)), s.outcomes(name)
        assert s.repair() == 0

    def test_two_nodes_change_one_schedule(self, s: Scheduling, other: Scheduling) -> None:
        schedule = s.add("a")
        for _ in range(ROUNDS):
            version = s.stored("a").state.version
            one, two = self.at_once(
                s,
                s.saving(ops.Change("put", "a", version, replace(schedule, jitter=1.0))),
                other,
                other.saving(ops.Change("put", "a", version, replace(schedule, jitter=2.0))),
            )
            assert {type(one.error), type(two.error)} == {type(None), ConflictError}

    def test_two_registrations_make_no_cycle_together(self, s: Scheduling, other: Scheduling) -> None:
        for at in range(ROUNDS):
            a, b = s.add(f"a{at}").name, s.add(f"b{at}").name
            one, two = self.at_once(s, s.saving(_after(s, a, b)), other, other.saving(_after(other, b, a)))
            assert sorted(type(outcome.error) is UsageError for outcome in (one, two)) == [False, True]

    def test_a_change_at_one_node_holds_for_the_end_of_a_run_at_the_other(
        self, s: Scheduling, other: Scheduling
    ) -> None:
        s.add("a")
        s.fire()
        other.end(other.running("a"))
        s.add("b", parents=("a",))
        s.at(1)
        s.fire()
        other.end(other.running("a"))
        assert s.outcomes("b") == ["fired"]
        s.change("remove", "b")
        s.at(2)
        s.fire()
        other.end(other.running("a"))
        assert s.outcomes("b") == ["fired"]

    def test_a_job_that_is_joined_ends_at_the_same_moment(self, s: Scheduling, other: Scheduling) -> None:
        s.add("a", unique=b"u")
        s.fire()
        for minute in range(1, ROUNDS):
            s.at(minute)
            other.at(minute)
            jobs = s.claim("a")
            if not jobs:
                s.fire()
                continue
            self.at_once(s, self.settle(s.settlement(jobs[0])), other, other.firing())
            s.repair()
            assert all(row.outcome for row in s.history("a")[:-1])
        rows = s.history("a")
        assert len(rows) == ROUNDS
        assert {row.state for row in rows} <= {FireState.FIRED, FireState.JOINED}

    def test_two_nodes_declare_at_once(self, s: Scheduling, other: Scheduling) -> None:
        now_us = s.now_us
        self.at_once(
            s,
            ops.Declare("app", b"1", now_us),
            other,
            ops.Declare("app", b"1", now_us + 5),
        )
        (declared,) = s.declare("app", b"1")
        assert declared.deployment.first_seen_us in {now_us, now_us + 5}


def _after(s: Scheduling, child: str, parent: str) -> ops.Change:
    """Return the change that makes one schedule a child of another."""
    stored = s.stored(child)
    return ops.Change("put", child, stored.state.version, replace(stored.schedule, trigger=None, parents=(parent,)))
