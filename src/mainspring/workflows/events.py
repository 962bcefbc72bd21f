"""The classes of events; `history` has what is true for all of them.

Lambda functions are always refused, but part of SWF's model. Markers have the results of steps and side effects, and those of
SWF's deciders.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class ChildPolicy(StrEnum):
    """The effect on the children of a run that is terminated or timed out."""

    TERMINATE = "TERMINATE"
    REQUEST_CANCEL = "REQUEST_CANCEL"
    ABANDON = "ABANDON"


class TimeoutType(StrEnum):
    """The clock that ran out."""

    START_TO_CLOSE = "START_TO_CLOSE"
    SCHEDULE_TO_START = "SCHEDULE_TO_START"
    SCHEDULE_TO_CLOSE = "SCHEDULE_TO_CLOSE"
    HEARTBEAT = "HEARTBEAT"


class EventBase(msgspec.Struct, array_like=True, frozen=True, gc=False, tag_field="kind"):
    """The attributes of all events."""

    id: int
    at_us: int


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
    """The failure of this run (``jobs.model.JobFailure``) if it has failed."""


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


class DecisionTaskScheduled(EventBase, frozen=True, tag=13):
    """The run needs a decision."""

    task_list: str = ""
    task_priority: int = 1
    start_to_close: float = 0
    schedule_to_start: float = 0


class DecisionTaskStarted(EventBase, frozen=True, tag=14):
    """A decider has the task. In a lean history it is recorded with the first result of the decision, or with its end."""

    scheduled: int
    identity: str = ""


class DecisionTaskCompleted(EventBase, frozen=True, tag=15):
    """The decider has decided; the events of its decisions follow."""

    scheduled: int
    started: int
    context: str = ""
    # Not in SWF:
    seen: int = 0
    """The last event that the decider had."""
    now_us: int = 0
    """The time of the decision, as its code read it."""
    batch: int = 0
    """The last batch of step results that the decision has used."""
    semantics: int = 0
    """The behaviour of `workflow_code` with which its code ran; see ``workflows.model.SEMANTICS``."""


class DecisionTaskTimedOut(EventBase, frozen=True, tag=16):
    """The decider did not decide in time, or did not start."""

    scheduled: int
    started: int
    timeout: TimeoutType


class ActivityTaskScheduled(EventBase, frozen=True, tag=17):
    """A decision has scheduled an activity."""

    decision_completed: int
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
    # Not in SWF:
    job: int = 0
    """The job that a worker gets; 0 in a full history."""
    options: bytes = b""
    """``jobs.model.Options`` of the job as MessagePack: retry, timeout and heartbeat; empty: none."""
    key: bytes = b""
    """The job's key of limits."""
    number: int = 0
    """The number of the command in the run."""
    abandoned: bool = False
    """Whether the activity goes on after the close of the run."""
    timed_from_us: int = 0
    """The time from which its timeouts run; 0: that of the event. They differ after the clock was stepped back."""


class ScheduleActivityTaskFailed(EventBase, frozen=True, tag=18):
    """The decision did not schedule an activity."""

    decision_completed: int
    activity_id: str
    function: bytes
    version: str
    cause: str


class ActivityTaskStarted(EventBase, frozen=True, tag=19):
    """A worker has the activity. In a lean history it is recorded with the activity's end."""

    scheduled: int
    identity: str = ""
    attempt: int = 1
    """The number of the attempt. Not in SWF."""


class ActivityTaskCompleted(EventBase, frozen=True, tag=20):
    """The activity has a result."""

    scheduled: int
    started: int
    result: bytes = b""


class ActivityTaskFailed(EventBase, frozen=True, tag=21):
    """The activity has failed, after its last attempt."""

    scheduled: int
    started: int
    reason: str = ""
    details: bytes = b""
    """In a lean history the job's error (``jobs.model.JobFailure`` as JSON)."""


class ActivityTaskTimedOut(EventBase, frozen=True, tag=22):
    """The activity did not start or end in time; ``started`` is 0 if it did not start."""

    scheduled: int
    started: int
    timeout: TimeoutType
    details: bytes = b""


class ActivityTaskCanceled(EventBase, frozen=True, tag=23):
    """The activity was cancelled; ``started`` is 0 if it did not start."""

    scheduled: int
    started: int
    cancel_requested: int = 0
    details: bytes = b""


