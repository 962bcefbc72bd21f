"""The guards of completions, and the order of what they record."""

from __future__ import annotations

import pytest
from tests.unit.workflows.drafts import JOB, SECOND, Run, ended

from mainspring.jobs.model import Options, encode_options
from mainspring.workflows import execution, history
from mainspring.workflows.activities import activity_ended
from mainspring.workflows.draft import fold
from mainspring.workflows.execution import complete
from mainspring.workflows.model import Key, Limits, Parked, Status
from mainspring.workflows.requests import (
    CancelTimer,
    CancelWorkflowExecution,
    CompleteWorkflowExecution,
    Completion,
    ContinueAsNewWorkflowExecution,
    DecisionBase,
    FailWorkflowExecution,
    RecordMarker,
    RequestCancelActivityTask,
    ScheduleActivityTask,
    ScheduleLambdaFunction,
    Signal,
    SignalExternalWorkflowExecution,
    StartChildWorkflowExecution,
    StartTimer,
    StepResult,
    StepRetry,
)

CHARGE = ScheduleActivityTask(1, "1", b"charge")
DONE = CompleteWorkflowExecution(2, b"done")


def step(number: int, batch: int = 1, digest: int = 5, result: bytes = b"1") -> StepResult:
    return StepResult(number, batch, "price", result, digest)


# ---- seen ----


def test_a_signal_behind_a_decision_asks_for_the_next_one() -> None:
    run = Run()
    run.signal()
    assert run.recorded == ["3 WorkflowExecutionSignaled"], "the task that is scheduled will have it"
    run.decide(CHARGE, seen=2)
    assert run.recorded[-2:] == ["6 ActivityTaskScheduled", "7 DecisionTaskScheduled"]


def test_a_close_with_unseen_events_is_refused_and_the_rest_stands() -> None:
    run = Run()
    run.signal()
    ruling = run.decide(CHARGE, DONE, seen=2)
    assert ruling.verdict == "recorded"
    assert ruling.refused_close
    assert run.recorded == [
        "4 DecisionTaskStarted",
        "5 DecisionTaskCompleted",
        "6 ActivityTaskScheduled",
        "7 CompleteWorkflowExecutionFailed",
        "8 DecisionTaskScheduled",
    ]
    assert run.state.status == Status.OPEN
    assert not run.decide(DONE).refused_close
    assert run.state.status == Status.COMPLETED


@pytest.mark.parametrize(
    ("decision", "kind"),
    [
        (DONE, history.CompleteWorkflowExecutionFailed),
        (FailWorkflowExecution(1, "no"), history.FailWorkflowExecutionFailed),
        (CancelWorkflowExecution(1), history.CancelWorkflowExecutionFailed),
    ],
)
def test_each_close_has_its_refusal(decision: CompleteWorkflowExecution, kind: type[history.Event]) -> None:
    run = Run()
    run.signal()
    run.decide(decision, seen=2)
    refused = run.events[-2]
    assert type(refused) is kind
    assert refused.cause == "UNHANDLED_DECISION"  # type: ignore[attr-defined]


def test_a_decision_that_another_decider_has_made_is_stale() -> None:
    run = Run()
    run.decide(CHARGE)
    run.signal()
    events = len(run.events)
    late = run.decide(StartTimer(1, "t", 1), seen=2)
    assert late.verdict == "stale"
    assert "not open" in late.why
    assert len(run.events) == events
    run.decide()
    assert run.decide(StartTimer(1, "t", 1)).verdict == "stale", "no task is open"


def test_a_decider_cannot_have_seen_events_that_do_not_exist() -> None:
    run = Run()
    assert run.decide(CHARGE, seen=3).verdict == "stale"


def test_the_completed_decision_has_seen_and_time() -> None:
    run = Run()
    run.signal()
    run.decide(seen=2, now_us=99, batch=3, identity="w1")
    completed = run.last_draft.events[1]
    assert isinstance(completed, history.DecisionTaskCompleted)
    assert (completed.seen, completed.now_us, completed.batch) == (2, 99, 3)
    assert run.state.decided_us == 99
    assert run.last_draft.events[0].identity == "w1"  # type: ignore[attr-defined]


# ---- fused ----


def fused() -> Run:
    run = Run()
    run.decide(CHARGE)
    return run


def test_a_fused_decision_includes_the_end_that_it_brings() -> None:
    run = fused()
    assert run.fuse(DONE, ends=[ended(1001)]).verdict == "recorded"
    completed = next(event for event in run.last_draft.events if isinstance(event, history.DecisionTaskCompleted))
    assert completed.seen == 8, "the end is event 7, and 8 asks for the decision"


