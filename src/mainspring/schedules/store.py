"""The port of the schedules slice: its operations with their outcomes, and its tables.

Inside the transaction, ``unit`` applies the pure rules to the tables and decides the writes, for all engines. A failed guard
affects only its own schedule.
"""

from __future__ import annotations

import sys
from collections import Counter
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from msgspec import UNSET, UnsetType

from mainspring.access.audit import Acting
from mainspring.event_log import types
from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import ScheduleFields
from mainspring.jobs.slices import SliceTransaction
from mainspring.namespaces import ANY, split_text
from mainspring.schedules.model import FireState
from mainspring.schedules.reconcile import Stored
from mainspring.schedules.rules import STEP_ROWS
from mainspring.storage.engine import Operation, PageQuery, Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mainspring.access.caller import Act
    from mainspring.errors import ConflictError, MainspringError
    from mainspring.jobs.owners import Ended
    from mainspring.schedules.catalogue import Catalogue
    from mainspring.schedules.model import Fire, Origin, Schedule
    from mainspring.schedules.parents import Join
    from mainspring.schedules.reconcile import Deployment


class Change(NamedTuple):
    """One change of a schedule. ``put`` adds or replaces it, and needs the whole ``schedule``.

    ``adopt`` gives it to the code of ``app``.
    ``rewind`` repairs its state after the clock was set back (`rules.rewound`); the schedule need not exist.
    """

    kind: Literal["put", "pause", "resume", "remove", "adopt", "rewind"]
    name: str
    version: int | None = None
    """The required ``state.version``. 0: the schedule must not exist. None: any version; with "put", it must not exist."""
    schedule: Schedule | None = None
    origin: Origin | None = None
    """The creator of a new schedule."""
    app: str = ""
    """The App whose code has the schedule from now on. Empty: a replaced schedule keeps its origin and its App."""
    declared: bytes | None = None
    """With "put": the digest of the code's declaration. None keeps the old one: an edit by hand stays until the code changes."""
    first_us: int | UnsetType | None = UNSET
    """With "put": the result of ``triggers.first`` for the operation's ``now_us``, computed before the transaction."""
    before_us: int = 0
    """With "rewind": the time that the clock showed before it was set back; 0: unknown."""
    before: Stored | None = None
    """The schedule for which the change was decided: it must exist, and must be as it was, but for its fires (see
    ``reconcile.is_unchanged``). ``version`` would refuse the changes of a schedule that fires more often than requests arrive."""


class SaveSchedules(Acting):
    """Change schedules, all of them or none.

    Guards: the versions, the schedules before, and the checks of ``parents.Graph`` on all schedules together. Due times under an
    old specification are decided before the new one applies. WAITING rows of a removed schedule become SKIPPED. Outcome:
    ``Saved``.
    """

    phase = Phase.SLICES
    causes = frozenset({types.SCHEDULE_PAUSED, types.SCHEDULE_RESUMED})
    changes: Sequence[Change]
    now_us: int
    spans: bool = True
    """Whether they are of a caller who may use several namespaces; see `namespaces.places_left`."""

    def __post_init__(self) -> None:
        self.rows = len(self.changes)

    def recorded(self, outcome: Saved) -> Act | None:
        """Return the act, if the schedules were changed."""
        return self.act if outcome.error is None else None

    def caused(self, outcome: Saved) -> Iterator[NewEvent]:
        """Yield the events of schedules that were paused or resumed."""
        for change in self.changes if outcome.error is None else ():
            if change.kind in {"pause", "resume"}:
                namespace, name = split_text(change.name)
                kind = types.SCHEDULE_PAUSED if change.kind == "pause" else types.SCHEDULE_RESUMED
                by = "" if self.act is None else self.act.who
                yield NewEvent(kind, namespace, "", name, 0, ScheduleFields(by=by))


class Saved(NamedTuple):
    """The outcome of SaveSchedules."""

    schedules: dict[str, Stored | None]
    """The current schedules of the changed names; None for one that does not exist."""
    error: MainspringError | None = None
    """Why nothing was changed: a UsageError, a NotFoundError, or a ConflictError if a version differs."""


class Due(NamedTuple):
    """A due schedule with the version that was read."""

    name: str
    version: int


