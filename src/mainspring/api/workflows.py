"""Calls about workflows: start, list and show runs, read their histories, and send them requests; their versions and deciders.

A run has a key: the handle of its root job, such as ``H:node:1000000000001``, for the open or last run of a workflow id; the
same with ``@`` and a number for one run; or its workflow id.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.caller import Permission
from mainspring.api.declaration import get, post
from mainspring.api.jobs import REASON_LIMIT
from mainspring.api.request import PAGE_LIMIT, Code, Cursor, Limit, Page, Request, RunKey, Touches
from mainspring.api.submitting import Arguments, PriorityName, has_arguments
from mainspring.features import Feature
from mainspring.sizes import Seconds, Text, TextTuple, Time, about, described
from mainspring.workflows.history import ChildPolicy
from mainspring.workflows.model import Status

StatusName = Literal["open", "completed", "failed", "cancelled", "terminated", "continued_as_new", "timed_out"]
STATUS_NAMES: dict[Status, StatusName] = {
    Status.OPEN: "open",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELED: "cancelled",
    Status.TERMINATED: "terminated",
    Status.CONTINUED_AS_NEW: "continued_as_new",
    Status.TIMED_OUT: "timed_out",
}
STATUS_BY_NAME: dict[str, Status] = {name: status for status, name in STATUS_NAMES.items()}
ChildPolicyName = Literal["terminate", "cancel", "abandon"]
CHILD_POLICIES: dict[ChildPolicyName, ChildPolicy] = {
    "terminate": ChildPolicy.TERMINATE,
    "cancel": ChildPolicy.REQUEST_CANCEL,
    "abandon": ChildPolicy.ABANDON,
}
UnbegunStatus = Literal["scheduled", "pending"]
"""The state of a job whose run has not begun."""
AnyStatus = Literal[StatusName, UnbegunStatus]
SIGNAL_NAME_LIMIT = 256
"""Characters in the name of a signal, as in Amazon SWF."""
FORK_CALLS = 100
"""Calls in each list of an answer about a fork."""
CALL_LIMIT = 600
"""Characters of the name of a call: a function, and the number of the call."""
CALLS_LIMIT = 1000
"""Calls that one request names."""
REQUEST_LIMIT = 256
"""Characters in the key of a request."""

CallName = Annotated[str, msgspec.Meta(min_length=1, max_length=CALL_LIMIT)]
Reason = Annotated[str, msgspec.Meta(max_length=REASON_LIMIT)]
RequestKey = Annotated[
    Annotated[str, msgspec.Meta(max_length=REQUEST_LIMIT)] | None,
    about("A name of this request: while the run is open, a second one with it does nothing."),
]
"""A text of the caller that identifies a request: the run takes a repeated one once."""


class RunInfo(msgspec.Struct):
    """A run; docs/reference/protocol.md explains the keys."""

    handle: str
    id: str
    """The workflow id."""
    type: str
    version: str
    """Empty if the run has not begun."""
    status: AnyStatus
    started_at: str | None
    closed_at: str | None
    events: int
    waits_for: str | None
    run: str
    parked_at: str | None
    overdue_since: str | None = None
    """Since when it should have begun or ended, by its times."""
    paused_at: str | None = None


class ActivityInfo(msgspec.Struct):
    """An open activity of a run."""

    number: str
    """The number of the command in the run."""
    function: str
    handle: str
    """Of the activity's job."""
    state: str | None
    """Of the job; this and the next keys are null where a run has very many activities."""
    worker: str | None
    attempt: int | None
    """The number of the attempt that runs; if none runs, of the attempts that have ended."""
    scheduled_at: str | None
    error: str | None
    """Of the last failed attempt."""


class TimerInfo(msgspec.Struct):
    """An open timer of a run."""

    number: str
    fires_at: str | None
    duration: float | None = None
    """Seconds; None: not known."""
    guards: str | None = None
    """The wait that it ends, such as ``signal approved``; None: it is a sleep, or an older worker started it."""