def test_a_fused_decision_with_two_ends() -> None:
    run = Run()
    run.decide(CHARGE, ScheduleActivityTask(2, "2", b"charge"))
    assert run.fuse(DONE, ends=[ended(1002), ended(1001)]).verdict == "recorded"


def test_a_signal_overtakes_a_fused_decision() -> None:
    run = fused()
    seen = run.state.last
    run.signal()
    ruling = run.fuse(DONE, ends=[ended(1001)], seen=seen)
    assert ruling.verdict == "stale"
    assert run.recorded == ["8 ActivityTaskStarted", "9 ActivityTaskCompleted"], "the settlement stands"


def test_a_signal_of_the_same_transaction_overtakes_a_fused_decision() -> None:
    run = fused()
    draft = run.draft()
    execution.signal(draft, Signal(Key(run=17), "approved", b""))
    activity_ended(draft, 5, ended(1001))
    assert complete(draft, Completion(17, seen=5, decisions=[DONE], settled=[1001])).verdict == "stale"


def test_another_worker_s_end_of_the_same_transaction_overtakes_a_fused_decision() -> None:
    run = Run()
    run.decide(CHARGE, ScheduleActivityTask(2, "2", b"charge"))
    draft = run.draft()
    activity_ended(draft, 5, ended(1001))
    activity_ended(draft, 6, ended(1002))
    assert complete(draft, Completion(17, seen=6, decisions=[DONE], settled=[1001])).verdict == "stale"


def test_a_fused_decision_whose_activity_has_closed_otherwise_is_stale() -> None:
    run = Run()
    run.decide(ScheduleActivityTask(1, "1", b"charge", schedule_to_close=1))
    run.ring(2)
    ruling = run.fuse(DONE, ends=[ended(1001)], seen=5)
    assert ruling.verdict == "stale"
    run.decide()
    assert run.fuse(DONE, ends=[ended(1001)]).why == "an activity has closed otherwise"


def test_a_fused_decision_needs_an_end() -> None:
    run = fused()
    assert run.fuse(DONE, ends=[]).verdict == "stale"


def test_a_fused_decision_is_stale_while_a_decision_task_is_open() -> None:
    run = fused()
    run.signal()
    assert run.fuse(DONE, ends=[ended(1001)]).why == "a decision task is open"


def test_a_fused_decision_that_goes_on_asks_for_a_task_of_its_own() -> None:
    run = fused()
    assert run.fuse(ends=[ended(1001)], more=True).verdict == "recorded"
    assert run.recorded == ["6 ActivityTaskStarted", "7 ActivityTaskCompleted", "8 DecisionTaskScheduled"]
    assert run.decide(steps=[step(1)], more=True).verdict == "recorded"
    assert run.recorded == ["9 DecisionTaskStarted", "10 MarkerRecorded"]


def test_a_fused_decision_that_goes_on_with_decisions_completes_the_task() -> None:
    run = fused()
    run.fuse(StartTimer(2, "2", 60), ends=[ended(1001)], more=True)
    assert run.recorded[3:] == [
        "9 DecisionTaskStarted",
        "10 DecisionTaskCompleted",
        "11 TimerStarted",
        "12 DecisionTaskScheduled",
    ]


def test_a_fused_decision_has_no_steps() -> None:
    run = fused()
    ruling = run.fuse(ends=[ended(1001)], steps=[step(1)])
    assert ruling.verdict == "refused"
    assert "needs a decision task" in ruling.why


# ---- steps ----


def test_a_step_is_one_event_after_the_first() -> None:
    run = Run()
    run.decide(steps=[step(1)], more=True, now_us=50)
    assert run.recorded == ["3 DecisionTaskStarted", "4 MarkerRecorded"]
    run.decide(steps=[step(2, batch=2)], more=True, seen=2)
    assert run.recorded == ["5 MarkerRecorded"]
    first = run.events[3]
    assert isinstance(first, history.MarkerRecorded)
    assert (first.seen, first.now_us, first.batch, first.native, first.name) == (2, 50, 1, True, "step")
    run.decide(DONE, seen=2, steps=[step(3, batch=3), step(4, batch=3)], batch=3)
    assert run.recorded == [
        "6 MarkerRecorded",
        "7 MarkerRecorded",
        "8 DecisionTaskCompleted",
        "9 WorkflowExecutionCompleted",
    ]


