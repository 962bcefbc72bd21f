"""Parents, children and occasions."""

from __future__ import annotations

import pytest

from mainspring.jobs import store as job_ops
from mainspring.jobs.rules import Event
from mainspring.schedules.model import Cause, Overlap
from tests.conformance.suite.scheduling import MINUTE, SECOND, START, Scheduling, at


class Relating:
    """Tests of schedules that run after others."""

    def test_a_child_runs_when_its_parent_has_succeeded(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b", parents=("a",), args=b"child")
        s.add("c", parents=("b",))
        s.fire()
        assert s.outcomes("b") == []
        s.now_us += SECOND
        s.run("a")
        (row,) = s.history("b")
        assert (row.fire_us, row.cause, row.parent, row.root) == (START, Cause.PARENT, "a", "")
        job = s.running("b")
        assert job.payload == b"child"
        assert job.options is not None
        assert job.options.fire_us == START
        assert job.id in s.lifecycle.committed
        s.end(job)
        s.run("c")
        assert s.outcomes("c") == ["succeeded"]

    @pytest.mark.parametrize("event", [Event.FAIL, Event.CANCEL])
    def test_a_failed_parent_stops_its_children(self, s: Scheduling, event: Event) -> None:
        s.add("a")
        s.add("x")
        s.add("b", parents=("a", "x"))
        s.add("c", parents=("b",))
        s.fire()
        s.run("a", event)
        assert (s.outcomes("b"), s.outcomes("c")) == (["parent"], ["parent"])
        assert [row.parent for row in (*s.history("b"), *s.history("c"))] == ["a", "b"]
        s.run("x")
        assert (s.outcomes("b"), s.outcomes("c")) == (["parent"], ["parent"])
        assert s.claim("b") == []

    def test_a_skipped_fire_time_stops_the_children(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.FORBID)
        s.add("b", parents=("a",))
        s.at(1)
        s.fire()
        assert (s.outcomes("a"), s.outcomes("b")) == (["misfire", "fired"], ["parent"])

    def test_a_child_waits_for_all_its_parents(self, s: Scheduling) -> None:
        s.add("a")
        s.add("x")
        s.add("b", parents=("a", "x"))
        s.fire()
        s.run("a")
        assert s.outcomes("b") == []
        s.run("x")
        assert [row.parent for row in s.history("b")] == ["x"]
        assert s.outcomes("b") == ["fired"]

    def test_two_parents_that_end_in_one_group_start_their_child_once(self, s: Scheduling) -> None:
        s.add("a")
        s.add("x")
        s.add("b", parents=("a", "x"))
        s.fire()
        ends = [s.settlement(s.running(name)) for name in ("a", "x")]
        s.group(*(job_ops.Settle([end]) for end in ends))
        assert s.outcomes("b") == ["fired"]
        assert len(s.claim("b")) == 1

    def test_occasions_do_not_mix(self, s: Scheduling) -> None:
        s.add("a")
        s.add("x")
        s.add("b", parents=("a", "x"))
        for minute in range(2):
            s.at(minute)
            s.fire()
        first, second = s.claim("a")
        s.end(first)
        s.end(second)
        assert s.outcomes("b") == []
        first, second = s.claim("x")
        s.end(second)
        assert [row.fire_us for row in s.history("b")] == [START + MINUTE]
        s.end(first)
        assert [row.fire_us for row in s.history("b")] == [START, START + MINUTE]

    def test_occasions_by_hand_do_not_mix_with_those_of_relatives(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b", parents=("a",))
        s.add("c", parents=("b",))
        rows = [s.trigger(name) for name in ("b", "a", "c", "b")]  # at a fire time of a
        assert len({START, *(row.fire_us for row in rows if row is not None)}) == 5
        s.fire()
        s.now_us += 10
        s.store.wake(s.now_us)
        for name in ("a", "b", "c"):
            for job in s.claim(name):
                s.end(job)
        assert [len(s.history(name)) for name in ("a", "b", "c")] == [2, 4, 5]

    def test_a_child_has_its_own_overlap(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b", parents=("a",), overlap=Overlap.QUEUE)
        s.add("c", parents=("a",), overlap=Overlap.FORBID)
        s.add("d", parents=("c",))
        for minute in range(2):
            s.at(minute)
            s.fire()
            s.run("a")
        assert (s.outcomes("b"), s.outcomes("c"), s.outcomes("d")) == (
            ["fired", "waiting"],
            ["fired", "overlap"],
            ["parent"],
        )
        s.run("b")
        assert s.outcomes("b") == ["succeeded", "fired"]

    def test_a_paused_child_is_skipped(self, s: Scheduling) -> None:
        s.add("a")
        s.add("b", parents=("a",))
        s.change("pause", "b")
        s.fire()
        s.run("a")
        assert s.outcomes("b") == ["paused"]

    def test_a_run_is_finished_when_its_children_are(self, s: Scheduling) -> None:
        s.add("a", wait_for_children=True, overlap=Overlap.QUEUE)
        s.add("b", parents=("a",), wait_for_children=True)
        s.add("c", parents=("b",))
        s.add("d", parents=("a",))
        for minute in range(2):
            s.at(minute)
            s.fire()
        s.run("a")
        assert s.outcomes("a") == ["succeeded, 2 left", "waiting"]
        s.run("d")
        s.run("b")
        assert (s.outcomes("a")[0], s.outcomes("b")) == ("succeeded, 1 left", ["succeeded, 1 left"])
        s.run("c")
        assert (s.outcomes("a"), s.outcomes("b")) == (["succeeded", "fired"], ["succeeded"])

    def test_children_that_were_stopped_are_finished(self, s: Scheduling) -> None:
        s.add("a", wait_for_children=True, overlap=Overlap.QUEUE)
        s.add("b", parents=("a",))
        for minute in range(2):
            s.at(minute)
            s.fire()
        s.run("a", Event.FAIL)
        assert (s.outcomes("a"), s.outcomes("b")) == (["failed", "fired"], ["parent"])

    def test_a_child_that_another_parent_stopped_before_is_not_waited_for(self, s: Scheduling) -> None:
        s.add("x", overlap=Overlap.FORBID)
        s.fire("x")
        s.add("a", wait_for_children=True, trigger=at(1))
        s.add("b", parents=("a", "x"))
        s.at(1)
        s.fire("x")
        assert s.outcomes("b") == ["parent"]
        s.fire()
        s.run("a")
        assert s.outcomes("a") == ["succeeded"]

    def test_a_child_that_is_removed_is_not_waited_for(self, s: Scheduling) -> None:
        s.add("a", wait_for_children=True, overlap=Overlap.QUEUE)
        s.add("b", parents=("a",))
        for minute in range(2):
            s.at(minute)
            s.fire()
        s.run("a")
        s.change("remove", "b")
        assert s.outcomes("a") == ["succeeded, 1 left", "waiting"]
        assert s.repair() == 1
        assert s.outcomes("a") == ["succeeded", "fired"]
