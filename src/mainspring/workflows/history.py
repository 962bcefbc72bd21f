"""The events of a history: types of Amazon SWF, and no other.

See https://docs.aws.amazon.com/amazonswf/latest/apireference/API_HistoryEvent.html for their meaning. Each class lists the
attributes that SWF does not have after a comment or with one; SWF's view of a history leaves them out. The native API records
everything else as a marker with one of the names in `MarkerName`. The numbers 48 to 52 and 54 are those of SWF's other events
about lambda functions, which this service never runs.

An event is an array: a tag, its number, its time, its attributes. New attributes are added at the end, with defaults, so that
older histories can be read. A default of a duration is a whole number, which takes one byte. Numbers are dense and begin with 1.
Times are microseconds of wall time, durations are seconds; 0 means none, if nothing else is stated. Ids of events name earlier
events of the same history.
"""

from __future__ import annotations

from enum import StrEnum
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


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


class Event(msgspec.Struct, array_like=True, frozen=True, gc=False, tag_field="kind"):
    """The attributes of all events, and what its class declares about each kind."""

    id: int
    at_us: int

    triggers: ClassVar[bool] = False
    """Whether it asks for a decision: the decider needs it, and did not cause it."""
    outcome: ClassVar[str] = ""
    """The state in which an activity, a timer or a child ends by it, as pages show it."""
    swf_names: ClassVar[dict[str, str]] = {}
    """SWF's names of attributes that have another name than in most events; see `history_json`."""
    own: ClassVar[frozenset[str]] = frozenset()
    """Attributes that SWF has in other events only."""
    client_text: ClassVar[str] = ""
    """The attribute with a text of a client."""


class Refused(Event, frozen=True):
    """A decision that had no effect."""

    triggers: ClassVar = True

    decision_completed: int


class Close(Event, frozen=True):
    """The end of a run."""

    status: ClassVar[str]
    """The name of its ``model.Status``."""
    ends_children: ClassVar[bool] = False
    """Whether it ends the open children, too, by their policies."""


class ActivityEnd(Event, frozen=True):
    """The end of an activity; ``started`` is 0 if it did not start."""

    triggers: ClassVar = True

    scheduled: int
    started: int


class Initiated(Event, frozen=True):
    """A child, a signal or a cancel request of a decision."""

    decision_completed: int


class RequestInitiated(Initiated, frozen=True):
    """A signal or a cancel request to another run."""


class Answer(Event, frozen=True):
    """The answer to such a request; its attribute ``initiated`` names the request."""

    triggers: ClassVar = True


_ACTIVITY_VERSION: Final = {"version": "activityType.version!"}
_SIGNAL: Final = {"name": "signalName!"}
_MARKER: Final = {"name": "markerName!"}
_EXECUTION: Final = {"workflow_id": "workflowExecution.workflowId!", "run": "workflowExecution.runId!"}
_ADDRESS: Final = {"workflow_id": "workflowId!", "run": "runId"}


class WorkflowExecutionStarted(Event, frozen=True, tag=1):
    """The first event of each history."""

    triggers: ClassVar = True

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
    depth: int = 0
    """That of the root job, or of the run that has started this one; see ``jobs.model.Options``."""
    depth_us: int = 0
    """Since when a run before this one in its chain had it; 0: since this event."""
    forked_run: int = 0
    """The run of which this one is a reset or a rerun; see ``workflows.forking``."""
    forked_at: int = 0
    """Of a reset: the completed decision of that run which is made anew."""


class WorkflowExecutionCancelRequested(Event, frozen=True, tag=2):
    """A client, another run or a policy asked the run to cancel itself."""

    triggers: ClassVar = True
    own: ClassVar = frozenset({"reason"})
    client_text: ClassVar = "reason"

    cause: str = ""
    """``CHILD_POLICY_APPLIED`` or empty."""
    external_run: int = 0
    external_workflow_id: str = ""
    external_initiated: int = 0
    reason: str = ""
    """Not in SWF."""
    request: int = 0
    """The key of the request, so that a repeated one counts once. Not in SWF."""


class WorkflowExecutionCompleted(Close, frozen=True, tag=3):
    """The run has a result."""

    status: ClassVar = "COMPLETED"

    decision_completed: int
    result: bytes = b""


class CompleteWorkflowExecutionFailed(Refused, frozen=True, tag=4):
    """The decision did not close the run."""

    cause: str


class WorkflowExecutionFailed(Close, frozen=True, tag=5):
    """The run has failed."""

    status: ClassVar = "FAILED"

    decision_completed: int
    reason: str = ""
    details: bytes = b""


class FailWorkflowExecutionFailed(Refused, frozen=True, tag=6):
    """The decision did not close the run."""

    cause: str


