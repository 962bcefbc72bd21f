"""The port of the workflows slice: its operations and queries, with their outcomes.

Inside the transaction, the slice's unit applies the pure rules to the tables of an engine and decides all writes, for all
engines. A failed guard affects only its own item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from mainspring.access.audit import Acting
from mainspring.storage.engine import Operation, PageQuery, Phase, Query
from mainspring.workflows.model import UNKNOWN_BUILD, Parking, State, Status

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.access.idempotency import KeyedAct
    from mainspring.jobs.model import Job, Options
    from mainspring.jobs.store import Found
    from mainspring.workflows.cross_run import ErrandsAside
    from mainspring.workflows.forking import Change, ForkPlan
    from mainspring.workflows.history import ChildPolicy, Event  # noqa: F401 - the type of a query's rows
    from mainspring.workflows.model import (
        Definition,
        Key,
        Parked,
    )
    from mainspring.workflows.requests import Completion, Reached, Signal

# ---- starts ----


class Start(NamedTuple):
    """A run to be started for a new job, which becomes its root job."""

    job: Job
    version: str = ""
    """Empty: that for new runs; see ``workflows.versions``."""
    timeout: float = 0.0
    """Seconds; 0: that of the definition."""


class BeginRuns(Operation):
    """Store new root jobs and begin their runs.

    Guards: as of ``Submit`` for the job; the function is a registered workflow; no open run has the workflow id. If another
    function's run has it, the root job is stored as FAILED with ``WorkflowAlreadyRunning``. A job of a workflow with limits is
    stored as PENDING, and begins once there is a place: see `places`. Outcome: ``Begun``; or, with a key of an earlier request,
    the ``Reservation`` of that.
    """

    phase = Phase.SLICES
    is_request = True
    brings_jobs = True
    keyed = True
    starts: list[Start]
    now_us: int
    keyed_act: KeyedAct | None = None

    def __post_init__(self) -> None:
        self.rows = 2 * len(self.starts)


class Begun(NamedTuple):
    """The outcome of BeginRuns."""

    joined: dict[int, Found]
    """For each job that was not stored (by its id), the one that it joins."""
    refused: dict[int, str]
    """For each job that could not begin, the reason, such as an unregistered version. Nothing of it was stored."""


class BeginWaiting(Operation):
    """Begin runs for stored due jobs of a registered workflow, at most ``limit``, in the order of a claim.

    If the workflow has limits, it begins those that have places, as `FillPlaces` does. Outcome: the number of begun runs; fewer
    than ``limit`` if no more jobs wait, or may begin.
    """

    phase = Phase.SLICES
    function: bytes
    limit: int
    now_us: int

    def __post_init__(self) -> None:
        self.rows = self.limit


class FillPlaces(Operation):
    """Begin runs for pending jobs of a workflow with limits, as far as these let: at most ``limit``, in the order of a claim.

    If the limits depend on keys, only for jobs of ``keys``; None: of all keys, a number of them at a time, from the first one
    after ``after`` on. Outcome: `jobs.run_places.Filled`.
    """

    phase = Phase.SLICES
    function: bytes
    limit: int
    now_us: int
    keys: Sequence[bytes] | None = None
    after: bytes | None = None

    def __post_init__(self) -> None:
        self.rows = self.limit


# ---- decisions ----


class Decide(Operation):
    """Record what deciders report. Outcome: ``list[Decided]``.

    A step number that is there already is skipped if its result has the same digest; otherwise the completion is stale. Of a
    stale one, only settlements count, which are operations of their own. A malformed list of decisions is refused whole.
    """

    phase = Phase.SLICES
    is_request = True
    completions: list[Completion]
    now_us: int

    def __post_init__(self) -> None:
        self.rows = 2 * len(self.completions)


# ---- requests from outside ----


class SignalRuns(Operation):
    """Record signals. Outcome: ``list[Reached]``.

    A signal to a waiting job begins its run. If the job's function is not a workflow yet, or is paused, the signal is stored with
    the job.
    """

    phase = Phase.SLICES
    is_request = True
    signals: list[Signal]
    now_us: int
    tasks: Container[bytes] = ()
    """Functions that have workers for tasks: their jobs are no runs, unless a worker has registered them as workflows."""
    paused: Container[bytes] = ()
    """Paused functions: their runs do not begin."""

    def __post_init__(self) -> None:
        self.rows = len(self.signals)


class SentSignal(NamedTuple):
    """A signal that a user has sent in a transaction of their own."""

    number: int
    """The order of the sends."""
    namespace: str
    run: str
    """A handle or a workflow id."""
    name: str
    request: str
    """A text that identifies the request; empty for none."""
    input: bytes


class SentSignals(NamedTuple):
    """The answer to FindSentSignals."""

    signals: Sequence[SentSignal]
    refused: int | None
    """How many refused ones the store has, or None if they were not counted.

    Then since when, in microseconds of wall time, and the reason of the last one.
    """
    since_us: int = 0
    reason: str = ""


class FindSentSignals(Query[SentSignals], frozen=True):
    """Read the first signals that users have sent in transactions of their own."""

    aside: tuple[int, ...] = ()
    """The numbers of some that wait, and with them all to their runs."""
    counts_refused: bool = True
    """Whether to read how many refused ones there are."""


class ShowSubmitted(Query[tuple[int, int]], frozen=True):
    """Read the oldest and the newest submission in users' own transactions that is no job yet; 0 and 0 if there is none."""

    is_small = True


