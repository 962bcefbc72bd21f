"""Lean histories: the events of each feature, transaction by transaction. These orders are kept for ever."""

from __future__ import annotations

from tests.unit.workflows.drafts import Run, ended

from mainspring.workflows.model import Status
from mainspring.workflows.requests import CompleteWorkflowExecution, ScheduleActivityTask, StartTimer

DAY = 86_400


def test_a_run_event_by_event() -> None:
    """The run of the explanation: an activity, a sleep of three days, an activity, the end."""
    run = Run()
    assert run.recorded == ["1 WorkflowExecutionStarted", "2 DecisionTaskScheduled"]
    run.decide(ScheduleActivityTask(1, "1", b"charge"))
    assert run.recorded == ["3 DecisionTaskStarted", "4 DecisionTaskCompleted", "5 ActivityTaskScheduled"]
    run.fuse(StartTimer(2, "2", 3 * DAY), ends=[ended(1001)])
    assert run.recorded == [
        "6 ActivityTaskStarted",
        "7 ActivityTaskCompleted",
        "8 DecisionTaskScheduled",
        "9 DecisionTaskStarted",
        "10 DecisionTaskCompleted",
        "11 TimerStarted",
    ]
    run.ring(3 * DAY)
    assert run.recorded == ["12 TimerFired", "13 DecisionTaskScheduled"]
    run.decide(ScheduleActivityTask(3, "3", b"ship"))
    assert run.recorded == ["14 DecisionTaskStarted", "15 DecisionTaskCompleted", "16 ActivityTaskScheduled"]
    run.fuse(CompleteWorkflowExecution(4, b"done"), ends=[ended(1002)])
    assert run.recorded == [
        "17 ActivityTaskStarted",
        "18 ActivityTaskCompleted",
        "19 DecisionTaskScheduled",
        "20 DecisionTaskStarted",
        "21 DecisionTaskCompleted",
        "22 WorkflowExecutionCompleted",
    ]
    assert run.state.status == Status.COMPLETED
