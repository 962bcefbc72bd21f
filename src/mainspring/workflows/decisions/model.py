"""The decisions of a decider.

They are SWF's 13 decisions, with the attributes of `mainspring.workflows.history`; see
https://docs.aws.amazon.com/amazonswf/latest/apireference/API_Decision.html. A list is applied in order. A decision that closes
the run must be the last of its list.
"""

from __future__ import annotations

import msgspec

from mainspring.workflows.history import ChildPolicy


class DecisionBase(msgspec.Struct, array_like=True, frozen=True, gc=False, tag_field="kind"):
    """The attributes of all decisions."""

    number: int
    """The number of the command in the run; 0 where the decider does not number commands."""


class ScheduleActivityTask(DecisionBase, frozen=True, tag=1):
    """Schedule an activity."""

    activity_id: str
    function: bytes
    version: str = ""
    input: bytes = b""
    task_list: str = ""
    task_priority: int = 1
    schedule_to_start: float = 0
    schedule_to_close: float = 0
    start_to_close: float = 0
    heartbeat: float = 0
    control: str = ""
    options: bytes = b""
    """``jobs.model.Options`` of the job as MessagePack; empty: none."""
    key: bytes = b""
    abandoned: bool = False
    """Whether the activity goes on after the close of the run. Not in SWF."""


class RequestCancelActivityTask(DecisionBase, frozen=True, tag=2):
    """Cancel an activity."""

    activity_id: str


class CompleteWorkflowExecution(DecisionBase, frozen=True, tag=3):
    """Close the run with a result."""

    result: bytes = b""


class FailWorkflowExecution(DecisionBase, frozen=True, tag=4):
    """Close the run as failed."""

    reason: str = ""
    details: bytes = b""


class CancelWorkflowExecution(DecisionBase, frozen=True, tag=5):
    """Close the run as cancelled."""

    details: bytes = b""


class ContinueAsNewWorkflowExecution(DecisionBase, frozen=True, tag=6):
    """Close the run and start another one under its workflow id."""

    input: bytes = b""
    version: str = ""
    task_list: str = ""
    task_priority: int = 1
    child_policy: ChildPolicy = ChildPolicy.TERMINATE
    execution_timeout: float = 0
    task_timeout: float = 0
    tags: tuple[str, ...] = ()
    # Not in SWF:
    unread: tuple[int, ...] = ()
    """The events of signals that the code has not received: they go along."""
    delay: float = 0
    """Seconds until the first decision of the new run."""
    attempt: int = 1
    """2 and more: the run has failed, and the new one is another attempt at it, with all its signals."""
    failure: bytes = b""
    """The failure (``jobs.failures.JobFailure``) if it has failed."""


class RecordMarker(DecisionBase, frozen=True, tag=7):
    """Record a marker. The attributes of native markers are as in ``MarkerRecorded``."""

    name: str
    details: bytes = b""
    native: bool = False
    digest: int = 0
    failed: bool = False
    function: str = ""


class StartTimer(DecisionBase, frozen=True, tag=8):
    """Start a timer."""

    timer_id: str
    start_to_fire: float
    control: str = ""


class CancelTimer(DecisionBase, frozen=True, tag=9):
    """Cancel a timer."""

    timer_id: str


class StartChildWorkflowExecution(DecisionBase, frozen=True, tag=10):
    """Start a child."""

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
    control: str = ""


class SignalExternalWorkflowExecution(DecisionBase, frozen=True, tag=11):
    """Send a signal to another run; ``run`` 0: to the open run of the workflow id."""

    workflow_id: str
    name: str
    run: int = 0
    input: bytes = b""
    control: str = ""
    child: int = 0
    """As of `RequestCancelExternalWorkflowExecution`."""
    reach: tuple[str, ...] = ()
    """As of `RequestCancelExternalWorkflowExecution`."""


class RequestCancelExternalWorkflowExecution(DecisionBase, frozen=True, tag=12):
    """Ask another run to cancel itself; ``run`` 0: the open run of the workflow id."""

    workflow_id: str
    run: int = 0
    control: str = ""
    # Not in SWF:
    reason: str = ""
    child: int = 0
    """The number of the command that started the run; then the node adds the workflow id and the run, if the child is open."""
    reach: tuple[str, ...] = ()
    """Patterns of the workflows whose runs the decider may reach, beside its own children; none: all. The node sets them."""


class ScheduleLambdaFunction(DecisionBase, frozen=True, tag=13):
    """Always refused."""

    lambda_id: str
    name: str
    input: bytes = b""
    start_to_close: float = 0
    control: str = ""


Decision = (
    ScheduleActivityTask
    | RequestCancelActivityTask
    | CompleteWorkflowExecution
    | FailWorkflowExecution
    | CancelWorkflowExecution
    | ContinueAsNewWorkflowExecution
    | RecordMarker
    | StartTimer
    | CancelTimer
    | StartChildWorkflowExecution
    | SignalExternalWorkflowExecution
    | RequestCancelExternalWorkflowExecution
    | ScheduleLambdaFunction
)


class StepResult(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The result of a local step, to be recorded as a marker."""

    number: int
    batch: int
    function: str
    result: bytes
    """The result, or the error as JSON (``jobs.failures.JobFailure``)."""
    digest: int
    failed: bool = False
    attempt: int = 1


class StepRetry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A local step that waits for its next attempt while nobody holds a decision of its run."""

    number: int
    attempt: int
    """Attempts that were made."""
    wait_us: int
    """Microseconds until the next one."""