class WorkflowExecutionTimedOut(Close, frozen=True, tag=7):
    """The run lasted longer than its execution timeout."""

    status: ClassVar = "TIMED_OUT"
    ends_children: ClassVar = True

    timeout: TimeoutType = TimeoutType.START_TO_CLOSE
    child_policy: ChildPolicy = ChildPolicy.TERMINATE


class WorkflowExecutionCanceled(Close, frozen=True, tag=8):
    """The run has ended as cancelled."""

    status: ClassVar = "CANCELED"

    decision_completed: int
    details: bytes = b""


class CancelWorkflowExecutionFailed(Refused, frozen=True, tag=9):
    """The decision did not close the run."""

    cause: str


class WorkflowExecutionContinuedAsNew(Close, frozen=True, tag=10):
    """The run has ended, and another one of the same workflow id goes on."""

    status: ClassVar = "CONTINUED_AS_NEW"
    own: ClassVar = frozenset({"reason"})

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
    reason: str = ""
    """Why the run goes on as a fork; empty if its code has continued it."""


class ContinueAsNewWorkflowExecutionFailed(Refused, frozen=True, tag=11):
    """The decision did not close the run."""

    cause: str


class WorkflowExecutionTerminated(Close, frozen=True, tag=12):
    """The run was ended from outside."""

    status: ClassVar = "TERMINATED"
    ends_children: ClassVar = True
    client_text: ClassVar = "reason"

    cause: str = ""
    """``OPERATOR_INITIATED``, ``CHILD_POLICY_APPLIED``, ``EVENT_LIMIT_EXCEEDED`` or empty."""
    reason: str = ""
    details: bytes = b""
    child_policy: ChildPolicy = ChildPolicy.TERMINATE


class WorkflowExecutionSignaled(Event, frozen=True, tag=26):
    """A signal has come in."""

    triggers: ClassVar = True
    swf_names: ClassVar = _SIGNAL

    name: str
    input: bytes = b""
    external_run: int = 0
    external_workflow_id: str = ""
    external_initiated: int = 0
    request: int = 0
    """The key of the request, so that a repeated one counts once. Not in SWF."""
    depth: int = 0
    """That of the job or of the run that has sent it. Not in SWF."""


HELD: Final = "mainspring:held"
LACKING: Final = "mainspring:lacking"
"""The names of the signals by which a node answers a run's request for slots of resources."""


def is_hold_answer(event: WorkflowExecutionSignaled) -> bool:
    """Return whether a signal is such an answer: ``external_initiated`` is the number of the request then."""
    return event.external_initiated > 0 and event.external_run == 0


class DecisionTaskScheduled(Event, frozen=True, tag=13):
    """The run needs a decision."""

    task_list: str = ""
    task_priority: int = 1
    start_to_close: float = 0
    schedule_to_start: float = 0


class DecisionTaskStarted(Event, frozen=True, tag=14):
    """A decider has the task. In a lean history it is recorded with the first result of the decision, or with its end."""

    scheduled: int
    identity: str = ""


class DecisionTaskCompleted(Event, frozen=True, tag=15):
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


class DecisionTaskTimedOut(Event, frozen=True, tag=16):
    """The decider did not decide in time, or did not start."""

    scheduled: int
    started: int
    timeout: TimeoutType


class ActivityTaskScheduled(Event, frozen=True, tag=17):
    """A decision has scheduled an activity."""

    swf_names: ClassVar = _ACTIVITY_VERSION

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
    digest: int = 0
    """As of ``requests.ScheduleActivityTask``."""


class ScheduleActivityTaskFailed(Refused, frozen=True, tag=18):
    """The decision did not schedule an activity."""

    swf_names: ClassVar = _ACTIVITY_VERSION

    activity_id: str
    function: bytes
    version: str
    cause: str


class ActivityTaskStarted(Event, frozen=True, tag=19):
    """A worker has the activity. In a lean history it is recorded with the activity's end."""

    scheduled: int
    identity: str = ""
    attempt: int = 1
    """The number of the attempt. Not in SWF."""


class ActivityTaskCompleted(ActivityEnd, frozen=True, tag=20):
    """The activity has a result."""

    outcome: ClassVar = "succeeded"

    result: bytes = b""


class ActivityTaskFailed(ActivityEnd, frozen=True, tag=21):
    """The activity has failed, after its last attempt."""

    outcome: ClassVar = "failed"

    reason: str = ""
    details: bytes = b""
    """In a lean history the job's error (``jobs.model.JobFailure`` as JSON)."""


class ActivityTaskTimedOut(ActivityEnd, frozen=True, tag=22):
    """The activity did not start or end in time; ``started`` is 0 if it did not start."""

    outcome: ClassVar = "timed_out"

    timeout: TimeoutType
    details: bytes = b""


