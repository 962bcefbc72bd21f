"""Events of signals and cancel requests to other runs."""

from __future__ import annotations

from mainspring.workflows.events.model import EventBase


class SignalExternalWorkflowExecutionInitiated(EventBase, frozen=True, tag=42):
    """A decision has sent a signal to another run."""

    decision_completed: int
    workflow_id: str
    run: int
    name: str
    input: bytes = b""
    control: str = ""
    # Not in SWF:
    number: int = 0
    reach: tuple[str, ...] = ()
    """Patterns of the workflows whose runs the decider could reach; none: all."""


class SignalExternalWorkflowExecutionFailed(EventBase, frozen=True, tag=43):
    """The signal found no open run that its decider could reach."""

    decision_completed: int
    initiated: int
    workflow_id: str
    run: int
    cause: str
    control: str = ""


class ExternalWorkflowExecutionSignaled(EventBase, frozen=True, tag=44):
    """The other run has the signal."""

    initiated: int
    workflow_id: str
    run: int


class RequestCancelExternalWorkflowExecutionInitiated(EventBase, frozen=True, tag=45):
    """A decision has asked another run to cancel itself."""

    decision_completed: int
    workflow_id: str
    run: int
    control: str = ""
    # Not in SWF:
    number: int = 0
    reason: str = ""
    reach: tuple[str, ...] = ()
    """As of `SignalExternalWorkflowExecutionInitiated`."""


class RequestCancelExternalWorkflowExecutionFailed(EventBase, frozen=True, tag=46):
    """The request found no open run that its decider could reach."""

    decision_completed: int
    initiated: int
    workflow_id: str
    run: int
    cause: str
    control: str = ""


class ExternalWorkflowExecutionCancelRequested(EventBase, frozen=True, tag=47):
    """The other run has the request."""

    initiated: int
    workflow_id: str
    run: int
