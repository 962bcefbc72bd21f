"""Events of the run itself: its start, its end, and requests from outside."""

from __future__ import annotations

from mainspring.workflows.events.model import ChildPolicy, EventBase, TimeoutType


class WorkflowExecutionStarted(EventBase, frozen=True, tag=1):
    """The first event of each history."""

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
    continued_run: int = 0
    """The run whose continuation this one is."""
    parent_run: int = 0
    parent_initiated: int = 0
    # Not in SWF:
    run: int = 0
    root: int = 0
    """The root job."""
    namespace: str = "default"
    workflow_id: str = ""
    seed: int = 0
    """The seed of the run's random numbers."""
    full: bool = False
    """Whether the history is recorded as SWF records it; see the explanation of the two recordings."""
    requests: tuple[int, ...] = ()
    """Keys of requests that an earlier run of the chain has taken."""
    warn_events: int = 0
    """The events from which on the run should continue as new; 0: as `model.Limits` has them by default."""
    warn_bytes: int = 0
    attempt: int = 1
    delay: float = 0
    """Seconds from this event until the first decision."""
    timed_from_us: int = 0
    """The time from which the execution timeout runs, if it began before this event: with the first attempt."""
    failure: str = ""
    """Why the attempt before has failed, for people."""
    semantics: int = 0
    """The newest behaviour that a decision of the run may have: the node records which one it had."""


class WorkflowExecutionCancelRequested(EventBase, frozen=True, tag=2):
    """A client, another run or a policy asked the run to cancel itself."""

    cause: str = ""
    """``CHILD_POLICY_APPLIED`` or empty."""
    external_run: int = 0
    external_workflow_id: str = ""
    external_initiated: int = 0
    reason: str = ""
    """Not in SWF."""
    request: int = 0
    """The key of the request, so that a repeated one counts once. Not in SWF."""


class WorkflowExecutionCompleted(EventBase, frozen=True, tag=3):
    """The run has a result."""

    decision_completed: int
    result: bytes = b""


class CompleteWorkflowExecutionFailed(EventBase, frozen=True, tag=4):
    """The decision did not close the run."""

    decision_completed: int
    cause: str


class WorkflowExecutionFailed(EventBase, frozen=True, tag=5):
    """The run has failed."""

    decision_completed: int
    reason: str = ""
    details: bytes = b""


class FailWorkflowExecutionFailed(EventBase, frozen=True, tag=6):
    """The decision did not close the run."""

    decision_completed: int
    cause: str


class WorkflowExecutionTimedOut(EventBase, frozen=True, tag=7):
    """The run lasted longer than its execution timeout."""

    timeout: TimeoutType = TimeoutType.START_TO_CLOSE
    child_policy: ChildPolicy = ChildPolicy.TERMINATE


class WorkflowExecutionCanceled(EventBase, frozen=True, tag=8):
    """The run has ended as cancelled."""

    decision_completed: int
    details: bytes = b""


class CancelWorkflowExecutionFailed(EventBase, frozen=True, tag=9):
    """The decision did not close the run."""

    decision_completed: int
    cause: str


class WorkflowExecutionContinuedAsNew(EventBase, frozen=True, tag=10):
    """The run has ended, and another one of the same workflow id goes on."""

    decision_completed: int
    new_run: int
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
    # Not in SWF:
    delay: float = 0
    attempt: int = 1
    """Of the new run: 2 and more if this run has failed, and the new one is another attempt at it."""
    failure: bytes = b""
    """The failure of this run (``jobs.failures.JobFailure``) if it has failed."""


class ContinueAsNewWorkflowExecutionFailed(EventBase, frozen=True, tag=11):
    """The decision did not close the run."""

    decision_completed: int
    cause: str


class WorkflowExecutionTerminated(EventBase, frozen=True, tag=12):
    """The run was ended from outside."""

    cause: str = ""
    """``OPERATOR_INITIATED``, ``CHILD_POLICY_APPLIED``, ``EVENT_LIMIT_EXCEEDED`` or empty."""
    reason: str = ""
    details: bytes = b""
    child_policy: ChildPolicy = ChildPolicy.TERMINATE


class WorkflowExecutionSignaled(EventBase, frozen=True, tag=26):
    """A signal has come in."""

    name: str
    input: bytes = b""
    external_run: int = 0
    external_workflow_id: str = ""
    external_initiated: int = 0
    request: int = 0
    """The key of the request, so that a repeated one counts once. Not in SWF."""
