"""The ends of root jobs: what clients get for the close of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.failures import failure
from mainspring.jobs.model import Job
from mainspring.jobs.model import State as JobState
from mainspring.workflows.history import (
    WorkflowExecutionCanceled,
    WorkflowExecutionCompleted,
    WorkflowExecutionFailed,
    WorkflowExecutionTerminated,
    WorkflowExecutionTimedOut,
)

if TYPE_CHECKING:
    from mainspring.workflows.history import EventBase
    from mainspring.workflows.store import RunRow

TERMINATED = "WorkflowTerminated"
"""The type of the error of a terminated run."""
TIMED_OUT = "Timeout"
"""The type of the error of a run that took too long: as of a job."""


def ended_root(row: RunRow, close: EventBase) -> Job | None:
    """Return the end of the root job of a run that an event closes; None if the chain goes on."""
    state, result, error = JobState.FAILED, b"", b""
    match close:
        case WorkflowExecutionCompleted():
            state, result = JobState.SUCCEEDED, close.result
        case WorkflowExecutionFailed():
            error = close.details or failure(close.reason or "WorkflowFailed", "the workflow has failed")
        case WorkflowExecutionCanceled():
            state, error = JobState.CANCELLED, close.details
        case WorkflowExecutionTerminated():
            why = close.reason or close.cause
            error = failure(TERMINATED, f"the run was terminated: {why}" if why else "the run was terminated")
        case WorkflowExecutionTimedOut():
            error = failure(TIMED_OUT, "the run took longer than its execution timeout")
        case _:
            return None
    row.output_size = len(result)
    ended_us = row.closed_us or close.at_us
    return Job(row.root, row.type.encode(), b"", state=int(state), ended_us=ended_us, result=result, error=error)
