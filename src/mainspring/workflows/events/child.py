"""Events of children."""

from __future__ import annotations

from mainspring.workflows.events.model import ChildPolicy, EventBase, TimeoutType


class StartChildWorkflowExecutionInitiated(EventBase, frozen=True, tag=34):
    """A decision has asked for a child."""

    decision_completed: int
    workflow_id: str
    type: str
    version: str
    input: bytes = b""
    task_list: str = ""
    task_priority: int = 1
    child_policy: ChildPolicy = ChildPolicy.TERMINATE
    execution_timeout: float = 0
    task_timeout: float = 0
    tags: tuple[str, ...] = ()
    lambda_role: str = ""
    control: str = ""
    # Not in SWF:
    run: int = 0
    number: int = 0


class StartChildWorkflowExecutionFailed(EventBase, frozen=True, tag=35):
    """No child was started; ``initiated`` is 0 if the decision was refused at once."""

    decision_completed: int
    initiated: int
    workflow_id: str
    type: str
    version: str
    cause: str
    control: str = ""
    number: int = 0
    """Not in SWF."""


class ChildWorkflowExecutionStarted(EventBase, frozen=True, tag=36):
    """The child has begun."""

    initiated: int
    run: int
    workflow_id: str
    type: str
    version: str


class ChildEnd(EventBase, frozen=True):
    """The attributes of all events about the end of a child."""

    initiated: int
    started: int
    run: int
    workflow_id: str
    type: str
    version: str


class ChildWorkflowExecutionCompleted(ChildEnd, frozen=True, tag=37):
    """The child has a result."""

    result: bytes = b""


class ChildWorkflowExecutionFailed(ChildEnd, frozen=True, tag=38):
    """The child has failed."""

    reason: str = ""
    details: bytes = b""


class ChildWorkflowExecutionTimedOut(ChildEnd, frozen=True, tag=39):
    """The child lasted longer than its execution timeout."""

    timeout: TimeoutType = TimeoutType.START_TO_CLOSE


class ChildWorkflowExecutionCanceled(ChildEnd, frozen=True, tag=40):
    """The child has ended as cancelled."""

    details: bytes = b""


class ChildWorkflowExecutionTerminated(ChildEnd, frozen=True, tag=41):
    """The child was ended from outside."""

    reason: str = ""
    """Not in SWF."""
