"""The requests of deciders and clients to a run, with their answers.

The decisions of a decider are SWF's 13 decisions, with the attributes of `mainspring.workflows.history`; see
https://docs.aws.amazon.com/amazonswf/latest/apireference/API_Decision.html. A list is applied in order. A decision that closes
the run must be the last of its list.

The pure rules judge requests; operations of the store carry them.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from mainspring.namespaces import DEFAULT
from mainspring.workflows.history import ChildPolicy
from mainspring.workflows.model import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.errors import MainspringError
    from mainspring.jobs.model import State as JobState
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import Key, Parked


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
    digest: int = 0
    """That of the call, as of `carrying`, if the input is encoded by a codec; 0: it is that of the input."""


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
    """The failure (``jobs.model.JobFailure``) if it has failed."""


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
    # Not in SWF:
    start_within: float = 0
    """Seconds within which the child should have begun, and ended; 0: none, or those of its workflow."""
    deadline: float = 0
    digest: int = 0
    """That of the call, as of `carrying`, if the input is encoded by a codec; 0: it is that of the input."""
    key: str = ""
    """Its concurrency key."""


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
    """The result, or the error as JSON (``jobs.model.JobFailure``)."""
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


if TYPE_CHECKING:
    Failed = Callable[[MainspringError], None]
    """Is called with the error if a request fails."""


class Completion(NamedTuple):
    """A decider's report about a run.

    With ``job`` it holds a decision task. The node puts the task's settlement before this operation and atomically with it,
    unless ``more``: then the decider goes on with the run. Without ``job`` it is *fused*: the decider has just completed
    activities of the run (``settled``), and their settlements go before it. A fused one is current while no decision task of the
    run is held, and nothing is newer than ``seen`` but the ends of these activities.
    """

    run: int
    job: int = 0
    """The decision task's job, held under the node's term; 0 if fused."""
    seen: int = 0
    """The last event that the decider had."""
    now_us: int = 0
    batch: int = 0
    steps: Sequence[StepResult] = ()
    decisions: Sequence[Decision] = ()
    settled: Sequence[int] = ()
    """Jobs of activities."""
    more: bool = False
    about: bytes = b""
    """``model.About`` as MessagePack, for people."""
    parked: Parked | None = None
    """Park the run instead: its code cannot make this decision."""
    build: str = ""
    identity: str = ""
    new_run: int = 0
    """The id of the new run if the decisions continue the run as new; 0: the rules choose it."""
    namespace: str = DEFAULT
    """The namespace of the decider: runs of others are unknown to it."""
    semantics: int = 0
    """The behaviour with which the code ran; see ``model.SEMANTICS``."""
    retries: Sequence[StepRetry] = ()
    """Steps that wait for their next attempts: the run gets a decision when the first one is due."""
    values: Sequence[tuple[str, bytes]] = ()
    """Names and values that the code has published. They are stored with the report, if that is recorded."""
    streams: Sequence[tuple[str, Sequence[bytes]]] = ()
    """Names of streams with the items that the code has written, likewise."""


Verdict = Literal["recorded", "stale", "refused", "parked"]


class Ruling(NamedTuple):
    """The verdict of the rules on a completion."""

    verdict: Verdict
    why: str = ""
    refused_close: bool = False
    """See ``Decided``."""


class Decided(NamedTuple):
    """The outcome of one completion."""

    verdict: Verdict
    why: str = ""
    events: Sequence[Event] = ()
    """All events after ``Completion.seen``, as far as they are in memory; empty if stale."""
    status: Status = Status.OPEN
    refused_close: bool = False
    """The run had unseen events, so that it was not closed: the decider takes them and issues the close again."""


class Signal(NamedTuple):
    """A signal for a run, or for a job whose run has not begun."""

    key: Key
    name: str
    input: bytes
    request: int = 0
    """A hash that identifies the request: a repeated one counts once. 0: none."""
    depth: int = 0
    """That of the job or of the run that sends it; see ``jobs.model.Options``."""


def request_number(text: str | None) -> int:
    """Return the hash that identifies a request by its text; 0 for none."""
    return 0 if text is None else int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) or 1


RequestVerdict = Literal["recorded", "repeated", "unknown", "ambiguous", "closed", "full", "unread", "unbegun", "older"]
"""``ambiguous``: several jobs may be meant, whose runs have not begun; ``unread``: the node cannot read the run. Of a pause:
``unbegun``: the run has not begun; ``older``: a node that shares the store does not know pauses. Of a resume, ``repeated``: the
run is not paused."""


class Reached(NamedTuple):
    """The outcome of a request to a run."""

    verdict: RequestVerdict
    run: int = 0
    """0 if the run has not begun and begins no more, or takes no more signals before its begin."""
    root: int = 0
    event: int = 0
    status: Status = Status.OPEN
    waiting: JobState | None = None
    """The state of the job with which the signal is stored, because its run has not begun."""
    fault: str = ""
    """Why the node cannot read the run."""