class ActivityTaskCanceled(ActivityEnd, frozen=True, tag=23):
    """The activity was cancelled; ``started`` is 0 if it did not start."""

    outcome: ClassVar = "cancelled"

    cancel_requested: int = 0
    details: bytes = b""


class ActivityTaskCancelRequested(Event, frozen=True, tag=24):
    """A decision has asked to cancel an activity."""

    decision_completed: int
    activity_id: str


class RequestCancelActivityTaskFailed(Refused, frozen=True, tag=25):
    """The decision named no open activity."""

    activity_id: str
    cause: str


STEP_TIMER: Final = "step-"
"""The ids of the timers for the next attempts of local steps begin with this text; those of code are numbers."""


class TimerStarted(Event, frozen=True, tag=29):
    """A decision has started a timer. ``decision_completed`` is 0 for the next attempt of a local step."""

    decision_completed: int
    timer_id: str
    start_to_fire: float
    control: str = ""
    # Not in SWF:
    fire_us: int = 0
    number: int = 0


class StartTimerFailed(Refused, frozen=True, tag=30):
    """The decision did not start a timer."""

    timer_id: str
    cause: str


class TimerFired(Event, frozen=True, tag=31):
    """A timer's time has come."""

    triggers: ClassVar = True
    outcome: ClassVar = "succeeded"

    timer_id: str
    started: int


class TimerCanceled(Event, frozen=True, tag=32):
    """A decision has cancelled a timer."""

    decision_completed: int
    timer_id: str
    started: int


class CancelTimerFailed(Refused, frozen=True, tag=33):
    """The decision named no open timer."""

    timer_id: str
    cause: str


class StartChildWorkflowExecutionInitiated(Initiated, frozen=True, tag=34):
    """A decision has asked for a child."""

    swf_names: ClassVar = {"workflow_id": "workflowId!"}

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
    start_within: float = 0
    """As of `requests.StartChildWorkflowExecution`."""
    deadline: float = 0
    digest: int = 0
    """As of ``requests.StartChildWorkflowExecution``."""
    key: str = ""


class StartChildWorkflowExecutionFailed(Event, frozen=True, tag=35):
    """No child was started; ``initiated`` is 0 if the decision was refused at once."""

    triggers: ClassVar = True
    outcome: ClassVar = "failed"
    swf_names: ClassVar = {"workflow_id": "workflowId!"}

    decision_completed: int
    initiated: int
    workflow_id: str
    type: str
    version: str
    cause: str
    control: str = ""
    number: int = 0
    """Not in SWF."""


class ChildWorkflowExecutionStarted(Event, frozen=True, tag=36):
    """The child has begun."""

    triggers: ClassVar = True
    swf_names: ClassVar = _EXECUTION

    initiated: int
    run: int
    workflow_id: str
    type: str
    version: str


class ChildEnd(Event, frozen=True):
    """The end of a child."""

    triggers: ClassVar = True
    swf_names: ClassVar = _EXECUTION

    initiated: int
    started: int
    run: int
    workflow_id: str
    type: str
    version: str


class ChildWorkflowExecutionCompleted(ChildEnd, frozen=True, tag=37):
    """The child has a result."""

    outcome: ClassVar = "succeeded"

    result: bytes = b""


class ChildWorkflowExecutionFailed(ChildEnd, frozen=True, tag=38):
    """The child has failed."""

    outcome: ClassVar = "failed"

    reason: str = ""
    details: bytes = b""


class ChildWorkflowExecutionTimedOut(ChildEnd, frozen=True, tag=39):
    """The child lasted longer than its execution timeout."""

    outcome: ClassVar = "timed_out"

    timeout: TimeoutType = TimeoutType.START_TO_CLOSE


class ChildWorkflowExecutionCanceled(ChildEnd, frozen=True, tag=40):
    """The child has ended as cancelled."""

    outcome: ClassVar = "cancelled"

    details: bytes = b""


class ChildWorkflowExecutionTerminated(ChildEnd, frozen=True, tag=41):
    """The child was ended from outside."""

    outcome: ClassVar = "cancelled"
    own: ClassVar = frozenset({"reason"})

    reason: str = ""
    """Not in SWF."""


class RequestTaken(Answer, frozen=True):
    """The other run has the request."""

    swf_names: ClassVar = _EXECUTION

    initiated: int
    workflow_id: str
    run: int


class RequestNotTaken(Answer, frozen=True):
    """There is no open run that the decider of the request could reach."""

    swf_names: ClassVar = _ADDRESS

    decision_completed: int
    initiated: int
    workflow_id: str
    run: int
    cause: str
    control: str = ""