class FireSchedules(Operation):
    """Decide the due fire times of schedules: their rows, their jobs and the new states.

    Guard, for each: its ``version``. At most ``limit`` rows of each, the oldest; see ``rules.decide``.
    Outcome: ``dict[str, Fired]``, by name.
    """

    phase = Phase.SLICES
    due: list[Due]
    now_us: int
    limit: int = STEP_ROWS
    seconds: float = 0.0
    """The time by which it has extended its group; set by the engine."""
    fires: int = 0
    """The number of rows that it has added; set by the engine."""

    def __post_init__(self) -> None:
        self.rows = len(self.due)


class Fired(NamedTuple):
    """The outcome of one due schedule."""

    won: bool
    """Whether the version matched. Otherwise another node was first, and nothing was done."""
    stored: Stored | None
    """The current schedule; None if it does not exist any more, or if another node has locked it."""
    more: bool = False
    """More fire times are due: fire again immediately."""
    fault: str = ""
    """Why this node cannot decide them: nothing was done, and the schedule is set aside."""


class TriggerSchedule(Acting):
    """Run a schedule now, by hand; see ``rules.trigger_now``.

    Outcome: ``Fire | Refused | None``: the row; why a schedule that is set aside does not run; None for an unknown name.
    """

    phase = Phase.SLICES
    name: str
    now_us: int


class Refused(NamedTuple):
    """The outcome of a request about a schedule that is set aside."""

    error: ConflictError


class RepairSchedules(Operation):
    """Repair states that no transaction could detect.

    It ends rows that joined another client's job when that job has ended, starts waiting rows without a run before them, cancels
    replaced runs that go on, and finishes parents whose children are all finished. A node runs it every few seconds. Outcome:
    ``int``, the number of changed rows; if it is ``limit`` or more, there may be more.
    """

    phase = Phase.SLICES
    now_us: int
    limit: int = 1000

    def __post_init__(self) -> None:
        self.rows = self.limit


class ForgetFires(Operation):
    """Delete rows that were finished before a time, of the next schedules after a name; see ``retention``.

    At most ``limit`` rows. Begin with an empty name, and repeat with the name of the outcome. Outcome: ``Forgotten``.
    """

    phase = Phase.SLICES
    after: str
    before_us: int
    limit: int = 1000
    now_us: int = sys.maxsize
    """Rows that were decided later were decided while the clock was ahead: their fire times give their ages."""

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class Forgotten(NamedTuple):
    """The outcome of ForgetFires."""

    number: int
    """The number of deleted rows."""
    after: str | None
    """The name to continue after; None: all schedules are done."""


class Declare(Operation):
    """Record that a node declares schedules of an App now.

    The store keeps the first time of each digest for ever, and updates the last time. With an empty digest, nothing is recorded.
    Outcome: ``list[Declared]``, all declarations of the App and of ``others``.
    """

    phase = Phase.SLICES
    app: str
    digest: bytes
    now_us: int
    others: Sequence[str] = ()


class Declared(NamedTuple):
    """A set of declarations, and the time of its last declaration."""

    deployment: Deployment
    last_seen_us: int


class RingAbsences(Operation):
    """Add the events of schedules that have started no job in time, and delete their rows that are due. Outcome: None."""

    phase = Phase.SLICES
    names: list[str]
    now_us: int

    def __post_init__(self) -> None:
        self.rows = len(self.names)


class FindDue(Operation):
    """Read the schedules whose next fire time is not after ``until_us``, the earliest first. Outcome: ``Upcoming``.

    If more than ``limit`` are due, some more of other namespaces follow; see `crowding`.
    """

    phase = Phase.READ
    reads = True
    until_us: int
    limit: int = 10_000

    def __post_init__(self) -> None:
        self.rows = self.limit


class Upcoming(NamedTuple):
    """The outcome of FindDue."""

    due: list[tuple[Due, int]]
    """Schedules with their next fire times."""
    next_us: int | None
    """No schedule that was not read has an earlier fire time; None if there are none."""


def crowding(due: Sequence[tuple[Due, int]]) -> list[str]:
    """Return the namespaces that fill a read of due schedules: they have at least half of an even share.

    If more are due than a read may have, it continues without these, for a quarter of its rows. So a namespace with thousands of
    due schedules hides those of no other.
    """
    numbers = Counter(split_text(one.name)[0] for one, _ in due)
    return [namespace for namespace, number in numbers.items() if 2 * number * len(numbers) >= len(due)]


class ListSchedules(PageQuery[Stored], frozen=True, kw_only=True):
    """Read all or the named schedules, in the order of their names. A page continues after a name."""

    names: tuple[str, ...] | None = None
    """The keys of schedules."""
    namespace: str = ANY