class ActivityTaskCancelRequested(EventBase, frozen=True, tag=24):
    """A decision has asked to cancel an activity."""

    decision_completed: int
    activity_id: str


class RequestCancelActivityTaskFailed(EventBase, frozen=True, tag=25):
    """The decision named no open activity."""

    decision_completed: int
    activity_id: str
    cause: str


STEP_TIMER: Final = "step-"
"""The ids of the timers for the next attempts of local steps begin with this text; those of code are numbers."""


class TimerStarted(EventBase, frozen=True, tag=29):
    """A decision has started a timer. ``decision_completed`` is 0 for the next attempt of a local step."""

    decision_completed: int
    timer_id: str
    start_to_fire: float
    control: str = ""
    # Not in SWF:
    fire_us: int = 0
    number: int = 0


class StartTimerFailed(EventBase, frozen=True, tag=30):
    """The decision did not start a timer."""

    decision_completed: int
    timer_id: str
    cause: str


class TimerFired(EventBase, frozen=True, tag=31):
    """A timer's time has come."""

    timer_id: str
    started: int


class TimerCanceled(EventBase, frozen=True, tag=32):
    """A decision has cancelled a timer."""

    decision_completed: int
    timer_id: str
    started: int


class CancelTimerFailed(EventBase, frozen=True, tag=33):
    """The decision named no open timer."""

    decision_completed: int
    timer_id: str
    cause: str


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


class MarkerName(StrEnum):
    """The markers of the native API. Users of SWF may use the same names: `MarkerRecorded.native` tells them apart."""

    STEP = "step"
    """The result of a local step."""
    SIDE = "side"
    """The result of a side effect."""
    PATCH = "patch"
    """The code asked for a patch."""
    UPDATE = "update"


class MarkerRecorded(EventBase, frozen=True, tag=27):
    """A decision has recorded a marker. ``decision_completed`` is 0 for a step that was recorded before its decision ended."""

    decision_completed: int
    name: str
    details: bytes = b""
    # Not in SWF:
    native: bool = False
    number: int = 0
    """The number of the step, the side effect or the patch among those of its name in the run."""
    batch: int = 0
    """The results of one batch came in one turn of the worker's loop; batches of a decision are numbered from 1."""
    seen: int = 0
    now_us: int = 0
    """``seen`` and ``now_us`` of the decision, so that a lost one can be resumed."""
    digest: int = 0
    """Of the result; for a step of its arguments, too. See ``workflow_code.matching``."""
    attempt: int = 1
    failed: bool = False
    """Whether ``details`` is the step's error (``jobs.model.JobFailure`` as JSON) and not its result."""
    function: str = ""
    semantics: int = 0
    """As of ``DecisionTaskCompleted``, for the step of a decision that may be lost."""


class RecordMarkerFailed(EventBase, frozen=True, tag=28):
    """The decision did not record a marker."""

    decision_completed: int
    name: str
    cause: str


class LambdaFunctionScheduled(EventBase, frozen=True, tag=48):
    """Never recorded here."""

    decision_completed: int
    lambda_id: str
    name: str
    input: bytes = b""
    start_to_close: float = 0
    control: str = ""


class LambdaFunctionStarted(EventBase, frozen=True, tag=49):
    """Never recorded here."""

    scheduled: int


class LambdaFunctionCompleted(EventBase, frozen=True, tag=50):
    """Never recorded here."""

    scheduled: int
    started: int
    result: bytes = b""


class LambdaFunctionFailed(EventBase, frozen=True, tag=51):
    """Never recorded here."""

    scheduled: int
    started: int
    reason: str = ""
    details: bytes = b""


class LambdaFunctionTimedOut(EventBase, frozen=True, tag=52):
    """Never recorded here."""

    scheduled: int
    started: int
    timeout: TimeoutType = TimeoutType.START_TO_CLOSE


class ScheduleLambdaFunctionFailed(EventBase, frozen=True, tag=53):
    """This service runs no lambda functions."""

    decision_completed: int
    lambda_id: str
    name: str
    cause: str


class StartLambdaFunctionFailed(EventBase, frozen=True, tag=54):
    """Never recorded here."""

    scheduled: int
    cause: str
    message: str = ""