class Delivered(NamedTuple):
    """The outcome of DeliverSignals: those of its signals that stay stored, by their numbers."""

    unread: Mapping[int, str]
    """For each signal whose run this node cannot read, the reason."""
    awaited: Mapping[int, int]
    """For each signal whose run may still be a submission in a user's own transaction, the newest submission that may be it."""
    elsewhere: bool = False
    """Whether another node has passed some of them on: two nodes would wait for each other."""

    def keeps(self, number: int) -> bool:
        """Return whether a signal stays stored."""
        return number in self.unread or number in self.awaited


class DeliverSignals(Operation):
    """Pass on sent signals that are still stored, and delete them. Those that no run takes are refused: they get a reason.

    Outcome: ``Delivered``.
    """

    phase = Phase.SLICES
    sent: Sequence[SentSignal]
    now_us: int
    awaited: Mapping[int, int] = msgspec.field(default_factory=dict)
    """As in the outcome of the last attempt."""
    tasks: Container[bytes] = ()
    """As of `SignalRuns`, like ``paused``."""
    paused: Container[bytes] = ()

    def __post_init__(self) -> None:
        self.rows = 2 * len(self.sent)
        self.size = sum(len(one.input) + 200 for one in self.sent)


class RequestCancelRun(Acting):
    """Ask a run to cancel itself; one that has not begun is cancelled. Outcome: ``Reached``."""

    phase = Phase.SLICES
    key: Key
    reason: str
    now_us: int
    request: int = 0
    tasks: Container[bytes] = ()
    """As of `SignalRuns`."""

    def recorded(self, outcome: Reached) -> Act | None:
        """Return the act, if the request was recorded."""
        return self.act if outcome.verdict == "recorded" else None


class TerminateRun(Acting):
    """End a run at once; one that has not begun is cancelled. Its open activities are cancelled. Outcome: ``Reached``."""

    phase = Phase.SLICES
    key: Key
    reason: str
    now_us: int
    details: bytes = b""
    children: ChildPolicy | None = None
    tasks: Container[bytes] = ()
    """As of `SignalRuns`."""

    def recorded(self, outcome: Reached) -> Act | None:
        """Return the act, if the request was recorded."""
        return self.act if outcome.verdict == "recorded" else None


class PauseRun(Acting):
    """Pause an open run, or change its pause: see `workflows.pausing`. Outcome: ``Reached``.

    Guard: all nodes that share the store know pauses, and no others share it from now on.
    """

    phase = Phase.SLICES
    key: Key
    now_us: int
    reason: str = ""
    by: str = ""
    """The caller."""
    until_us: int = 0
    """When it ends by itself; 0: not at all."""
    tasks: Container[bytes] = ()
    """As of `SignalRuns`."""

    def recorded(self, outcome: Reached) -> Act | None:
        """Return the act, if the run was paused."""
        return self.act if outcome.verdict == "recorded" else None


class ResumeRun(Acting):
    """End the pause of a run. Outcome: ``Reached``."""

    phase = Phase.SLICES
    key: Key
    now_us: int
    tasks: Container[bytes] = ()
    """As of `SignalRuns`."""

    def recorded(self, outcome: Reached) -> Act | None:
        """Return the act, if the run was paused."""
        return self.act if outcome.verdict == "recorded" else None


class MoveRun(Acting):
    """Give an open run another version, unless its code has recorded something: it continues as new. Outcome: ``Moved``."""

    phase = Phase.SLICES
    key: Key
    version: str
    now_us: int
    tasks: Container[bytes] = ()
    """As of `SignalRuns`."""

    def recorded(self, outcome: Moved) -> Act | None:
        """Return the act, if the run was moved."""
        return self.act if outcome.verdict == "moved" else None


