"""Timers, timeouts and parked runs of workflows: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State
from mainspring.workflows import store as ops
from mainspring.workflows.model import Definition, Key, Parked, Status
from mainspring.workflows.requests import Signal
from tests.conformance.suite.flows import MINUTE, SECOND

if TYPE_CHECKING:
    from tests.conformance.suite.flows import Flows


class TimingFlows:
    """Tests of alarms and of parked runs."""

    def test_a_timer_fires_once(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.timer(60), flows.timer(120))
        assert flows.ring(run) == {run: flows.now_us + MINUTE}
        assert len(flows.history(run)) == 6
        flows.now_us += MINUTE
        assert flows.ring(run, run) == {run: flows.now_us + MINUTE}
        assert flows.ring(run) == {run: flows.now_us + MINUTE}
        assert flows.kinds(run)[6:] == ["TimerFired", "DecisionTaskScheduled"]
        flows.now_us += MINUTE
        flows.ring(run)
        assert flows.kinds(run)[6:] == ["TimerFired", "DecisionTaskScheduled", "TimerFired"]

    def test_timers_of_runs_that_are_not_in_memory(self, flows: Flows) -> None:
        runs = [flows.start() for _ in range(4)]
        flows.signal(Signal(Key(run=runs[1]), "data", b"x" * 10_000))  # its state is stored
        for run in runs:
            flows.running(run, flows.timer(60))
        flows.terminate(Key(run=runs[3]))
        before = [flows.kinds(run) for run in runs]
        flows.store.reopen()
        flows.now_us += MINUTE
        assert flows.ring(*runs, 7).keys() == {*runs[:3]}
        fired = ["TimerFired", "DecisionTaskScheduled"]
        assert [flows.kinds(run) for run in runs] == [*(kinds + fired for kinds in before[:3]), before[3]]

    def test_a_run_that_took_too_long_is_closed(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.activity(), flows.timer(60))
        flows.now_us += 86_400 * SECOND
        assert flows.ring(run, 7) == {}
        assert flows.status(run) is Status.TIMED_OUT
        root = flows.root(run)
        assert root.state == State.FAILED
        assert b"Timeout" in root.error
        assert flows.ring(run) == {}

    def test_an_activity_that_does_not_start_in_time(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.activity(schedule_to_start=30.0), flows.activity(b"ship", schedule_to_start=30.0))
        (held,) = flows.store.claim(b"ship")
        flows.now_us += 30 * SECOND
        assert flows.alarms().due == [(run, flows.now_us)]
        flows.ring(run)
        assert set(flows.kinds(run)[6:]) == {"ActivityTaskTimedOut", "ActivityTaskStarted", "DecisionTaskScheduled"}
        assert flows.store.list(function=b"charge") == []
        flows.store.settle(flows.settled(held))
        assert flows.kinds(run)[-1] == "ActivityTaskCompleted"

    def test_an_activity_that_does_not_end_in_time(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.activity(schedule_to_close=30.0))
        (held,) = flows.store.claim(b"charge")
        flows.now_us += 30 * SECOND
        flows.ring(run)
        assert flows.kinds(run)[5:] == ["ActivityTaskTimedOut", "DecisionTaskScheduled"]
        assert flows.store.lifecycle.deleted == [held.id]
        assert flows.store.settle(flows.settled(held)) == {held.id}

    def test_after_a_correction_of_the_clock_nothing_waits_for_the_wrong_time(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.timer(3600))
        flows.now_us += 86_400 * SECOND - 1  # before the end of the run's timeout
        flows.signal(Signal(Key(run=run), "ahead", b""))
        flows.decide(run, flows.task(run))
        flows.now_us -= 86_400 * SECOND - 1
        flows.store.reopen()
        flows.signal(Signal(Key(run=run), "right", b""))
        flows.decide(run, flows.task(run), flows.timer(1), flows.activity(schedule_to_close=60.0))
        assert flows.alarms(flows.now_us + SECOND).due == [(run, flows.now_us + SECOND)]
        flows.wait(SECOND)
        assert flows.ring(run) == {run: flows.now_us + 59 * SECOND}
        assert flows.kinds(run)[-2:] == ["TimerFired", "DecisionTaskScheduled"]
        assert flows.kinds(run).count("TimerFired") == 1, "the timer of an hour has not fired"
        times = [event.at_us for event in flows.history(run)]
        assert times == sorted(times)
        flows.terminate(Key(run=run))
        assert flows.row(run).closed_us == flows.root(run).ended_us == flows.now_us

    def test_alarms_are_found_in_order(self, flows: Flows) -> None:
        runs = [flows.start() for _ in range(3)]
        for run, seconds in zip(runs, (50, 10, 30), strict=True):
            flows.running(run, flows.timer(seconds))
        now_us = flows.now_us
        assert flows.alarms() == ops.Alarms([], now_us + 10 * SECOND)
        found = flows.alarms(now_us + 30 * SECOND)
        assert found == ops.Alarms(
            [(runs[1], now_us + 10 * SECOND), (runs[2], now_us + 30 * SECOND)], now_us + 50 * SECOND
        )
        assert flows.alarms(now_us + 60 * SECOND, limit=1) == ops.Alarms(found.due[:1], now_us + 30 * SECOND)
        assert flows.alarms(now_us + 60 * SECOND).next_us is None
        flows.terminate(Key(run=runs[1]))
        assert flows.alarms(now_us + 30 * SECOND).due == found.due[1:]

    def test_a_closed_run_rings_no_more(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.timer(10))
        flows.terminate(Key(run=run))
        flows.now_us += 10 * SECOND
        events = flows.history(run)
        assert flows.ring(run) == {}
        assert flows.history(run) == events

    def test_builds_that_have_failed_do_not_get_the_run_again(self, flows: Flows) -> None:
        run, other = flows.start(), flows.start()
        flows.define(Definition("order", "2"))
        flows.park(run, Parked("mismatch", "differs"), "b1")
        flows.park(other, Parked("mismatch", "differs"), "b1")
        definition = ("default", "order", "1")
        assert flows.unpark(definition=definition, build="b1") == 0
        assert flows.unpark(definition=("default", "order", "2"), build="b2") == 0
        assert flows.unpark(definition=definition, build="b2", limit=1) == 1
        assert flows.unpark(definition=definition, build="b2", limit=5) == 1
        flows.park(run, Parked("mismatch", "differs"), "b2")
        assert set(flows.row(run).builds) == {"b1", "b2"}
        assert flows.unpark(definition=definition, build="b1") == flows.unpark(definition=definition, build="b2") == 0
        assert flows.unpark(definition=definition, build="b3") == 1
        flows.park(run, Parked("mismatch", "differs"), "b3")
        assert flows.unpark(definition=definition, build="b4") == 1
        flows.decide(run, flows.task(run), flows.timer(1), build="b4")
        assert set(flows.row(run).builds) == {"b1", "b2", "b3"}, "they would fail again"
        flows.wait(SECOND)
        flows.ring(run)
        flows.decide(run, flows.task(run), flows.timer(1), build="b2")
        assert set(flows.row(run).builds) == {"b1", "b3"}, "a build that records has not failed"
        flows.wait(SECOND)
        flows.ring(run)
        flows.park(run, Parked("mismatch", "differs"), "b1")
        assert [flows.unpark(definition=definition, build=build) for build in ("b1", "b3", "b2")] == [0, 0, 1]

    def test_runs_that_a_build_may_try_are_found_behind_others(self, flows: Flows) -> None:
        runs = [flows.start() for _ in range(4)]
        for run, build in zip(runs, ("b1", "b1", "b1", "b2"), strict=True):
            flows.park(run, Parked("defect", "no"), build)
        definition = ("default", "order", "1")
        assert flows.unpark(definition=definition, build="b1", limit=1) == 1
        assert flows.list(parked=True) == runs[2::-1]
        assert flows.unpark(definition=definition, build="b2", limit=2) == 2

    def test_all_parked_runs_go_on_in_steps(self, flows: Flows) -> None:
        runs = [flows.start() for _ in range(5)]
        for number, run in enumerate(runs):
            flows.park(run, Parked("defect", "no"), f"b{number % 2}")
        assert flows.list(parked=True) == runs[::-1]
        assert [flows.unpark(limit=3) for _ in range(3)] == [3, 2, 0]
        assert flows.list(parked=True) == []

    def test_a_parked_run_is_closed_by_its_timeout(self, flows: Flows) -> None:
        run = flows.start()
        flows.park(run, Parked("defect", "no"))
        flows.now_us += 86_400 * SECOND
        flows.ring(run)
        assert flows.status(run) is Status.TIMED_OUT
        assert flows.store.read(ops.CountParked()) == {}
