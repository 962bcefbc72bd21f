"""The execution itself: it begins, takes requests, and closes once.

| phase | event | next phase |
|---|---|---|
| none | WorkflowExecutionStarted | OPEN |
| OPEN | WorkflowExecutionSignaled, WorkflowExecutionCancelRequested | OPEN |
| OPEN | WorkflowExecutionCompleted | COMPLETED |
| OPEN | WorkflowExecutionFailed | FAILED |
| OPEN | WorkflowExecutionCanceled | CANCELED |
| OPEN | WorkflowExecutionTerminated | TERMINATED |
| OPEN | WorkflowExecutionContinuedAsNew | CONTINUED_AS_NEW |
| OPEN | WorkflowExecutionTimedOut | TIMED_OUT |

A closed run takes no event; `fold` guards that. Its open tasks, timers and children vanish without events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.failures import describe_failure
from mainspring.workflows.history import (
    WorkflowExecutionCanceled,
    WorkflowExecutionCancelRequested,
    WorkflowExecutionCompleted,
    WorkflowExecutionContinuedAsNew,
    WorkflowExecutionFailed,
    WorkflowExecutionSignaled,
    WorkflowExecutionStarted,
    WorkflowExecutionTerminated,
    WorkflowExecutionTimedOut,
)
from mainspring.workflows.machines.transition import illegal
from mainspring.workflows.model import Status
from mainspring.workflows.state import REQUESTS_KEPT

if TYPE_CHECKING:
    from mainspring.workflows.history import EventBase
    from mainspring.workflows.machines.transition import Folds
    from mainspring.workflows.state import State

CLOSES: Final[dict[type[EventBase], Status]] = {
    WorkflowExecutionCompleted: Status.COMPLETED,
    WorkflowExecutionFailed: Status.FAILED,
    WorkflowExecutionCanceled: Status.CANCELED,
    WorkflowExecutionTerminated: Status.TERMINATED,
    WorkflowExecutionContinuedAsNew: Status.CONTINUED_AS_NEW,
    WorkflowExecutionTimedOut: Status.TIMED_OUT,
}


def _begun(state: State, event: WorkflowExecutionStarted) -> None:
    if state.last:
        raise illegal(event, "is not the first")
    state.run = event.run
    state.root = event.root
    state.type = event.type
    state.version = event.version
    state.namespace = event.namespace
    state.workflow_id = event.workflow_id
    state.started_us = event.at_us
    state.full = event.full
    state.task_list = event.task_list
    state.task_priority = event.task_priority
    state.task_timeout = event.task_timeout
    state.child_policy = event.child_policy
    state.tags = event.tags
    state.parent_run = event.parent_run
    state.parent_initiated = event.parent_initiated
    state.continued_run = event.continued_run
    state.attempt = event.attempt
    state.failure = event.failure
    state.timed_from_us = event.timed_from_us
    if event.delay:
        state.begin_us = event.at_us + int(event.delay * 1_000_000)
    if event.execution_timeout:
        state.close_by_us = (event.timed_from_us or event.at_us) + int(event.execution_timeout * 1_000_000)
    for request in event.requests:
        state.requests[request] = None


def _signaled(state: State, event: WorkflowExecutionSignaled) -> None:
    if event.request:
        _remember(state, event.request)


def _cancel_requested(state: State, event: WorkflowExecutionCancelRequested) -> None:
    state.cancel_requested = event.id
    state.cancel_reason = state.cancel_reason or event.reason
    if event.request:
        _remember(state, event.request)


def _remember(state: State, request: int) -> None:
    requests = state.requests
    requests[request] = None
    if len(requests) > REQUESTS_KEPT:
        del requests[next(iter(requests))]


def _closed(state: State, event: EventBase) -> None:
    state.status = int(CLOSES[event.__class__])
    state.closed_us = event.at_us
    state.scheduled = state.started = state.waiting = state.task_by_us = state.close_by_us = 0
    state.activities = {}
    state.activity_ids = {}
    state.deadlines = {}
    state.timers = {}
    state.children = {}
    state.externals = {}
    state.steps = {}
    state.batch = state.step_seen = state.step_us = state.begin_us = 0


def _continued(state: State, event: WorkflowExecutionContinuedAsNew) -> None:
    _closed(state, event)
    state.new_run = event.new_run
    if event.failure:
        state.failure = describe_failure(event.failure)


FOLDS: Final[Folds] = {
    WorkflowExecutionStarted: _begun,
    WorkflowExecutionSignaled: _signaled,
    WorkflowExecutionCancelRequested: _cancel_requested,
    **dict.fromkeys(CLOSES, _closed),
    WorkflowExecutionContinuedAsNew: _continued,
}