class ChildInfo(msgspec.Struct):
    """An open child of a run."""

    number: str
    """The number of the command in the run."""
    type: str
    id: str
    """The workflow id."""
    handle: str
    """Of the child's root job."""
    policy: ChildPolicyName
    """Its fate if the run is terminated or times out."""


class ParkingInfo(msgspec.Struct):
    """The reason why a run is parked: its code could not make the next decision."""

    kind: str
    message: str
    recorded: list[str]
    """Of a mismatch: the recorded commands around the first difference."""
    code: list[str]
    """Of a mismatch: the commands of the code at the same places."""
    at: int
    """The index of the first difference in both lists."""
    builds: list[str]
    """The builds of the code that could not make the decision."""


class PauseInfo(msgspec.Struct):
    """A pause of a run: no decision of it is handed out, and none of its waiting activities starts."""

    reason: str
    by: str
    """The caller who has paused it last."""
    until: str | None
    """When it ends by itself; None: not at all."""
    held: int
    """Activities that wait for its end."""


class ProgressInfo(msgspec.Struct):
    """How much of its work a run's code has reported as done."""

    done: int
    total: int
    text: str


class RunHoldInfo(msgspec.Struct):
    """Slots of a resource that a run has, or for which it waits."""

    resource: str
    state: str
    """``held`` or ``waits``."""
    units: int
    item: str
    """Of a request: the labels that each item must have."""
    number: str | None
    """The fencing number of a hold."""
    since: str | None
    lacks: list[str] = []
    """Of a request: the resources whose slots it lacks; none: it is about to get them."""
    behind: list[str] = []
    """Of a request: the holders of requests before it."""
    impossible: bool = False
    """Whether the resources could not serve it even if nobody held anything."""


class RunDetails(RunInfo, kw_only=True):
    """A run with all its details."""

    begins_at: str | None
    """The time up to which its start is delayed, or its next attempt; None if it is not delayed."""
    times_out_at: str | None
    cancel_requested: bool
    attempt: int
    """2 and more if the run is another attempt at one that has failed."""
    failure: str | None
    """Why the attempt before has failed; of a run that another attempt follows, why it has failed itself."""
    previous_run: str | None
    """The run before it in its chain, which continued as new."""
    next_run: str | None
    """The run after it, which continues it as new, or with which it goes on since a reset."""
    error: str | None
    """Why the run failed, timed out or was terminated; None for other runs."""
    input_size: int
    output_size: int
    history_size: int
    parent: str | None
    """The key of the run that has started it."""
    activities: list[ActivityInfo]
    children: list[ChildInfo]
    timers: list[TimerInfo]
    steps: list[str]
    """The functions of local steps that run."""
    receives: list[str]
    """The names of the signals that the code waits to receive."""
    unread: dict[str, int]
    """The number of unread signals, by name."""
    progress: ProgressInfo | None
    """The last report of the code; None if there is none."""
    parked: ParkingInfo | None
    cancel_reason: str | None = None
    """The first reason that a request to cancel has given."""
    start_by: str | None = None
    """When it should have made its first decision."""
    deadline_at: str | None = None
    """When it should have ended."""
    holds: list[RunHoldInfo] = []
    """The slots of resources that it has, and those for which it waits."""
    paused: PauseInfo | None = None
    forked_from: str | None = None
    """The earlier run with a part of which it has begun; see ``workflows.reset``."""
    forked_to: str | None = None
    """The newest run that has begun with a part of it."""


class StartedRun(msgspec.Struct):
    """A started run, or the open one that the request joined."""

    handle: str
    run: str
    id: str
    """The workflow id."""
    joined: bool


class ReachedRun(msgspec.Struct):
    """A run that has taken a request."""

    handle: str
    run: str
    status: AnyStatus
    """For a signal to a run that has not begun: ``scheduled`` or ``pending``."""
    repeated: bool
    """Whether the run had taken a request with this key before, so that it ignored this one; of a resume, whether it was not
    paused."""


