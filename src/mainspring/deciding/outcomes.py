"""Resolves futures of workflow code with the events of its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.deciding.children import Children
from mainspring.deciding.job import error_of, read_failure
from mainspring.errors import JobFailed, JobTimedOut
from mainspring.workflows import history

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.deciding.api import Calls


def resolve(calls: Calls, event: Any) -> int:
    """Give an event to the code. Return the bytes of the value that it brought."""
    return _RESOLVERS[type(event)](calls, event)


def _completed(calls: Calls, event: history.ActivityTaskCompleted) -> int:
    job, _ = calls.close_activity(event.scheduled, event.started)
    if job is None:
        return 0
    job.succeed(event.result)
    return len(event.result)


def _failed(calls: Calls, event: history.ActivityTaskFailed) -> int:
    job, attempt = calls.close_activity(event.scheduled, event.started)
    if job is not None:
        job.fail(error_of(job.handle, event.details, attempt, event.reason))
    return 0


def _timed_out(calls: Calls, event: history.ActivityTaskTimedOut) -> int:
    job, attempt = calls.close_activity(event.scheduled, event.started)
    if job is not None:
        found = read_failure(event.details, "Timeout")
        kind = event.timeout.value.lower()
        message = found.message or f"its {kind.replace('_', '-')} timeout has passed"
        job.fail(JobTimedOut(job.handle, found.type or "Timeout", message, found.traceback, attempt, kind))
    return 0


def _canceled(calls: Calls, event: history.ActivityTaskCanceled) -> int:
    job, _ = calls.close_activity(event.scheduled, event.started)
    if job is not None:
        job.end_cancelled()
    return 0


def _refused(calls: Calls, event: history.ScheduleActivityTaskFailed) -> int:
    job = calls.activities.pop(event.activity_id, None)
    if job is not None:
        job.fail(JobFailed(job.handle, str(event.cause), "the node did not schedule the activity", None, 0))
    return 0


def _fired(calls: Calls, event: history.TimerFired) -> int:
    timer = calls.timers.pop(event.timer_id, None)
    if timer is not None:
        calls.loop.ring(timer)
    return 0


def _refused_timer(calls: Calls, event: history.StartTimerFailed) -> int:
    timer = calls.timers.pop(event.timer_id, None)
    if timer is not None:  # it never fires
        timer.closed = True
    return 0


def _signaled(calls: Calls, event: history.WorkflowExecutionSignaled) -> int:
    calls.signals(event.name).put_nowait((event.id, event.input))
    return len(event.input)


def _no_value(take: Callable[[Children, Any], None]) -> Callable[[Calls, Any], int]:
    def resolve(calls: Calls, event: Any) -> int:
        take(calls.children, event)
        return 0

    return resolve


_RESOLVERS: dict[type[Any], Callable[[Calls, Any], int]] = {
    history.WorkflowExecutionStarted: lambda _calls, event: len(event.input),
    history.ActivityTaskCompleted: _completed,
    history.ActivityTaskFailed: _failed,
    history.ActivityTaskTimedOut: _timed_out,
    history.ActivityTaskCanceled: _canceled,
    history.ScheduleActivityTaskFailed: _refused,
    history.TimerFired: _fired,
    history.StartTimerFailed: _refused_timer,
    history.WorkflowExecutionSignaled: _signaled,
    history.StartChildWorkflowExecutionFailed: _no_value(Children.refused),
    history.ChildWorkflowExecutionCompleted: lambda calls, event: calls.children.completed(event),
    history.ChildWorkflowExecutionFailed: _no_value(Children.failed),
    history.ChildWorkflowExecutionTimedOut: _no_value(Children.timed_out),
    history.ChildWorkflowExecutionCanceled: _no_value(Children.canceled),
    history.ChildWorkflowExecutionTerminated: _no_value(Children.terminated),
    history.ExternalWorkflowExecutionSignaled: _no_value(Children.answered),
    history.ExternalWorkflowExecutionCancelRequested: _no_value(Children.answered),
    history.SignalExternalWorkflowExecutionFailed: _no_value(Children.unanswered),
    history.RequestCancelExternalWorkflowExecutionFailed: _no_value(Children.unanswered),
}