def test_commands_while_a_step_runs_begin_a_new_decision() -> None:
    run = Run()
    run.decide(StartTimer(1, "1", 60), more=True)
    assert run.recorded == [
        "3 DecisionTaskStarted",
        "4 DecisionTaskCompleted",
        "5 TimerStarted",
        "6 DecisionTaskScheduled",
    ]
    run.decide(steps=[step(1)], more=True)
    assert run.recorded == ["7 DecisionTaskStarted", "8 MarkerRecorded"]


def test_newer_events_complete_a_decision_that_goes_on() -> None:
    run = Run()
    run.decide(steps=[step(1)], more=True)
    run.signal()
    assert run.recorded == ["5 WorkflowExecutionSignaled", "6 DecisionTaskScheduled"], "behind the started one"
    run.signal()
    assert run.recorded == ["7 WorkflowExecutionSignaled"], "not a third one"
    run.decide(steps=[step(2, batch=2)], more=True, seen=2)
    assert run.recorded == ["8 MarkerRecorded", "9 DecisionTaskCompleted"]
    assert (run.state.scheduled, run.state.started, run.state.waiting) == (6, 0, 0)
    assert not run.state.steps


def test_nothing_is_recorded_if_a_decider_only_goes_on() -> None:
    run = Run()
    assert run.decide(more=True).verdict == "recorded"
    assert run.recorded == []


def test_a_step_that_is_recorded_already_is_skipped() -> None:
    run = Run()
    run.decide(steps=[step(1)], more=True)
    assert run.decide(steps=[step(1), step(2, batch=2)], more=True, seen=2).verdict == "recorded"
    assert run.recorded == ["5 MarkerRecorded"]


def test_a_step_that_is_recorded_with_another_digest_is_stale() -> None:
    run = Run()
    run.decide(steps=[step(1)], more=True)
    ruling = run.decide(DONE, steps=[step(1, digest=6)], seen=2)
    assert (ruling.verdict, ruling.why) == ("stale", "step 1 is recorded with another result")
    assert run.state.status == Status.OPEN


def test_a_decision_with_steps_is_resumed_with_the_same_events() -> None:
    run = Run()
    run.decide(steps=[step(1)], more=True)
    run.signal()
    assert run.decide(DONE).verdict == "stale"
    assert run.decide(CHARGE, seen=2).verdict == "recorded"


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([step(2, batch=1)], "step 2 belongs to batch 1, and batch 1 is recorded already"),
        ([step(2, batch=3), step(3, batch=2)], "step 3 belongs to batch 2, and batch 3 is recorded already"),
        ([step(2, batch=2), step(2, batch=2)], "step 2 is twice in the list"),
        ([step(2, batch=2, result=b"1" * 101)], "step 2 (price): the result has 101 B; the limit is 100 B"),
    ],
)
def test_malformed_steps_are_refused_whole(steps: list[StepResult], why: str) -> None:
    run = Run(limits=Limits(largest=100))
    run.decide(steps=[step(1)], more=True)
    ruling = run.decide(CHARGE, steps=steps, seen=2)
    assert ruling.verdict == "refused"
    assert ruling.why.startswith(why)
    assert run.recorded == []


# ---- lists ----


@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (
            ScheduleActivityTask(3, "1", b"f", input=b"1" * 101),
            "command 3 (ScheduleActivityTask): the input has 101 B; the limit is 100 B: store the value elsewhere",
        ),
        (ScheduleActivityTask(3, "1", b"f", options=b"?"), "command 3 (ScheduleActivityTask): its options are not"),
        (CompleteWorkflowExecution(3, b"1" * 101), "command 3 (CompleteWorkflowExecution): the result has 101 B"),
        (FailWorkflowExecution(3, "", b"1" * 101), "command 3 (FailWorkflowExecution): the value has 101 B"),
        (CancelWorkflowExecution(3, b"1" * 101), "command 3 (CancelWorkflowExecution): the value has 101 B"),
        (RecordMarker(3, "side", b"1" * 101), "command 3 (RecordMarker): the value has 101 B"),
        (ScheduleLambdaFunction(3, "a", "f", b"1" * 101), "command 3 (ScheduleLambdaFunction): the input has 101 B"),
        (StartTimer(3, "1", -1), "command 3 (StartTimer): -1 s is no time for a timer"),
        (StartTimer(3, "1", float("nan")), "command 3 (StartTimer): nan s is no time for a timer"),
        (
            ContinueAsNewWorkflowExecution(3, b"1" * 101),
            "command 3 (ContinueAsNewWorkflowExecution): the input has 101 B",
        ),
        (
            StartChildWorkflowExecution(3, "c", "order", "1", b"1" * 101),
            "command 3 (StartChildWorkflowExecution): the input has 101 B",
        ),
        (
            SignalExternalWorkflowExecution(3, "c", "s", 0, b"1" * 101),
            "command 3 (SignalExternalWorkflowExecution): the input has 101 B",
        ),
    ],
)
def test_a_malformed_list_is_refused_whole(decision: DecisionBase, why: str) -> None:
    run = Run(limits=Limits(largest=100))
    ruling = run.decide(CHARGE, decision)  # type: ignore[arg-type]
    assert ruling.verdict == "refused"
    assert ruling.why.startswith(why)
    assert run.recorded == []
    assert run.state.scheduled == 2