class ForkedRun(msgspec.Struct):
    """A new run of a workflow id that begins with a part of an earlier one, or what it would have."""

    source: str
    """The key of the earlier run."""
    handle: str | None
    """Of the root job of the new run; None in a dry run, as ``run``."""
    run: str | None
    event: int
    """Of a reset: the completed decision that is made anew."""
    kept: int
    """Of a reset: the number of events that the new run begins with."""
    results: list[str]
    """The last calls whose results the new run has, such as ``charge#1``, 100 at most."""
    repeated: list[str]
    """The first calls that execute again, if the code makes them again, 100 at most."""
    signals: int
    """The number of signals that the new run gets again."""
    dropped: int = 0
    """Of a reset: the number of events of the earlier run that the new one does not begin with."""
    dropped_signals: int = 0
    """The number of signals that the new run does not get."""
    all_results: int = 0
    """The number of calls whose results the new run has."""
    all_repeated: int = 0
    """The number of calls that execute again."""
    given: list[str] = msgspec.field(default_factory=list)
    """Of a rerun: the calls that get a result of the request."""


class HistoryPage(Page[dict[str, Any]], kw_only=True):
    """A part of a history.

    Events are as in the answers of Amazon SWF's ``GetWorkflowExecutionHistory``; with ``exact`` as in files of histories.
    """

    status: AnyStatus
    """Of the run. A closed run gets no more events."""
    run: str | None = None
    """The key of the run that has the events; None if it has not begun. For the next page, a handle may mean another run."""
    next_run: str | None = None
    """The run that continues it as new."""


class ChangedRuns(msgspec.Struct):
    """The number of runs that a request has changed."""

    number: int


class StartRun(Arguments, Request[StartedRun]):
    """Start a run, or join the open one with its workflow id."""

    permission = Permission.DEVELOP
    requires = Feature.WORKFLOWS
    touches = Touches.FUNCTION
    keeps_answer = True
    call = "workflows.start"
    http = post(
        "workflows",
        status=201,
        location="workflows/{run}",
        others={200: "An open run has this workflow id already."},
        problems=(Code.WORKFLOW_NOT_FOUND, Code.TOO_LARGE, Code.REFUSED),
        example={"function": "order", "id": "order-17", "args": {"amount": 100}},
    )
    function: Annotated[Text, about("The name of a workflow.")]
    id: Annotated[
        Text,
        described(
            "The workflow id, by default the handle. If a run with this id is open, the request joins it instead of starting a"
            " second one.",
            label="Workflow id",
        ),
    ] = ""
    version: Annotated[Text, described("The version of the workflow, by default the newest.")] = ""
    timeout: Annotated[
        Seconds | None,
        described("End the run if it lasts longer; by default as the workflow defines.", label="Time limit"),
    ] = None
    priority: Annotated[PriorityName, described("Runs of a higher priority go on first.")] = "normal"
    start_within: Annotated[
        Seconds | None,
        described("The run is overdue if it has made no decision within this time.", label="Late if not begun within"),
    ] = None
    deadline: Annotated[
        Seconds | None,
        described("The run is overdue if it has not ended within this time.", label="Late if not ended within"),
    ] = None
    concurrency_key: Annotated[
        Text, described("The key whose limits of open runs the run shares.", "--key", label="Concurrency key")
    ] = ""


