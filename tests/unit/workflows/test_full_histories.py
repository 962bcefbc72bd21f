"""Full histories: the events as Amazon SWF orders and numbers them. These orders are kept for ever.

Sources, of which only the orders of events are used:

- traffic of 2013 of a workflow ``Sum`` with the activities ``PingWorker`` and ``Sum2a``, which circulates as a fixture of Python
  clients of SWF: two activities end while a decision runs, a close is refused
- the histories that glenbraun/FsDecider has recorded from SWF for its tests (UnitTests/Test*.fs)
- AWS's reference of GetWorkflowExecutionHistory and of PollForDecisionTask, with their examples
- AWS's developer guide, "Amazon SWF Timeout Types"; getmoto/moto's model for the order of timeouts

A line has an event's number, its name, and the events that it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.unit.workflows.drafts import BEGIN, SECOND, Run

from mainspring.workflows import (
    draft,
    execution,
    history,
    other_runs,
)
from mainspring.workflows.history import ChildPolicy
from mainspring.workflows.model import Limits, Status, due_us
from mainspring.workflows.requests import (
    CancelTimer,
    CancelWorkflowExecution,
    CompleteWorkflowExecution,
    ContinueAsNewWorkflowExecution,
    RecordMarker,
    RequestCancelActivityTask,
    RequestCancelExternalWorkflowExecution,
    ScheduleActivityTask,
    ScheduleLambdaFunction,
    SignalExternalWorkflowExecution,
    StartChildWorkflowExecution,
    StartTimer,
)

if TYPE_CHECKING:
    from mainspring.workflows.history import Event

NAMED = ("scheduled", "started", "initiated", "decision_completed", "cancel_requested", "timeout", "cause")
DONE = CompleteWorkflowExecution(0, b"TEST PASS")


def line(event: Event) -> str:
    names = [name for name in NAMED if name in event.__struct_fields__]
    values = [f"{name}={getattr(event, name)}" for name in names if getattr(event, name)]
    return " ".join([str(event.id), type(event).__name__, *values])


def full_run(**attributes: Any) -> Run:
    """Return a run that is begun, with its first decision task started."""
    run = Run(full=True, task_list="main", task_timeout=600, **attributes)
    poll(run)
    return run


def poll(run: Run, identity: str = "decider") -> bool:
    started: bool = run.do(draft.start_full_decision, run.state.scheduled, identity)
    return started


def start(run: Run, scheduled: int) -> bool:
    started: bool = run.do(draft.start_full_activity, scheduled, "worker")
    return started


def end(run: Run, kind: type[Event], scheduled: int, **attributes: object) -> bool:
    activity = run.state.activities.get(scheduled)
    started = 0 if activity is None else activity.started
    ended: bool = run.do(draft.close_full_activity, kind, scheduled, started, **attributes)
    return ended


def activity(activity_id: str, **attributes: float) -> ScheduleActivityTask:
    return ScheduleActivityTask(0, activity_id, b"Sum", "1", b"", "main", **attributes)  # type: ignore[arg-type]


def assert_history(run: Run, expected: str) -> None:
    assert [line(event) for event in run.events] == [text.strip() for text in expected.strip().splitlines()]


def test_the_traffic_of_sum() -> None:
    run = full_run()
    run.decide_full(activity("PingWorker"), activity("Sum2a"))
    start(run, 5)
    start(run, 6)
    end(run, history.ActivityTaskCompleted, 5)
    poll(run)
    end(run, history.ActivityTaskCompleted, 6)
    run.decide_full(activity("Sum2a"))
    poll(run)
    start(run, 15)
    end(run, history.ActivityTaskCompleted, 15)
    run.decide_full(DONE)
    assert run.state.previous_started == 16
    poll(run)
    assert_history(
        run,
        """
        1 WorkflowExecutionStarted
        2 DecisionTaskScheduled
        3 DecisionTaskStarted scheduled=2
        4 DecisionTaskCompleted scheduled=2 started=3
        5 ActivityTaskScheduled decision_completed=4
        6 ActivityTaskScheduled decision_completed=4
        7 ActivityTaskStarted scheduled=5
        8 ActivityTaskStarted scheduled=6
        9 ActivityTaskCompleted scheduled=5 started=7
        10 DecisionTaskScheduled
        11 DecisionTaskStarted scheduled=10
        12 ActivityTaskCompleted scheduled=6 started=8
        13 DecisionTaskScheduled
        14 DecisionTaskCompleted scheduled=10 started=11
        15 ActivityTaskScheduled decision_completed=14
        16 DecisionTaskStarted scheduled=13
        17 ActivityTaskStarted scheduled=15
        18 ActivityTaskCompleted scheduled=15 started=17
        19 DecisionTaskScheduled
        20 DecisionTaskCompleted scheduled=13 started=16
        21 CompleteWorkflowExecutionFailed decision_completed=20 cause=UNHANDLED_DECISION
        22 DecisionTaskStarted scheduled=19
        """,
    )


def test_a_signal_while_a_decision_runs() -> None:
    """DecisionTaskStarted, WorkflowExecutionSignaled, DecisionTaskScheduled, DecisionTaskCompleted, DecisionTaskStarted."""
    run = full_run()
    run.signal()
    run.signal()
    run.decide_full()
    poll(run)
    assert_history(
        run,
        """
        1 WorkflowExecutionStarted
        2 DecisionTaskScheduled
        3 DecisionTaskStarted scheduled=2
        4 WorkflowExecutionSignaled
        5 DecisionTaskScheduled
        6 WorkflowExecutionSignaled
        7 DecisionTaskCompleted scheduled=2 started=3
        8 DecisionTaskStarted scheduled=5
        """,
    )


def test_cancel_requested_of_a_started_activity() -> None:
    """FsDecider, RequestCancelActivityTask, "CancelRequested"."""
    run = full_run()
    run.decide_full(activity("a"))
    start(run, 5)
    run.signal()
    poll(run)
    run.decide_full(RequestCancelActivityTask(0, "a"))
    run.signal()
    poll(run)
    run.decide_full(DONE)
    assert_history(
        run,
        """
        1 WorkflowExecutionStarted
        2 DecisionTaskScheduled
        3 DecisionTaskStarted scheduled=2
        4 DecisionTaskCompleted scheduled=2 started=3
        5 ActivityTaskScheduled decision_completed=4
        6 ActivityTaskStarted scheduled=5
        7 WorkflowExecutionSignaled
        8 DecisionTaskScheduled
        9 DecisionTaskStarted scheduled=8
        10 DecisionTaskCompleted scheduled=8 started=9
        11 ActivityTaskCancelRequested decision_completed=10
        12 WorkflowExecutionSignaled
        13 DecisionTaskScheduled
        14 DecisionTaskStarted scheduled=13
        15 DecisionTaskCompleted scheduled=13 started=14
        16 WorkflowExecutionCompleted decision_completed=15
        """,
    )


def test_cancel_of_an_unknown_activity() -> None:
    """FsDecider, RequestCancelActivityTask, "RequestCancelFailed": a refused decision asks for the next task."""
    run = full_run()
    run.decide_full(RequestCancelActivityTask(0, "x"))
    poll(run)
    run.decide_full(DONE)
    assert_history(
        run,
        """
        1 WorkflowExecutionStarted
        2 DecisionTaskScheduled
        3 DecisionTaskStarted scheduled=2
        4 DecisionTaskCompleted scheduled=2 started=3
        5 RequestCancelActivityTaskFailed decision_completed=4 cause=ACTIVITY_ID_UNKNOWN
        6 DecisionTaskScheduled
        7 DecisionTaskStarted scheduled=6
        8 DecisionTaskCompleted scheduled=6 started=7
        9 WorkflowExecutionCompleted decision_completed=8
        """,
    )


def test_cancel_of_an_unstarted_activity() -> None:
    """Developer guide: Canceled without a started event. It comes after the whole list of decisions."""
    run = full_run()
    run.decide_full(activity("a"))
    run.signal()
    poll(run)
    run.decide_full(RequestCancelActivityTask(0, "a"), StartTimer(0, "t", 5))
    poll(run)
    assert_history(
        run,
        """
        1 WorkflowExecutionStarted
        2 DecisionTaskScheduled
        3 DecisionTaskStarted scheduled=2
        4 DecisionTaskCompleted scheduled=2 started=3
        5 ActivityTaskScheduled decision_completed=4
        6 WorkflowExecutionSignaled
        7 DecisionTaskScheduled
        8 DecisionTaskStarted scheduled=7
        9 DecisionTaskCompleted scheduled=7 started=8
        10 ActivityTaskCancelRequested decision_completed=9
        11 TimerStarted decision_completed=9
        12 ActivityTaskCanceled scheduled=5 cancel_requested=10
        13 DecisionTaskScheduled
        14 DecisionTaskStarted scheduled=13
        """,
    )


def test_schedule_to_start() -> None:
    """FsDecider, RequestCancelActivityTask, "ActivityFinished": a signal finds the task scheduled."""
    run = full_run()
    run.decide_full(activity("a", schedule_to_start=5))
    run.ring(6)
    run.signal()
    poll(run)
    run.decide_full(DONE)
    assert_history(
        run,
        """
        1 WorkflowExecutionStarted
        2 DecisionTaskScheduled
        3 DecisionTaskStarted scheduled=2
        4 DecisionTaskCompleted scheduled=2 started=3
        5 ActivityTaskScheduled decision_completed=4
        6 ActivityTaskTimedOut scheduled=5 timeout=SCHEDULE_TO_START
        7 DecisionTaskScheduled
        8 WorkflowExecutionSignaled
        9 DecisionTaskStarted scheduled=7
        10 DecisionTaskCompleted scheduled=7 started=9
        11 WorkflowExecutionCompleted decision_completed=10
        """,
    )


def test_a_decider_that_does_not_answer() -> None:
    """AWS's example of GetWorkflowExecutionHistory: the task times out after 600 s, and a new one is scheduled at once."""
    run = full_run()
    run.ring(600)
    assert due_us(run.state) == run.state.close_by_us
    poll(run)
    run.decide_full(activity("verification-27"))
    assert_history(
        run,
        """
        1 WorkflowExecutionStarted
        2 DecisionTaskScheduled
        3 DecisionTaskStarted scheduled=2
        4 DecisionTaskTimedOut scheduled=2 started=3 timeout=START_TO_CLOSE
        5 DecisionTaskScheduled
        6 DecisionTaskStarted scheduled=5
        7 DecisionTaskCompleted scheduled=5 started=6
        8 ActivityTaskScheduled decision_completed=7
        """,
    )
    assert run.events[3].at_us == run.events[4].at_us == BEGIN + 600 * SECOND