class SignalExternalWorkflowExecutionInitiated(RequestInitiated, frozen=True, tag=42):
    """A decision has sent a signal to another run."""

    swf_names: ClassVar = _ADDRESS | _SIGNAL

    workflow_id: str
    run: int
    name: str
    input: bytes = b""
    control: str = ""
    # Not in SWF:
    number: int = 0
    reach: tuple[str, ...] = ()
    """Patterns of the workflows whose runs the decider could reach; none: all."""


class SignalExternalWorkflowExecutionFailed(RequestNotTaken, frozen=True, tag=43):
    """The signal found no open run that its decider could reach."""


class ExternalWorkflowExecutionSignaled(RequestTaken, frozen=True, tag=44):
    """The other run has the signal."""


class RequestCancelExternalWorkflowExecutionInitiated(RequestInitiated, frozen=True, tag=45):
    """A decision has asked another run to cancel itself."""

    swf_names: ClassVar = _ADDRESS
    own: ClassVar = frozenset({"reason"})

    workflow_id: str
    run: int
    control: str = ""
    # Not in SWF:
    number: int = 0
    reason: str = ""
    reach: tuple[str, ...] = ()
    """As of `SignalExternalWorkflowExecutionInitiated`."""


class RequestCancelExternalWorkflowExecutionFailed(RequestNotTaken, frozen=True, tag=46):
    """The request found no open run that its decider could reach."""


class ExternalWorkflowExecutionCancelRequested(RequestTaken, frozen=True, tag=47):
    """The other run has the request."""


class MarkerName(StrEnum):
    """The markers of the native API. Users of SWF may use the same names: `MarkerRecorded.native` tells them apart."""

    STEP = "step"
    """The result of a local step."""
    SIDE = "side"
    """The result of a side effect."""
    PATCH = "patch"
    """The code asked for a patch."""
    UPDATE = "update"
    HOLD = "hold"
    """The code asks for slots of resources; see ``workflows.run_holds``."""
    RELEASE = "release"
    """It gives them back, or does not wait for them any more."""
    WITHDRAW = "withdraw"
    """It has waited for them for long enough."""
    CARRIED_STEP = "carried-step"
    """A result that a rerun has taken over from the run before; see ``workflows.carrying``."""
    CARRIED_ACTIVITY = "carried-activity"
    CARRIED_CHILD = "carried-child"
    CARRIED_SIDE = "carried-side"
    GIVEN_RESULT = "given-result"
    """A result that the person who began the rerun has given."""


class MarkerRecorded(Event, frozen=True, tag=27):
    """A decision has recorded a marker. ``decision_completed`` is 0 for a step that was recorded before its decision ended."""

    swf_names: ClassVar = _MARKER
    own: ClassVar = frozenset({"function"})

    decision_completed: int
    name: str
    details: bytes = b""
    # Not in SWF:
    native: bool = False
    number: int = 0
    """The number of the step, the side effect or the patch among those of its name in the run. Of a carried result: its event in
    the run before."""
    batch: int = 0
    """The results of one batch came in one turn of the worker's loop; batches of a decision are numbered from 1. Of a given
    result: the number of the call that gets it; 0 for each."""
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


class RecordMarkerFailed(Refused, frozen=True, tag=28):
    """The decision did not record a marker."""

    swf_names: ClassVar = _MARKER

    name: str
    cause: str


class ScheduleLambdaFunctionFailed(Refused, frozen=True, tag=53):
    """This service runs no lambda functions."""

    swf_names: ClassVar = {"name": "name!"}

    lambda_id: str
    name: str
    cause: str


E = TypeVar("E", bound=Event)
H = TypeVar("H", bound="Callable[..., Any]")


def kinds(family: type[E]) -> list[type[E]]:
    """Return the classes of a family of events, in the order of their numbers."""
    found = [family, *(kind for below in family.__subclasses__() for kind in kinds(below))]
    return sorted({kind for kind in found if isinstance(kind.__struct_config__.tag, int)}, key=_number)


def _number(kind: type[Event]) -> Any:
    return kind.__struct_config__.tag


def handlers_by_kind(*handlers: H) -> dict[type[Event], H]:
    """Return handlers by the classes of their events, or families of events, which annotate their parameter ``event``."""
    found: dict[type[Event], H] = {}
    for handler in handlers:
        for name in handler.__annotations__["event"].split(" | "):
            found |= dict.fromkeys(kinds(globals()[name.removeprefix("history.")]), handler)
    return found


KINDS: Final = {kind.__name__: kind for kind in kinds(Event)}
"""The classes of all events by their names."""

encode_events: Final = msgspec.msgpack.Encoder().encode
decode_events: Final[Callable[[bytes], list[Event]]] = msgspec.msgpack.Decoder(list[reduce(or_, KINDS.values())]).decode  # type: ignore[misc]
"""To and from a block: the stored form of consecutive events."""