class ListWorkflowRuns(Request[Page[RunInfo]]):
    """List runs, newest first. They match all given criteria."""

    permission = Permission.READ
    requires = Feature.WORKFLOWS
    call = "workflows.list"
    http = get("workflows")
    only_reads = True
    open: Annotated[bool, described("Only runs that have not ended.")] = False
    closed: Annotated[bool, described("Only runs that have ended.")] = False
    parked: Annotated[bool, described("Only parked runs: their code cannot make the next decision.")] = False
    paused: Annotated[bool, described("Only paused runs.")] = False
    stranded: Annotated[
        bool,
        described("Only runs that have waited for a minute because no worker with their version is connected."),
    ] = False
    overdue: Annotated[bool, described("Only runs that should have begun or ended by now.")] = False
    type: Annotated[Text | None, described("Only runs of this workflow.")] = None
    id: Annotated[Text | None, described("Only runs with this workflow id.", label="Workflow id")] = None
    status: Annotated[
        AnyStatus | None,
        described(
            "Only runs in this status; scheduled and pending runs have not begun, because their start is delayed or the workflow"
            " is paused."
        ),
    ] = None
    since: Annotated[
        Time | None, described("Only runs that started at this time or later, such as 2030-01-31T12:00:00Z.")
    ] = None
    cursor: Cursor = None
    limit: Limit = 100


class ShowRun(Request[RunDetails]):
    """Show a run."""

    permission = Permission.READ
    requires = Feature.WORKFLOWS
    touches = Touches.RUN
    reads_object = True
    call = "workflows.show"
    http = get("workflows/{key}")
    key: RunKey


class ReadHistory(Request[HistoryPage], rename={"first": "from"}):
    """Show the events of a run, in order or the newest first."""

    permission = Permission.READ
    requires = Feature.WORKFLOWS
    touches = Touches.RUN
    reads_object = True
    call = "workflows.history"
    http = get("workflows/{key}/history", problems=(Code.RUN_NOT_FOUND,))
    only_reads = True
    bounds_pages = True
    key: RunKey
    first: Annotated[int, msgspec.Meta(ge=1, le=2**53), about("The number of the first event.")] = 1
    cursor: Cursor = None
    limit: Limit = 100
    native: Annotated[bool, about("Whether to add the attributes that Amazon SWF does not have.")] = False
    reverse: Annotated[bool, about("Whether to begin with the newest event.")] = False
    kinds: Annotated[TextTuple, about("Only events of these types, such as `ActivityTaskFailed`.")] = ()
    exact: Annotated[
        bool,
        about(
            "Whether to answer with all attributes as they are stored, as in the files of `mainspring workflows export`."
        ),
    ] = False


class SignalRun(Request[ReachedRun]):
    """Send a signal to an open run."""

    permission = Permission.OPERATE
    requires = Feature.WORKFLOWS
    touches = Touches.RUN
    call = "workflows.signal"
    http = post(
        "workflows/{key}/signal",
        status=202,
        problems=(Code.CONFLICT, Code.TOO_LARGE),
        example={"name": "approve", "value": {"by": "ada"}},
    )
    is_small = True
    key: RunKey
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=SIGNAL_NAME_LIMIT), about("The name of the signal.")]
    request: RequestKey = None
    value: Annotated[msgspec.Raw | UnsetType, about("Any JSON value.")] = UNSET
    payload: Annotated[bytes | UnsetType, about("The value as base64 of any bytes, in place of `value`.")] = UNSET


class CancelRun(Request[ReachedRun]):
    """Ask an open run to cancel itself."""

    permission = Permission.OPERATE
    requires = Feature.WORKFLOWS
    touches = Touches.RUN
    call = "workflows.cancel"
    http = post(
        "workflows/{key}/cancel", status=202, problems=(Code.CONFLICT,), example={"reason": "the customer called"}
    )
    key: RunKey
    reason: Annotated[Reason, described("A text to store in the history.")] = ""
    request: RequestKey = None


class TerminateRun(Request[ReachedRun]):
    """End an open run at once."""

    permission = Permission.OPERATE
    requires = Feature.WORKFLOWS
    touches = Touches.RUN
    call = "workflows.terminate"
    http = post(
        "workflows/{key}/terminate",
        problems=(Code.CONFLICT,),
        example={"reason": "it does not end", "children": "cancel"},
    )
    key: RunKey
    reason: Annotated[Reason, described("A text to store in the history.")] = ""
    children: Annotated[
        ChildPolicyName | None,
        described(
            "The fate of its open children: they are terminated, asked to cancel themselves, or go on. By default their own"
            " child policies say so.",
            label="Its open children",
        ),
    ] = None