def test_a_decision_that_comes_too_late() -> None:
    run = full_run()
    run.signal()
    run.ring(600)
    assert run.recorded == ["6 DecisionTaskTimedOut"], "the task behind it is next"
    assert run.decide_full(DONE).verdict == "stale"
    poll(run)
    assert run.do(draft.start_full_decision, 5) is False, "late but harmless"
    assert run.decide_full(DONE).verdict == "recorded"


def test_a_named_list_that_nobody_polls() -> None:
    """PollForDecisionTask of a decider's own list: after schedule-to-start the task returns to the default list."""
    run = Run(full=True, task_list="main", task_timeout=600)
    run.do(lambda draft: draft.record(history.DecisionTaskStarted, scheduled=2))
    run.decide_full()
    run.do(lambda draft: draft.record(history.DecisionTaskScheduled, task_list="sticky", schedule_to_start=10))
    run.ring(10)
    assert [line(event) for event in run.last_draft.events] == [
        "6 DecisionTaskTimedOut scheduled=5 timeout=SCHEDULE_TO_START",
        "7 DecisionTaskScheduled",
    ]
    assert run.events[-1].task_list == "main"  # type: ignore[attr-defined]


def test_timers() -> None:
    """FsDecider, CancelTimer, "Canceled", and "Fired"."""
    run = full_run()
    run.decide_full(StartTimer(0, "timer1", 8_640_000), StartTimer(0, "timer2", 2))
    run.ring(2)
    poll(run)
    run.decide_full(CancelTimer(0, "timer1"), StartTimer(0, "timer2", 7), CancelTimer(0, "x"))
    assert_history(
        run,
        """
        1 WorkflowExecutionStarted
        2 DecisionTaskScheduled
        3 DecisionTaskStarted scheduled=2
        4 DecisionTaskCompleted scheduled=2 started=3
        5 TimerStarted decision_completed=4
        6 TimerStarted decision_completed=4
        7 TimerFired started=6
        8 DecisionTaskScheduled
        9 DecisionTaskStarted scheduled=8
        10 DecisionTaskCompleted scheduled=8 started=9
        11 TimerCanceled started=5 decision_completed=10
        12 TimerStarted decision_completed=10
        13 CancelTimerFailed decision_completed=10 cause=TIMER_ID_UNKNOWN
        14 DecisionTaskScheduled
        """,
    )


