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


class ChildWorkflowExecutionCompleted(EventBase, frozen=True, tag=37):
    """The child has a result."""

    initiated: int
    started: int
    run: int
    workflow_id: str
    type: str
    version: str
    result: bytes = b""


class ChildWorkflowExecutionFailed(EventBase, frozen=True, tag=38):
    """The child has failed."""

    initiated: int
    started: int
    run: int
    workflow_id: str
    type: str
    version: str
    reason: str = ""
    details: bytes = b""


class ChildWorkflowExecutionTimedOut(EventBase, frozen=True, tag=39):
    """The child lasted longer than its execution timeout."""

    initiated: int
    started: int
    run: int
    workflow_id: str
    type: str
    version: str
    timeout: TimeoutType = TimeoutType.START_TO_CLOSE


class ChildWorkflowExecutionCanceled(EventBase, frozen=True, tag=40):
    """The child has ended as cancelled."""

    initiated: int
    started: int
    run: int
    workflow_id: str
    type: str
    version: str
    details: bytes = b""


class ChildWorkflowExecutionTerminated(EventBase, frozen=True, tag=41):
    """The child was ended from outside."""

    initiated: int
    started: int
    run: int
    workflow_id: str
    type: str
    version: str
    reason: str = ""
    """Not in SWF."""