class MoveRun(Request[ReachedRun]):
    """Give a run another version before its code has recorded anything. It continues as new."""

    permission = Permission.OPERATE
    requires = Feature.WORKFLOWS
    touches = Touches.RUN
    call = "workflows.move"
    http = post("workflows/{key}/move", problems=(Code.CONFLICT, Code.WORKFLOW_NOT_FOUND), example={"version": "1"})
    key: RunKey
    version: Annotated[Text, described("A version that a worker has registered.")]


class ResetRun(Request[ForkedRun]):
    """Make one of a run's decisions anew. A new run of the same workflow id repeats the decisions before it."""

    permission = Permission.OPERATE
    requires = Feature.WORKFLOWS
    touches = Touches.RUN
    call = "workflows.reset"
    http = post(
        "workflows/{key}/reset",
        problems=(Code.CONFLICT,),
        example={"before": "charge#2", "dry_run": True},
    )
    key: RunKey
    event: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None,
        described("The decision, by the number of its event DecisionTaskCompleted."),
    ] = None
    before: Annotated[
        CallName | None,
        described("The decision that made this call, such as charge, or charge#2 for the second one.", label="Before"),
    ] = None
    first: Annotated[bool, described("The first decision: the whole run is repeated.")] = False
    last: Annotated[bool, described("The last completed decision.")] = False
    drop_signals: Annotated[bool, described("Do not repeat the signals that came after the decision.")] = False
    dry_run: Annotated[bool, described("Only show what the new run would have.")] = False
    reason: Annotated[Reason, described("A text to store in the history.")] = ""


class PauseRun(Request[ReachedRun]):
    """Pause an open run: no decision of it is handed out, and none of its waiting activities starts, until it is resumed.

    It takes signals and other events on. A paused run gets the new reason and end.
    """

    permission = Permission.OPERATE
    requires = Feature.WORKFLOWS
    touches = Touches.RUN
    call = "workflows.pause"
    http = post(
        "workflows/{key}/pause",
        problems=(Code.CONFLICT,),
        example={"reason": "the bank is down", "until": "2030-01-31T12:00:00Z"},
    )
    key: RunKey
    reason: Annotated[Reason, described("Why, for those who see the pause.")] = ""
    until: Annotated[Time | None, described("Resume it at this time, such as 2030-01-31T12:00:00Z.")] = None


class ResumeRun(Request[ReachedRun]):
    """Resume a paused run."""

    permission = Permission.OPERATE
    requires = Feature.WORKFLOWS
    touches = Touches.RUN
    call = "workflows.resume"
    http = post("workflows/{key}/resume", problems=(Code.CONFLICT,))
    key: RunKey


class RerunRun(Arguments, Request[ForkedRun]):
    """Run a workflow again with the results that a run of it has. Calls with the same function and arguments do not execute.

    A new run of the same workflow id begins with today's code. With arguments or results of the request, that needs the
    permission to submit jobs.
    """

    permission = Permission.OPERATE
    requires = Feature.WORKFLOWS
    touches = Touches.RUN
    call = "workflows.rerun"
    http = post(
        "workflows/{key}/rerun",
        problems=(Code.CONFLICT, Code.WORKFLOW_NOT_FOUND, Code.TOO_LARGE),
        example={"from_call": "charge#2", "skip": {"notify": None}, "args": [17], "dry_run": True},
    )
    key: RunKey
    from_call: Annotated[
        CallName | None,
        described(
            "Do not take over the results of this call, and of those after it: charge, or charge#2 for the second one.",
            "--from",
            metavar="CALL",
            label="From",
        ),
    ] = None
    repeat: Annotated[
        Annotated[tuple[CallName, ...], msgspec.Meta(max_length=CALLS_LIMIT)],
        described("Do not take over the results of this call; it can be given several times.", metavar="CALL"),
    ] = ()
    skip: Annotated[
        Annotated[dict[CallName, Any], msgspec.Meta(max_length=CALLS_LIMIT)] | None,
        about("Results for calls that are not to execute, whatever their arguments are."),
    ] = None
    version: Annotated[Text, described("The version of the workflow, by default that for new runs.")] = ""
    drop_signals: Annotated[bool, described("Do not give the new run the signals of the earlier one.")] = False
    dry_run: Annotated[bool, described("Only show what the new run would have.")] = False
    reason: Annotated[Reason, described("A text to store in the history.")] = ""

    def needs(self) -> Permission:
        """Return the permission to submit jobs for a rerun with other arguments or results."""
        return Permission.DEVELOP if has_arguments(self) or self.skip else self.permission