CHILD = StartChildWorkflowExecution(0, "child", "order", "1", child_policy=ChildPolicy.ABANDON)


def test_a_child() -> None:
    """FsDecider, WaitForChildWorkflowExecution, "Completed": the child's end finds the task scheduled."""
    run = full_run()
    run.decide_full(CHILD)
    run.do(other_runs.child_started, 5, type="order", version="1")
    run.do(other_runs.child_ended, 5, history.ChildWorkflowExecutionCompleted, type="order", version="1", result=b"OK")
    poll(run)
    run.decide_full(DONE)
    assert_history(
        run,
        """
        1 WorkflowExecutionStarted
        2 DecisionTaskScheduled
        3 DecisionTaskStarted scheduled=2
        4 DecisionTaskCompleted scheduled=2 started=3
        5 StartChildWorkflowExecutionInitiated decision_completed=4
        6 ChildWorkflowExecutionStarted initiated=5
        7 DecisionTaskScheduled
        8 ChildWorkflowExecutionCompleted started=6 initiated=5
        9 DecisionTaskStarted scheduled=7
        10 DecisionTaskCompleted scheduled=7 started=9
        11 WorkflowExecutionCompleted decision_completed=10
        """,
    )
    assert run.events[7].run == run.events[4].run == 1001  # type: ignore[attr-defined]


