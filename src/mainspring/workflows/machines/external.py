"""A signal or a cancel request to another run: it is initiated, and answered once.

| phase | event | next phase |
|---|---|---|
| INITIATED | ExternalWorkflowExecutionSignaled, SignalExternalWorkflowExecutionFailed | CLOSED |
| INITIATED | ExternalWorkflowExecutionCancelRequested, RequestCancelExternalWorkflowExecutionFailed | CLOSED |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.workflows.history import (
    ExternalWorkflowExecutionCancelRequested,
    ExternalWorkflowExecutionSignaled,
    RequestCancelExternalWorkflowExecutionFailed,
    RequestCancelExternalWorkflowExecutionInitiated,
    SignalExternalWorkflowExecutionFailed,
    SignalExternalWorkflowExecutionInitiated,
)
from mainspring.workflows.machines.transition import illegal

if TYPE_CHECKING:
    from mainspring.workflows.machines.transition import Folds
    from mainspring.workflows.state import State

Initiated = SignalExternalWorkflowExecutionInitiated | RequestCancelExternalWorkflowExecutionInitiated
Answered = (
    ExternalWorkflowExecutionSignaled
    | SignalExternalWorkflowExecutionFailed
    | ExternalWorkflowExecutionCancelRequested
    | RequestCancelExternalWorkflowExecutionFailed
)


def _initiated(state: State, event: Initiated) -> None:
    state.externals[event.id] = None


def _answered(state: State, event: Answered) -> None:
    if event.initiated not in state.externals:
        raise illegal(event, f"answers event {event.initiated}, which is not open")
    del state.externals[event.initiated]


FOLDS: Final[Folds] = {
    SignalExternalWorkflowExecutionInitiated: _initiated,
    SignalExternalWorkflowExecutionFailed: _answered,
    ExternalWorkflowExecutionSignaled: _answered,
    RequestCancelExternalWorkflowExecutionInitiated: _initiated,
    RequestCancelExternalWorkflowExecutionFailed: _answered,
    ExternalWorkflowExecutionCancelRequested: _answered,
}