class UnparkRun(Request[ChangedRuns]):
    """Let the code try a parked run again."""

    permission = Permission.OPERATE
    requires = Feature.WORKFLOWS
    touches = Touches.RUN
    call = "workflows.unpark"
    http = post("workflows/{key}/unpark", problems=(Code.CONFLICT,))
    key: RunKey


class UnparkAllRuns(Request[ChangedRuns]):
    """Let the code try all parked runs again."""

    permission = Permission.OPERATE
    requires = Feature.WORKFLOWS
    touches = Touches.ALL
    call = "workflows.unpark_all"


class VersionInfo(msgspec.Struct):
    """A version of a workflow."""

    type: str
    version: str
    open: int
    """Open runs with this version."""
    parked: int
    """Those of them that are parked."""
    workers: int
    """Connected workers that have it."""
    last_seen_at: str | None
    """When such a worker was last connected; None: never."""
    gets_new_runs: bool
    """Whether runs without a stated version begin with it."""
    needed: bool
    """Whether runs need its code: open ones or new ones."""


class RemovedVersion(msgspec.Struct):
    """A version that nothing needed."""

    type: str
    version: str
    state: Literal["removed"]


class CacheInfo(msgspec.Struct):
    """A worker's memory for runs, as of its last report. The last four count since its start."""

    runs: int
    bytes: int
    limit: int
    decisions: int
    hits: int
    replays: int
    evictions: int


class DeciderInfo(msgspec.Struct):
    """A connected worker that decides runs."""

    worker: str
    node: str
    """The name of the node to which it is connected."""
    versions: list[str]
    """Such as ``order@2``."""
    decisions: int
    """Decisions that it has now."""
    steps: int
    """Those of them that only keep a step, which runs or waits for its next attempt, as of the worker's last report."""
    places: int
    """Decisions that it takes at a time, besides these."""
    full: bool
    """Whether all of its places are taken: it gets no further decision until one of them ends."""
    draining: bool
    """Whether it takes no more of them, because it ends."""
    cache: CacheInfo | None
    """None: it has not reported, as workers of earlier versions."""


class ListVersions(Request[Page[VersionInfo]]):
    """List the versions of a workflow, or of all, the newest first."""

    permission = Permission.READ
    requires = Feature.WORKFLOWS
    call = "workflows.versions"
    http = get("workflow-types", problems=(Code.WORKFLOW_NOT_FOUND,))
    type: Annotated[Text | None, about("The name of a workflow. By default all.")] = None
    cursor: Cursor = None
    limit: Limit = PAGE_LIMIT


class RemoveVersion(Request[RemovedVersion]):
    """Remove a version of a workflow that nothing needs."""

    permission = Permission.DEVELOP
    requires = Feature.WORKFLOWS
    touches = Touches.FUNCTION
    function_field = "type"
    call = "workflows.remove"
    type: Annotated[Text, about("The name of a workflow.")]
    version: Annotated[Text, about("The version.")]


class ListDeciders(Request[Page[DeciderInfo]]):
    """List the connected workers that decide runs."""

    permission = Permission.READ
    requires = Feature.WORKFLOWS
    call = "workflows.workers"
    cursor: Cursor = None
    limit: Limit = PAGE_LIMIT
