"""Timers and timeouts of lean runs: the earliest first."""

from __future__ import annotations

from tests.unit.workflows.drafts import BEGIN, SECOND, Run, ended

from mainspring.workflows import history
from mainspring.workflows.history import TimeoutType
from mainspring.workflows.model import Limits, Status, due_us
from mainspring.workflows.requests import CancelTimer, ScheduleActivityTask, StartTimer
from mainspring.workflows.timeouts import unstarted_jobs


def test_nothing_is_due_before_its_time() -> None:
    run = Run()
    run.decide(StartTimer(1, "1", 5))
    assert due_us(run.state) == BEGIN + 5 * SECOND
    run.ring(4.999999)
    assert run.recorded == []
    run.ring(0.000001)
    assert run.recorded == ["6 TimerFired", "7 DecisionTaskScheduled"]
    run.ring()
    assert run.recorded == [], "it fires once"


def test_a_cancelled_timer_does_not_fire() -> None:
    run = Run(timeout=60)
    run.decide(StartTimer(1, "1", 5), StartTimer(2, "2", 6), CancelTimer(3, "1"))
    assert due_us(run.state) == BEGIN + 6 * SECOND
    run.decide(CancelTimer(4, "2"))
    assert run.decide().verdict == "stale"
    run.signal()
    run.decide(CancelTimer(4, "2"))
    assert due_us(run.state) == BEGIN + 60 * SECOND, "the execution timeout is left"


def test_the_earliest_fires_first() -> None:
    run = Run()
    run.decide(StartTimer(1, "late", 9), StartTimer(2, "early", 3), StartTimer(3, "not yet", 11))
    run.ring(10)
    fired = [event.timer_id for event in run.last_draft.events if isinstance(event, history.TimerFired)]
    assert fired == ["early", "late"]
    assert run.recorded[-1] == "10 TimerFired", "one task for both"


def test_timers_of_one_time_fire_in_the_order_of_their_starts() -> None:
    run = Run()
    run.decide(*(StartTimer(n, name, 3) for n, name in enumerate("zab", 1)))
    run.ring(3)
    fired = [event.timer_id for event in run.last_draft.events if isinstance(event, history.TimerFired)]
    assert fired == ["z", "a", "b"]


def test_the_execution_timeout_closes_the_run() -> None:
    run = Run(timeout=5)
    run.decide(ScheduleActivityTask(1, "1", b"f"), StartTimer(2, "2", 7))
    run.ring(10)
    assert run.recorded == ["7 WorkflowExecutionTimedOut"]
    assert run.state.status == Status.TIMED_OUT
    assert run.last_draft.withdrawn == [1001]
    assert due_us(run.state, run.parking) == 0


def test_a_timer_before_the_execution_timeout_fires_first() -> None:
    run = Run(timeout=5)
    run.decide(StartTimer(2, "2", 4))
    run.ring(10)
    assert run.recorded == ["6 TimerFired", "7 DecisionTaskScheduled", "8 WorkflowExecutionTimedOut"]


def test_ties_come_in_the_order_of_the_table() -> None:
    run = Run(timeout=6)
    run.decide(
        StartTimer(1, "t", 5),
        ScheduleActivityTask(2, "start", b"f", schedule_to_start=5),
        ScheduleActivityTask(3, "close", b"f", schedule_to_close=5),
        ScheduleActivityTask(4, "both", b"f", schedule_to_close=5, schedule_to_start=5),
    )
    run.ring(5)
    assert [type(event).__name__ for event in run.last_draft.events] == [
        "ActivityTaskTimedOut",
        "DecisionTaskScheduled",
        "ActivityTaskTimedOut",
        "ActivityTaskTimedOut",
        "TimerFired",
    ]
    ends = [event for event in run.last_draft.events if isinstance(event, history.ActivityTaskTimedOut)]
    assert [(event.scheduled, event.timeout) for event in ends] == [
        (7, TimeoutType.SCHEDULE_TO_CLOSE),
        (8, TimeoutType.SCHEDULE_TO_CLOSE),
        (6, TimeoutType.SCHEDULE_TO_START),
    ]
    assert sorted(run.last_draft.withdrawn) == [1001, 1002, 1003]


def test_the_execution_timeout_comes_before_all_others_of_its_time() -> None:
    run = Run(timeout=5)
    run.decide(StartTimer(1, "t", 5), ScheduleActivityTask(2, "a", b"f", schedule_to_close=5))
    run.ring(5)
    assert run.recorded == ["7 WorkflowExecutionTimedOut"]


def test_schedule_to_start_is_over_once_a_worker_has_the_job() -> None:
    run = Run()
    run.decide(ScheduleActivityTask(1, "1", b"f", schedule_to_start=5, schedule_to_close=60))
    assert unstarted_jobs(run.state, run.now_us) == []
    assert unstarted_jobs(run.state, run.now_us + 5 * SECOND) == [1001]
    run.ring(5, started=[1001])
    assert run.recorded == ["6 ActivityTaskStarted"]
    assert due_us(run.state) == BEGIN + 60 * SECOND
    assert unstarted_jobs(run.state, run.now_us) == []
    run.end(ended(1001))
    assert run.recorded == ["7 ActivityTaskCompleted", "8 DecisionTaskScheduled"], "it is started once"


def test_schedule_to_close_lasts_over_all_attempts() -> None:
    run = Run()
    run.decide(ScheduleActivityTask(1, "1", b"f", schedule_to_start=5, schedule_to_close=60))
    run.ring(60, started=[1001])
    assert run.recorded == [
        "6 ActivityTaskStarted",
        "7 ActivityTaskTimedOut",
        "8 DecisionTaskScheduled",
    ]
    timed_out = run.last_draft.events[1]
    assert isinstance(timed_out, history.ActivityTaskTimedOut)
    assert (timed_out.started, timed_out.timeout) == (6, TimeoutType.SCHEDULE_TO_CLOSE)
    assert run.last_draft.withdrawn == [1001]


def test_a_run_keeps_no_time_of_an_ended_activity() -> None:
    run = Run(timeout=60)
    run.decide(ScheduleActivityTask(1, "1", b"f", schedule_to_start=5))
    run.end(ended(1001))
    assert due_us(run.state) == BEGIN + 60 * SECOND
    assert not run.state.deadlines


def test_timers_stop_where_the_history_is_full() -> None:
    run = Run(limits=Limits(events=20))
    run.decide(*(StartTimer(n, str(n), 1) for n in range(5)))
    for _ in range(4):
        run.decide(seen=2)
    run.limits = Limits(events=12)
    run.ring(2)
    assert run.recorded == ["10 TimerFired", "11 DecisionTaskScheduled", "12 WorkflowExecutionTerminated"]
