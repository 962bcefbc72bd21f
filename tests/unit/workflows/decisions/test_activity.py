"""Activities of lean runs."""

from __future__ import annotations

import pytest
from tests.unit.workflows.drafts import Run, ended

from mainspring.jobs.model import State as JobState
from mainspring.workflows import execution, history
from mainspring.workflows.activities import activity_ended, canceled_before_start
from mainspring.workflows.history import TimeoutType
from mainspring.workflows.requests import RequestCancelActivityTask, ScheduleActivityTask

CHARGE = ScheduleActivityTask(1, "1", b"charge", input=b"[7]", options=b"", key=b"eu")


def scheduled() -> Run:
    run = Run()
    run.decide(CHARGE)
    return run


def test_an_activity_has_a_job() -> None:
    run = scheduled()
    event = run.last_draft.submitted[1001]
    assert (event.id, event.job, event.function, event.input, event.key, event.number) == (
        5,
        1001,
        b"charge",
        b"[7]",
        b"eu",
        1,
    )


@pytest.mark.parametrize(
    ("state", "error", "kind", "expected"),
    [
        (JobState.SUCCEEDED, b"", history.ActivityTaskCompleted, {"result": b"ok"}),
        (
            JobState.FAILED,
            b'{"type":"ValueError","message":"no"}',
            history.ActivityTaskFailed,
            {"reason": "ValueError", "details": b'{"type":"ValueError","message":"no"}'},
        ),
        (JobState.FAILED, b"", history.ActivityTaskFailed, {"reason": "", "details": b""}),
        (
            JobState.FAILED,
            b'{"type":"Timeout","message":"late"}',
            history.ActivityTaskTimedOut,
            {"timeout": TimeoutType.START_TO_CLOSE, "details": b'{"type":"Timeout","message":"late"}'},
        ),
        (
            JobState.FAILED,
            b'{"type":"WorkerLost","message":"gone"}',
            history.ActivityTaskTimedOut,
            {"timeout": TimeoutType.HEARTBEAT},
        ),
        (
            JobState.FAILED,
            b'{"type":"Timeout","message":"a task\'s own","traceback":"..."}',
            history.ActivityTaskFailed,
            {"reason": "Timeout"},
        ),
        (JobState.CANCELLED, b"", history.ActivityTaskCanceled, {"cancel_requested": 0}),
    ],
)
def test_ends_of_jobs(state: JobState, error: bytes, kind: type[history.Event], expected: dict[str, object]) -> None:
    run = scheduled()
    assert run.end(ended(1001, state, error=error, result=b"ok", attempt=3))
    assert run.recorded == ["6 ActivityTaskStarted", f"7 {kind.__name__}", "8 DecisionTaskScheduled"]
    started, end, _ = run.last_draft.events
    assert isinstance(started, history.ActivityTaskStarted)
    assert (started.identity, started.attempt) == ("w1", 3)
    assert {name: getattr(end, name) for name in expected} == expected
    assert (end.scheduled, end.started) == (5, 6)  # type: ignore[attr-defined]
    assert not run.last_draft.withdrawn, "the job has ended by itself"


def test_an_activity_that_expired_was_not_started() -> None:
    run = scheduled()
    run.end(ended(1001, JobState.EXPIRED, attempt=0, term=0))
    assert run.recorded == ["6 ActivityTaskTimedOut", "7 DecisionTaskScheduled"]
    end = run.last_draft.events[0]
    assert isinstance(end, history.ActivityTaskTimedOut)
    assert (end.started, end.timeout) == (0, TimeoutType.SCHEDULE_TO_START)


def test_an_activity_that_was_cancelled_before_its_start_by_hand() -> None:
    run = scheduled()
    run.end(ended(1001, JobState.CANCELLED, attempt=0, term=0))
    assert run.recorded == ["6 ActivityTaskCanceled", "7 DecisionTaskScheduled"]


def test_the_end_of_a_closed_activity_is_late() -> None:
    run = scheduled()
    assert run.end(ended(1001))
    assert not run.end(ended(1001))
    assert run.recorded == []
    run.do(execution.terminate)
    assert not run.end(ended(1001))


def test_the_end_of_another_job_is_late() -> None:
    run = scheduled()
    assert not run.do(activity_ended, 5, ended(1002))
    assert run.recorded == []


def test_a_cancel_asks_for_the_job() -> None:
    run = scheduled()
    run.signal()
    run.decide(RequestCancelActivityTask(2, "1"), RequestCancelActivityTask(3, "1"))
    assert run.recorded[2:] == ["10 ActivityTaskCancelRequested", "11 ActivityTaskCancelRequested"]
    assert run.last_draft.cancels == [5]
    assert run.last_draft.withdrawn == []


def test_a_cancel_of_a_job_that_nobody_holds() -> None:
    run = scheduled()
    run.signal()
    run.decide(RequestCancelActivityTask(2, "1"))
    run.do(canceled_before_start, 5)
    assert run.recorded == ["11 ActivityTaskCanceled", "12 DecisionTaskScheduled"]
    end = run.last_draft.events[0]
    assert isinstance(end, history.ActivityTaskCanceled)
    assert (end.started, end.cancel_requested) == (0, 10)
    run.do(canceled_before_start, 5)
    assert run.recorded == []


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.SUCCEEDED])
def test_a_held_job_ends_as_its_worker_says(state: JobState) -> None:
    run = scheduled()
    run.signal()
    run.decide(RequestCancelActivityTask(2, "1"))
    run.end(ended(1001, state))
    kind = "Canceled" if state == JobState.CANCELLED else "Completed"
    assert run.recorded == ["11 ActivityTaskStarted", f"12 ActivityTask{kind}", "13 DecisionTaskScheduled"]


def test_refused_decisions() -> None:
    run = scheduled()
    run.signal()
    run.decide(CHARGE, RequestCancelActivityTask(2, "x"))
    refused, unknown = run.last_draft.events[2:4]
    assert isinstance(refused, history.ScheduleActivityTaskFailed)
    assert isinstance(unknown, history.RequestCancelActivityTaskFailed)
    assert (refused.cause, unknown.cause) == ("ACTIVITY_ID_ALREADY_IN_USE", "ACTIVITY_ID_UNKNOWN")


def test_ends_ask_for_one_decision() -> None:
    run = Run()
    run.decide(CHARGE, ScheduleActivityTask(2, "2", b"f"))
    run.end(ended(1001))
    run.end(ended(1002))
    assert run.recorded == ["10 ActivityTaskStarted", "11 ActivityTaskCompleted"]