def test_a_close_comes_last() -> None:
    run = Run()
    ruling = run.decide(DONE, CHARGE)
    assert (ruling.verdict, ruling.why) == ("refused", "CompleteWorkflowExecution must be the last decision")
    assert run.recorded == []


def test_a_decider_that_goes_on_does_not_close() -> None:
    run = Run()
    assert run.decide(DONE, more=True).verdict == "refused"


def test_options_of_activities_are_read_once_here() -> None:
    run = Run()
    options = encode_options(Options(timeout=5))
    assert run.decide(ScheduleActivityTask(1, "1", b"f", options=options)).verdict == "recorded"


def test_a_failed_decision_asks_for_the_next_one() -> None:
    run = Run()
    run.decide(CancelTimer(1, "x"))
    assert run.recorded[-2:] == ["5 CancelTimerFailed", "6 DecisionTaskScheduled"]


def test_an_activity_that_its_own_list_cancels_gets_no_job() -> None:
    run = Run()
    run.decide(CHARGE, RequestCancelActivityTask(2, "1"), StartTimer(3, "3", 1))
    assert run.recorded[2:] == [
        "5 ActivityTaskScheduled",
        "6 ActivityTaskCancelRequested",
        "7 TimerStarted",
        "8 ActivityTaskCanceled",
        "9 DecisionTaskScheduled",
    ]
    assert not run.last_draft.submitted
    assert not run.last_draft.withdrawn


def test_cancels_and_a_close_in_one_list() -> None:
    run = fused()
    run.signal()
    run.decide(RequestCancelActivityTask(2, "1"), DONE)
    assert run.recorded[-1].endswith("WorkflowExecutionCompleted")
    assert run.last_draft.withdrawn == [1001]
    assert run.last_draft.cancels == []


def test_a_refused_close_still_cancels() -> None:
    run = fused()
    run.signal()
    run.signal()
    run.decide(RequestCancelActivityTask(2, "1"), DONE, seen=7)
    assert run.last_draft.cancels == [5]


# ---- closed, parked ----


def test_a_completion_of_a_closed_run_is_stale() -> None:
    run = Run()
    run.do(execution.terminate)
    assert run.decide(CHARGE, seen=2) == ("stale", "the run is closed", False)
    assert run.do(complete, Completion(17, seen=3, settled=[1001])).why == "the run is closed"


def test_a_request_to_park() -> None:
    run = Run()
    ruling = run.decide(CHARGE, parked=Parked("mismatch", "differs"), build="a")
    assert ruling.verdict == "parked"
    assert run.recorded == []
    assert run.parking.parked is not None
    assert run.decide(CHARGE).why == "the run is parked"


def test_a_lost_decision_whose_steps_were_recorded_may_park_the_run() -> None:
    run = Run()
    run.decide(steps=[step(1)], more=True)
    run.signal()
    assert run.decide(parked=Parked("mismatch", "differs")).verdict == "parked"


def test_a_stale_decider_cannot_park_the_run() -> None:
    run = Run()
    run.decide(CHARGE)
    run.signal()
    assert run.decide(parked=Parked("mismatch", "differs"), seen=2).verdict == "stale"
    assert run.parking.parked is None


def test_a_record_forgets_losses_and_the_failures_of_its_own_build() -> None:
    run = Run()
    run.parking.losses = 4
    builds: tuple[str, ...] = ("a", "b", "c")
    run.parking.builds = builds
    run.decide(more=True, build="a")
    assert (run.parking.losses, run.parking.builds) == (4, builds)
    run.decide(steps=[step(1)], more=True, build="a")
    assert (run.parking.losses, run.parking.builds) == (0, builds[1:])
    run.parking.losses = 4
    run.decide(seen=2, build="b")
    assert (run.parking.losses, run.parking.builds) == (0, builds[2:])