class Moved(NamedTuple):
    """The outcome of MoveRun."""

    verdict: Literal["moved", "same", "recorded", "unregistered", "unbegun", "closed", "ambiguous", "unread", "unknown"]
    run: int = 0
    """The run that goes on."""
    root: int = 0
    status: Status = Status.OPEN
    versions: tuple[str, ...] = ()
    """The registered ones, if that of the request is none of them."""
    fault: str = ""
    """Why the node cannot read the run (``unread``)."""


class ForkRun(Acting):
    """Begin a fork of a run (`forking`), or tell what it would have. Outcome: ``Forked``."""

    phase = Phase.SLICES
    key: Key
    change: Change
    now_us: int
    dry_run: bool = False
    tasks: Container[bytes] = ()
    """As of `SignalRuns`."""

    def recorded(self, outcome: Forked) -> Act | None:
        """Return the act, if the fork has begun."""
        return self.act if outcome.verdict == "forked" else None


class Forked(NamedTuple):
    """The outcome of ForkRun."""

    verdict: Literal[
        "forked",
        "planned",
        "refused",
        "open",
        "unregistered",
        "unbegun",
        "ambiguous",
        "unread",
        "unknown",
    ]
    source: int = 0
    """The earlier run."""
    source_root: int = 0
    run: int = 0
    """The fork."""
    root: int = 0
    plan: ForkPlan | None = None
    fault: str = ""
    """Why it is refused, or this node cannot read the run (``unread``)."""
    versions: tuple[str, ...] = ()
    """The registered ones, if that of the request is none of them."""
    rival: int = 0
    """The open run of the workflow id (``open``), or the job that waits."""


# ---- time, parking, definitions, retention ----


class RingAlarms(Operation):
    """Record the timers and timeouts of runs that are due. A run without one is left alone, and one that cannot be read.

    Outcome: ``dict[int, int]``: for each run that is still open, its next alarm; 0 if it has none.
    """

    phase = Phase.SLICES
    runs: list[int]
    now_us: int

    def __post_init__(self) -> None:
        self.rows = len(self.runs)


class UnparkRuns(Acting):
    """Let parked runs go on: one run, or those of one definition that the build has not tried, or all.

    Outcome: the number of runs, at most ``limit``.
    """

    phase = Phase.SLICES
    now_us: int
    key: Key | None = None
    definition: tuple[str, ...] | None = None
    """Namespace, name and version, or the first of them alone."""
    build: str = ""
    limit: int = 100

    def __post_init__(self) -> None:
        self.rows = self.limit


class SaveDefinitions(Operation):
    """Store definitions with the time at which they were last seen, and that time of others. Outcome: all definitions.

    Guard of new ones: no node of a version without runs shares the store.
    """

    phase = Phase.SLICES
    definitions: Sequence[Definition]
    now_us: int
    seen: Collection[tuple[str, str, str]] = ()
    """Namespaces, names and versions of stored definitions, which do not change otherwise."""
    gone: Collection[tuple[str, str, str]] = ()
    """Those that have no workers, while others of their workflow have: from now on they count as last seen long ago."""

    def __post_init__(self) -> None:
        self.rows = len(self.definitions) + len(self.seen) + len(self.gone)


class ForgetRuns(Operation):
    """Delete runs that were closed before a time, with their histories and root jobs, the oldest first.

    Runs whose rows this version cannot read are left. Outcome: the number of deleted runs, at most ``limit``. It is less, but not
    0, if they have many events.
    """

    phase = Phase.SLICES
    before_us: int
    limit: int = 100
    namespace: str = "default"

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class RunErrands(Operation):
    """Do the first stored requests of runs to other runs, behind those that are set aside.

    With ``from_first``, it begins with the first one of all, also if that is set aside. Outcome: ``RanErrands``. If some may be
    left, the observers are called, as after every group that leaves some.
    """

    phase = Phase.SLICES
    now_us: int
    from_first: bool = False

    def __post_init__(self) -> None:
        self.rows = 200


class RanErrands(NamedTuple):
    """The outcome of RunErrands."""

    left: bool
    """Whether there may be stored errands that were not tried."""
    done: Sequence[int]
    """The numbers of those that were done."""
    aside: ErrandsAside
    """Those that are set aside."""
    is_elsewhere: bool = False
    """Whether another node does errands: none were tried."""


class HasErrands(Query[bool], frozen=True):
    """Read whether there are stored errands behind one."""

    after: int