def test_a_child_whose_id_is_in_use() -> None:
    run = full_run(limits=Limits(open_children=1))
    run.decide_full(CHILD, StartChildWorkflowExecution(0, "second", "order", "1"))
    assert [line(event) for event in run.last_draft.events[1:]] == [
        "5 StartChildWorkflowExecutionInitiated decision_completed=4",
        "6 StartChildWorkflowExecutionFailed decision_completed=4 cause=OPEN_CHILDREN_LIMIT_EXCEEDED",
        "7 DecisionTaskScheduled",
    ]
    in_use = {"decision_completed": 4, "cause": "WORKFLOW_ALREADY_RUNNING"}
    assert run.do(other_runs.child_refused, 5, type="order", version="1", **in_use)
    assert [line(event) for event in run.last_draft.events] == [
        "8 StartChildWorkflowExecutionFailed initiated=5 decision_completed=4 cause=WORKFLOW_ALREADY_RUNNING"
    ]
    assert not run.do(other_runs.child_refused, 5, type="order", version="1", **in_use), "late but harmless"
    assert not run.do(other_runs.child_started, 5, type="order", version="1")
    assert not run.do(other_runs.child_ended, 5, history.ChildWorkflowExecutionFailed, type="order", version="1")


def test_a_signal_to_another_run_and_its_answer() -> None:
    """FsDecider, SignalExternalWorkflowExecution: always initiated; the answer asks for a decision."""
    run = full_run()
    run.decide_full(
        SignalExternalWorkflowExecution(0, "other", "Test Signal"), RequestCancelExternalWorkflowExecution(0, "other")
    )
    run.do(other_runs.external_answered, 5, history.ExternalWorkflowExecutionSignaled, workflow_id="other", run=8)
    unknown = {"workflow_id": "other", "run": 8, "cause": "UNKNOWN_EXTERNAL_WORKFLOW_EXECUTION"}
    failed = history.RequestCancelExternalWorkflowExecutionFailed
    run.do(other_runs.external_answered, 6, failed, decision_completed=4, **unknown)
    assert not run.do(other_runs.external_answered, 6, failed, decision_completed=4, **unknown)
    assert_history(
        run,
        """
        1 WorkflowExecutionStarted
        2 DecisionTaskScheduled
        3 DecisionTaskStarted scheduled=2
        4 DecisionTaskCompleted scheduled=2 started=3
        5 SignalExternalWorkflowExecutionInitiated decision_completed=4
        6 RequestCancelExternalWorkflowExecutionInitiated decision_completed=4
        7 ExternalWorkflowExecutionSignaled initiated=5
        8 DecisionTaskScheduled
        9 RequestCancelExternalWorkflowExecutionFailed initiated=6 decision_completed=4 cause=UNKNOWN_EXTERNAL_WORKFLOW_EXECUTION
        """,
    )