# ---- room ----


def test_a_decision_that_has_no_room_terminates_the_run() -> None:
    run = Run(limits=Limits(events=20, reserved=2))
    run.decide(CHARGE)
    run.signal()
    ruling = run.decide(*(StartTimer(n, str(n), 1) for n in range(5)))
    assert ruling == ("stale", "the history is full: the run is terminated", False)
    assert run.recorded == ["8 WorkflowExecutionTerminated"]
    assert run.last_draft.withdrawn == [1001]
    last = run.events[-1]
    assert isinstance(last, history.WorkflowExecutionTerminated)
    assert (last.cause, last.reason) == (
        "EVENT_LIMIT_EXCEEDED",
        "the history has 7 events; the limit is 20",
    )


def test_a_decision_job_is_named() -> None:
    """The store proves that the decider holds the task's job; without one the completion counts as fused."""
    run = Run()
    assert run.do(complete, Completion(17, 0, 2, decisions=[CHARGE])).verdict == "stale"
    assert run.do(complete, Completion(17, JOB, 2, decisions=[CHARGE])).verdict == "recorded"


# ---- time ----


def test_a_timer_runs_from_the_nodes_time_whatever_the_code_has_read() -> None:
    run = Run()
    run.decide(StartTimer(1, "1", 1.0), now_us=run.now_us + 3600 * SECOND)
    run.ring(after=0.9)
    assert run.recorded == []
    run.ring(after=0.1)
    assert run.recorded[0] == "6 TimerFired"
    assert [event.at_us for event in run.events[-2:]] == [run.now_us] * 2


def test_a_run_whose_last_event_lies_ahead_does_not_wait_for_its_time() -> None:
    """The node's clock was a day ahead for one decision."""
    run = Run()
    begin = run.now_us
    run.decide(StartTimer(1, "an hour", 3600.0))
    run.now_us = ahead = begin + 86_400 * SECOND
    run.signal()
    run.decide(CHARGE, now_us=ahead)
    run.now_us = begin + SECOND
    run.signal()
    ship = ScheduleActivityTask(3, "3", b"ship", schedule_to_close=60.0)
    run.decide(StartTimer(2, "a second", 1.0), ship, now_us=ahead)
    assert {event.at_us for event in run.events[-3:]} == {ahead}, "events stay in order"
    run.ring(after=1)
    assert run.recorded[0].endswith("TimerFired"), "the other timer, which is due in an hour, has not fired"
    assert len(run.recorded) == 2
    run.ring(after=59)
    assert [name.split()[1] for name in run.recorded] == ["ActivityTaskTimedOut"]
    run.ring(after=3600)
    assert [name.split()[1] for name in run.recorded] == ["TimerFired"]
    times = [event.at_us for event in run.events]
    assert times == sorted(times)
    assert fold(run.events) == run.state


def test_a_fused_decision_of_a_clock_that_is_ahead_is_stale() -> None:
    run = Run()
    run.decide(CHARGE)
    ruling = run.fuse(DONE, ends=[ended(1001)], now_us=run.now_us + 86_400 * SECOND)
    assert (ruling.verdict, ruling.why) == ("stale", "the decider's clock is 86400 s ahead of the node's")
    assert [name.split()[1] for name in run.recorded][-1] == "DecisionTaskScheduled", "the activity's end counts"
    assert run.decide(DONE, now_us=run.now_us).verdict == "recorded"


# ---- steps that wait for their next attempts ----


def test_a_later_attempt_of_a_step_replaces_the_timer_of_an_earlier_one() -> None:
    run = Run()
    run.decide(retries=(StepRetry(1, 1, 60 * SECOND), StepRetry(2, 4, 90 * SECOND)))
    assert {one.timer_id: one.fire_us - run.now_us for one in run.state.timers.values()} == {
        "step-1": 60 * SECOND,
        "step-2": 90 * SECOND,
    }
    run.signal()
    run.decide(retries=(StepRetry(1, 2, 3600 * SECOND),))
    assert run.state.timers["step-1"].fire_us == run.now_us + 3600 * SECOND
    run.ring(after=91)
    assert [*run.state.timers] == ["step-1"]
    assert run.state.scheduled


def test_a_step_that_waits_needs_a_decision() -> None:
    run = Run()
    run.decide(CHARGE)
    ruling = run.fuse(ends=[ended(1001)], retries=(StepRetry(1, 1, 0),))
    assert (ruling.verdict, "a step needs a decision task" in ruling.why) == ("refused", True)