class SweepEarlySignals(Operation):
    """Delete signals to jobs for which no run begins any more: those that are not stored, or have ended as a task's.

    It examines ``limit`` jobs with ids above ``after``. Outcome: the last one; 0 if there are no more.
    """

    phase = Phase.SLICES
    after: int = 0
    limit: int = 100

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class FindAlarms(Operation):
    """Read the runs whose alarm is not after ``until_us``, the earliest first. Outcome: ``Alarms``."""

    phase = Phase.READ
    reads = True
    until_us: int
    limit: int = 10_000

    def __post_init__(self) -> None:
        self.rows = self.limit


class Alarms(NamedTuple):
    """The outcome of FindAlarms: see `storage.agenda.Upcoming`."""

    due: list[tuple[int, int]]
    """Runs with their times."""
    next_us: int | None


class RunRow(msgspec.Struct):
    """A run without its state and its history: its row in the store."""

    id: int
    root: int
    namespace: str
    workflow_id: str
    type: str
    version: str
    status: Status = Status.OPEN
    started_us: int = 0
    closed_us: int = 0
    events: int = 0
    history_bytes: int = 0
    input_size: int = 0
    output_size: int = 0
    due_us: int = 0
    about: bytes = b""
    """`model.About` as MessagePack."""
    decision: int = 0
    """The job of the open decision task; 0 if there is none."""
    slot: int = 0
    """The hash slot of the root job, and of the jobs of the run."""
    parking: Parking = msgspec.field(default_factory=Parking)
    unread: str = ""
    """Why this version cannot read all of the row; empty if it can. The values that it cannot read are defaults."""
    written: int = 0
    """A number that each write of the row changes, in stores with several nodes."""

    @property
    def parked(self) -> Parked | None:
        """Return the reason for which it is parked."""
        return self.parking.parked

    @property
    def parked_us(self) -> int:
        """Return since when it is parked; 0 if it is not."""
        return self.parking.parked_us

    @property
    def paused_us(self) -> int:
        """Return since when it is paused; 0 if it is not."""
        return 0 if self.parking.pause is None else self.parking.pause.at_us

    @property
    def builds(self) -> tuple[str, ...]:
        """Return the builds whose code could not make a decision of the run, as far as they are known."""
        return tuple(build for build in self.parking.builds if build != UNKNOWN_BUILD)


class ShownRun(NamedTuple):
    """A run with its state."""

    row: RunRow
    state: State
    fault: str = ""
    """Why this node cannot read it; empty if it can. Its state is empty then."""
    options: Options | None = None
    """Of the root job of an open run, in lists."""


class ListRuns(PageQuery[ShownRun], frozen=True, kw_only=True):
    """Read runs, the newest first. A page continues after a run's id."""

    namespace: str = "default"
    status: tuple[int, ...] = ()
    """Empty: any."""
    parked: bool = False
    paused: bool = False
    needs_decision: bool = False
    """Only runs whose decision task has a job."""
    type: str | None = None
    workflow_id: str | None = None
    since_us: int = 0
    closed_states: bool = True
    """Whether closed runs have their states; without, these are empty, and the histories of closed runs are not read."""


class Unbegun(NamedTuple):
    """A waiting job whose run has not begun."""

    job: Job
    is_workflow: bool
    """Whether a worker has registered its function as a workflow. If not, it may be a task's job."""


Shown = ShownRun | list[Unbegun]
"""The answer to ShowRun: a run; without one, the waiting jobs that may be meant."""


class ShowRun(Query[Shown], frozen=True):
    """Read the run that a key names; without one, the waiting jobs that it may name."""

    key: Key


class ReadHistory(PageQuery["Event"], frozen=True, kw_only=True):
    """Read the events of a run in order: none if it is in another namespace. A page continues after an event's number."""

    run: int
    namespace: str = "default"
    apart: bool = False
    """Whether to leave the payloads apart that are kept so: then their events have stubs (`workflows.payloads`)."""


class CountParked(Query["dict[tuple[str, str, str], int]"], frozen=True):
    """Count parked runs by namespace, type and version."""


class FindDefinitions(Query["list[Definition]"], frozen=True):
    """Read all definitions."""


class Versions(NamedTuple):
    """The answer to FindVersions."""

    definitions: list[Definition]
    parked: dict[tuple[str, str, str], int]
    """Parked runs by namespace, type and version."""


class FindVersions(Query[Versions], frozen=True):
    """Do `FindDefinitions` and `CountParked` at once: an idle node finds by one statement what the others have changed."""