def test_a_lambda_function_is_refused() -> None:
    run = full_run()
    run.decide_full(RecordMarker(0, "m"), ScheduleLambdaFunction(0, "a", "f"))
    assert [line(event) for event in run.last_draft.events] == [
        "4 DecisionTaskCompleted scheduled=2 started=3",
        "5 MarkerRecorded decision_completed=4",
        "6 ScheduleLambdaFunctionFailed decision_completed=4 cause=LAMBDA_SERVICE_NOT_AVAILABLE_IN_REGION",
        "7 DecisionTaskScheduled",
    ]


def test_timeouts_of_activities() -> None:
    """moto's order: the earliest, then another look."""
    run = full_run()
    run.decide_full(
        activity("beats", heartbeat=5),
        activity("runs", start_to_close=7),
        activity("both", schedule_to_close=9, start_to_close=9),
        StartTimer(0, "t", 7),
    )
    for scheduled in (5, 6, 7):
        start(run, scheduled)
    run.ring(9)
    assert [line(event) for event in run.last_draft.events] == [
        "12 ActivityTaskTimedOut scheduled=5 started=9 timeout=HEARTBEAT",
        "13 DecisionTaskScheduled",
        "14 ActivityTaskTimedOut scheduled=6 started=10 timeout=START_TO_CLOSE",
        "15 TimerFired started=8",
        "16 ActivityTaskTimedOut scheduled=7 started=11 timeout=SCHEDULE_TO_CLOSE",
    ]
    assert not end(run, history.ActivityTaskCompleted, 5), "late but harmless"
    assert not start(run, 5)


def test_a_decision_and_the_run_time_out_together() -> None:
    run = full_run(timeout=600)
    run.ring(600)
    assert run.recorded == ["4 WorkflowExecutionTimedOut"]
    assert run.state.status == Status.TIMED_OUT


def test_ends_of_a_run() -> None:
    canceled = full_run()
    canceled.do(execution.request_cancel)
    poll(canceled)
    canceled.decide_full(CancelWorkflowExecution(0))
    poll(canceled)
    canceled.decide_full(CancelWorkflowExecution(0))
    assert_history(
        canceled,
        """
        1 WorkflowExecutionStarted
        2 DecisionTaskScheduled
        3 DecisionTaskStarted scheduled=2
        4 WorkflowExecutionCancelRequested
        5 DecisionTaskScheduled
        6 DecisionTaskCompleted scheduled=2 started=3
        7 CancelWorkflowExecutionFailed decision_completed=6 cause=UNHANDLED_DECISION
        8 DecisionTaskStarted scheduled=5
        9 DecisionTaskCompleted scheduled=5 started=8
        10 WorkflowExecutionCanceled decision_completed=9
        """,
    )
    chain = full_run()
    chain.decide_full(ContinueAsNewWorkflowExecution(0, b"2"))
    event = chain.events[-1]
    assert isinstance(event, history.WorkflowExecutionContinuedAsNew)
    assert (event.new_run, event.type, event.version, event.task_list) == (1001, "order", "1", "main")
    assert chain.state.status == Status.CONTINUED_AS_NEW
