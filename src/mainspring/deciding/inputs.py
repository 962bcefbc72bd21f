"""The events of a history that workflow code is given, or that name its requests."""

from __future__ import annotations

from typing import Final

from mainspring.workflows import history

INPUTS: Final = frozenset(
    {
        history.WorkflowExecutionStarted,
        history.WorkflowExecutionCancelRequested,
        history.WorkflowExecutionSignaled,
        history.ActivityTaskCompleted,
        history.ActivityTaskFailed,
        history.ActivityTaskTimedOut,
        history.ActivityTaskCanceled,
        history.ScheduleActivityTaskFailed,
        history.TimerFired,
        history.StartTimerFailed,
        history.StartChildWorkflowExecutionFailed,
        history.ChildWorkflowExecutionCompleted,
        history.ChildWorkflowExecutionFailed,
        history.ChildWorkflowExecutionTimedOut,
        history.ChildWorkflowExecutionCanceled,
        history.ChildWorkflowExecutionTerminated,
        history.ExternalWorkflowExecutionSignaled,
        history.ExternalWorkflowExecutionCancelRequested,
        history.SignalExternalWorkflowExecutionFailed,
        history.RequestCancelExternalWorkflowExecutionFailed,
    }
)
"""Events that workflow code is given."""


INITIATED: Final = frozenset(
    {
        history.StartChildWorkflowExecutionInitiated,
        history.SignalExternalWorkflowExecutionInitiated,
        history.RequestCancelExternalWorkflowExecutionInitiated,
    }
)
"""Events that record requests to other runs: their answers name them."""
