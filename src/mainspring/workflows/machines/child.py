"""A child, as its parent's history shows it.

| phase | event | next phase |
|---|---|---|
| INITIATED | ChildWorkflowExecutionStarted | STARTED |
| INITIATED | StartChildWorkflowExecutionFailed | CLOSED |
| STARTED | ChildWorkflowExecutionCompleted, …Failed, …TimedOut, …Canceled, …Terminated | CLOSED |

A refused decision is StartChildWorkflowExecutionFailed without an initiated event, and concerns no machine.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from mainspring.workflows.history import (
    ChildWorkflowExecutionCanceled,
    ChildWorkflowExecutionCompleted,
    ChildWorkflowExecutionFailed,
    ChildWorkflowExecutionStarted,
    ChildWorkflowExecutionTerminated,
    ChildWorkflowExecutionTimedOut,
    StartChildWorkflowExecutionFailed,
    StartChildWorkflowExecutionInitiated,
)
from mainspring.workflows.machines.transition import illegal, transition
from mainspring.workflows.state import OpenChild

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.workflows.history import EventBase
    from mainspring.workflows.machines.transition import Folds
    from mainspring.workflows.state import State

ChildClosed = (
    ChildWorkflowExecutionCompleted
    | ChildWorkflowExecutionFailed
    | ChildWorkflowExecutionTimedOut
    | ChildWorkflowExecutionCanceled
    | ChildWorkflowExecutionTerminated
)


class Phase(Enum):
    """The phases of a child."""

    INITIATED = 0
    STARTED = 1
    CLOSED = 2


TRANSITIONS: Final[Mapping[tuple[Phase, type[EventBase]], Phase]] = {
    (Phase.INITIATED, ChildWorkflowExecutionStarted): Phase.STARTED,
    (Phase.INITIATED, StartChildWorkflowExecutionFailed): Phase.CLOSED,
    (Phase.STARTED, ChildWorkflowExecutionCompleted): Phase.CLOSED,
    (Phase.STARTED, ChildWorkflowExecutionFailed): Phase.CLOSED,
    (Phase.STARTED, ChildWorkflowExecutionTimedOut): Phase.CLOSED,
    (Phase.STARTED, ChildWorkflowExecutionCanceled): Phase.CLOSED,
    (Phase.STARTED, ChildWorkflowExecutionTerminated): Phase.CLOSED,
}

_LATE: Final = "the parent has closed, or it has recorded the notice before"
LATE: Final[Mapping[tuple[Phase, type[EventBase]], str]] = {
    (Phase.CLOSED, StartChildWorkflowExecutionFailed): _LATE,
    (Phase.CLOSED, ChildWorkflowExecutionStarted): _LATE,
    (Phase.CLOSED, ChildWorkflowExecutionCompleted): _LATE,
    (Phase.CLOSED, ChildWorkflowExecutionFailed): _LATE,
    (Phase.CLOSED, ChildWorkflowExecutionTimedOut): _LATE,
    (Phase.CLOSED, ChildWorkflowExecutionCanceled): _LATE,
    (Phase.CLOSED, ChildWorkflowExecutionTerminated): _LATE,
}
"""Late but harmless: the rules record no event of these kinds, for these reasons. As events they are illegal."""


def phase(child: OpenChild) -> Phase:
    """Return the phase of an open child."""
    return Phase.STARTED if child.started else Phase.INITIATED


def _initiated(state: State, event: StartChildWorkflowExecutionInitiated) -> None:
    state.children[event.id] = OpenChild(
        event.id, event.workflow_id, event.run, event.child_policy, number=event.number, type=event.type
    )


def _refused(state: State, event: StartChildWorkflowExecutionFailed) -> None:
    if event.initiated:
        del state.children[_open(state, event).initiated]


def _started(state: State, event: ChildWorkflowExecutionStarted) -> None:
    _open(state, event).started = event.id


def _closed(state: State, event: ChildClosed) -> None:
    child = _open(state, event)
    if event.started != child.started:
        raise illegal(event, f"names start {event.started}; the child was started at {child.started}")
    del state.children[event.initiated]


def _open(
    state: State, event: StartChildWorkflowExecutionFailed | ChildWorkflowExecutionStarted | ChildClosed
) -> OpenChild:
    child = state.children.get(event.initiated)
    if child is None:
        raise illegal(event, f"names the child of event {event.initiated}, which is not open")
    transition(TRANSITIONS, phase(child), event)
    return child


FOLDS: Final[Folds] = {
    StartChildWorkflowExecutionInitiated: _initiated,
    StartChildWorkflowExecutionFailed: _refused,
    ChildWorkflowExecutionStarted: _started,
    ChildWorkflowExecutionCompleted: _closed,
    ChildWorkflowExecutionFailed: _closed,
    ChildWorkflowExecutionTimedOut: _closed,
    ChildWorkflowExecutionCanceled: _closed,
    ChildWorkflowExecutionTerminated: _closed,
}