# ---- the tables of an engine ----

Key = tuple[str, int]
"""A schedule's name and a fire time: the key of a row, and of a join."""


class Standing(IntEnum):
    """The stage of a row, by which tables index it. The numbers are stored."""

    WAITING = 0
    FIRED = 1
    """It has a job of its own, and no outcome."""
    JOINED = 2
    """It joined another job, and has no outcome."""
    ENDED = 3
    """It waits for its children."""
    FINISHED = 4


def standing(row: Fire) -> Standing:
    """Return the stage of a row."""
    if row.finished:
        return Standing.FINISHED
    if row.outcome:
        return Standing.ENDED
    match row.state:
        case FireState.WAITING:
            return Standing.WAITING
        case FireState.JOINED:
            return Standing.JOINED
        case _:
            return Standing.FIRED


class Writes(NamedTuple):
    """The writes of one transaction."""

    schedules: Mapping[str, Stored | None]
    """New or changed schedules by name; None removes one."""
    new: Collection[Fire]
    """New rows, sorted by key. If one exists already, another transaction was first: this one fails, or runs again."""
    changed: Collection[Fire]
    """Changed rows, sorted by key."""
    joins: Collection[Join]
    """New or changed joins; one with nothing ``left`` is removed."""
    respecified: bool
    """Whether any specification was added, changed or removed."""
    removed: Collection[Key] = ()
    """Rows that are removed before the new ones are added, sorted by key; see ``backfill``."""
    late: Mapping[str, int] = MappingProxyType({})
    """New times by which schedules should start a job (``ScheduleState.late_us``), by name."""


class ScheduleTables(SliceTransaction, Protocol):
    """The tables inside one transaction, as ``unit`` uses them.

    Reads include earlier ``write`` calls of the transaction. Answers omit names and keys that do not exist. Engines with
    concurrent transactions hold the locks that are mentioned until the end, and take them in the order of names and keys.
    """

    async def catalogue(self, *, lock: bool = False) -> Catalogue:
        """Return all specifications; with ``lock``, no other transaction changes any before this one ends."""

    async def schedules(self, names: Collection[str]) -> dict[str, Stored]:
        """Read and lock schedules."""

    async def fires(self, keys: Collection[Key]) -> dict[Key, Fire]:
        """Read and lock rows."""

    async def unfinished(self, names: Collection[str]) -> list[Fire]:
        """Read all rows of some schedules that are not ``finished``, the oldest first. The schedules are locked already."""

    async def of_jobs(self, ids: Collection[int]) -> list[Fire]:
        """Read and lock the rows that have these jobs and no outcome yet."""

    async def joins(self, keys: Collection[Key]) -> dict[Key, Join]:
        """Read and lock joins."""

    async def write(self, writes: Writes) -> None:
        """Write the changes."""

    async def remove_late(self, names: Collection[str], until_us: int) -> None:
        """Remove the times of some schedules that are not after a time; an engine without such times does nothing."""

    async def joined(self, limit: int) -> list[tuple[Fire, Ended | None]]:
        """Return JOINED rows without outcome whose job has ended, each with its end; None if the job is no longer stored."""

    async def queued(self, limit: int) -> list[str]:
        """Return the names of schedules with ``queued`` rows."""

    async def stuck(self, limit: int) -> list[Fire]:
        """Return rows that have an outcome and wait for children."""

    async def forgotten(self, names: Collection[str]) -> dict[str, int]:
        """Return the newest fire time with a deleted row, for the names that have one."""

    async def declare(self, app: str, digest: bytes, now_us: int) -> None:
        """Record a declaration; see ``Declare``."""

    async def declarations(self, app: str) -> list[Declared]:
        """Return the declarations of an App."""


class HistoryTables(ScheduleTables, Protocol):
    """The tables of an engine that deletes old history, as ``retention`` uses them."""

    async def oldest(self, after: str, before_us: int, limit: int) -> tuple[list[str], list[Fire]]:
        """Return the names of schedules that have rows, and old rows of them, without locks.

        These are the next ``retention.NAMES_PER_STEP`` names after ``after``, in order, also of removed schedules. The rows have
        fire times before ``before_us`` and are not among the newest ``retention.MIN_ROWS`` of their schedules. They are sorted by
        name and time, ``limit`` at most.
        """

    async def forget(self, until: Mapping[str, int]) -> None:
        """Delete the rows of some schedules up to a fire time each, and store that time: see ``forgotten``."""
