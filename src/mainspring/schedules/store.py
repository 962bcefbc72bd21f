"""The port that the schedules slice needs: its operations, and what each answers.

What an operation writes is decided inside the transaction, by the pure rules and on what the tables say there; ``work`` does it
for all engines. A guard that does not hold costs only its own schedule.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from msgspec import UNSET, UnsetType

from mainspring.jobs.slices import Ground
from mainspring.schedules.model import FireState
from mainspring.schedules.reconcile import Stored
from mainspring.schedules.rules import STEP
from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase
from mainspring.storage.query import PageQuery

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mainspring.errors import MainspringError
    from mainspring.jobs.owners import Ended
    from mainspring.schedules.catalogue import Catalogue
    from mainspring.schedules.model import Fire, Origin, Schedule
    from mainspring.schedules.parents import Join
    from mainspring.schedules.reconcile import Deployment


class Change(NamedTuple):
    """One change of a schedule. ``put`` adds or replaces it, and needs the whole ``schedule``."""

    kind: Literal["put", "pause", "resume", "remove"]
    name: str
    version: int | None = None
    """What ``state.version`` has to be; 0: there must be no such schedule; None: whatever it is, but of "put" only to add."""
    schedule: Schedule | None = None
    origin: Origin | None = None
    """Of a new schedule: who made it. (One that is replaced keeps its origin and its App.)"""
    app: str = ""
    declared: bytes | None = None
    """With "put": the digest of what code said. None leaves the one before: an edit by hand stays until the code changes."""
    first_us: int | UnsetType | None = UNSET
    """With "put": what ``triggers.first`` says of the operation's ``now_us``, so that it is not asked inside the transaction."""


class SaveSchedules(Operation):
    """Change schedules, all of them or none.

    Guards: the versions, and what ``parents.Graph`` demands of all schedules together. What is due under an old specification
    is decided before the new one counts. Rows that are WAITING when their schedule is removed become SKIPPED.
    Outcome: ``Saved``.
    """

    __slots__ = ("changes", "now_us")

    phase = Phase.SLICES

    def __init__(
        self,
        changes: Sequence[Change],
        now_us: int,
    ) -> None:
        super().__init__()
        self.changes = changes
        self.now_us = now_us
        self.rows = len(changes)


class Saved(NamedTuple):
    """The outcome of SaveSchedules."""

    schedules: dict[str, Stored | None]
    """Those that were named, as they are now; None where there is none."""
    error: MainspringError | None = None
    """Why nothing was changed: a UsageError, a NotFoundError, or a ConflictError where a version is another one."""


class Due(NamedTuple):
    """A schedule whose time has come, as it was read."""

    name: str
    version: int


class FireSchedules(Operation):
    """Decide the due fire times of schedules: their rows, their jobs and the states that follow.

    Guard, for each: its ``version``. At most ``limit`` rows of each, the oldest; see ``rules.decide``.
    Outcome: ``dict[str, Fired]``, by name.
    """

    __slots__ = ("due", "limit", "now_us")

    phase = Phase.SLICES

    def __init__(
        self,
        due: list[Due],
        now_us: int,
        limit: int = STEP,
    ) -> None:
        super().__init__()
        self.due = due
        self.now_us = now_us
        self.limit = limit
        self.rows = len(due)


class Fired(NamedTuple):
    """What came of one due schedule."""

    won: bool
    """Whether the version was right. Otherwise another node was first, and nothing was done."""
    stored: Stored | None
    """The schedule as it is now; None where there is none any more, or where another node keeps it locked."""
    more: bool = False
    """More fire times are due: fire again at once."""


class TriggerSchedule(Operation):
    """Run a schedule now, by hand; see ``rules.trigger_now``. Outcome: ``Fire | None``: the row; None for an unknown name."""

    __slots__ = ("name", "now_us")

    phase = Phase.SLICES

    def __init__(self, name: str, now_us: int) -> None:
        super().__init__()
        self.name = name
        self.now_us = now_us


class MendSchedules(Operation):
    """Put right what no transaction could see.

    Rows that joined a job of nobody's schedule are ended when that job has ended; rows that wait behind nothing are started;
    runs that were replaced and go on are cancelled; parents that wait for children which are all finished are finished.
    To be done every few seconds. Outcome: ``int``, how many rows were changed; where it is ``limit`` or more, there may be more.
    """

    __slots__ = ("limit", "now_us")

    phase = Phase.SLICES

    def __init__(self, now_us: int, limit: int = 1000) -> None:
        super().__init__()
        self.now_us = now_us
        self.limit = limit
        self.rows = limit


class ForgetFires(Operation):
    """Drop rows that were finished before a time, of the schedules whose names come next after one; see ``retention``.

    At most ``limit`` rows. To be begun with an empty name, and repeated with the one of the outcome. Outcome: ``Forgotten``.
    """

    __slots__ = ("after", "before_us")

    phase = Phase.SLICES

    def __init__(
        self,
        after: str,
        before_us: int,
        limit: int = 1000,
    ) -> None:
        super().__init__()
        self.after = after
        self.before_us = before_us
        self.rows = limit
        self.urgent = False


class Forgotten(NamedTuple):
    """The outcome of ForgetFires."""

    number: int
    """How many rows were dropped."""
    after: str | None
    """Where to go on; None: all schedules were looked at."""


class Declare(Operation):
    """Note that a node declares schedules of an App, now.

    The first time that a digest of an App is seen is kept for good, the last time is moved on. Outcome: ``list[Declared]``,
    all that are known of the App.
    """

    __slots__ = ("app", "digest", "now_us")

    phase = Phase.SLICES

    def __init__(
        self,
        app: str,
        digest: bytes,
        now_us: int,
    ) -> None:
        super().__init__()
        self.app = app
        self.digest = digest
        self.now_us = now_us


class Declared(NamedTuple):
    """A set of declarations, and when it was declared last."""

    deployment: Deployment
    last_seen_us: int


class FindDue(Operation):
    """Read the schedules whose next fire time is not after ``until_us``, the earliest first. Outcome: ``Upcoming``."""

    __slots__ = ("until_us",)

    phase = Phase.READ
    reads = True

    def __init__(
        self,
        until_us: int,
        limit: int = 10_000,
    ) -> None:
        super().__init__()
        self.until_us = until_us
        self.rows = limit


class Upcoming(NamedTuple):
    """The outcome of FindDue."""

    due: list[tuple[Due, int]]
    """Schedules with their next fire times."""
    next_us: int | None
    """The first fire time of those that were not read; None where no other schedule has one."""


class ListSchedules(PageQuery[Stored], frozen=True, kw_only=True):
    """Read schedules, in the order of their names: those that are named, or all. A place is a name."""

    names: tuple[str, ...] | None = None


# ---- what `work` needs of an engine ----

Key = tuple[str, int]
"""A schedule's name and a fire time: the key of a row, and of a join."""


class Standing(IntEnum):
    """Where a row stands, for tables to find it by. The numbers are stored."""

    WAITING = 0
    FIRED = 1
    """It has a job of its own, and no outcome."""
    JOINED = 2
    """It has another's job, and no outcome."""
    ENDED = 3
    """It waits for its children."""
    FINISHED = 4


def standing(row: Fire) -> Standing:
    """Return where a row stands."""
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
    """What one transaction changes in the tables."""

    schedules: Mapping[str, Stored | None]
    """New or changed ones by name; None removes."""
    new: Collection[Fire]
    """New rows, by key. Where one is there already, whoever wrote it was quicker: the transaction fails, or is run again."""
    changed: Collection[Fire]
    """Rows that are there, by key."""
    joins: Collection[Join]
    """New or changed ones; one with nothing ``left`` is removed."""
    respecified: bool
    """Whether any specification has changed, is new or is gone."""


class ScheduleTables(Ground, Protocol):
    """The tables inside one transaction: what ``work`` asks of an engine.

    Reads show what earlier ``write`` calls of the transaction wrote. Names and keys that are not there are missing in the
    answers. Engines whose transactions run side by side lock what is marked so until they end, in the order of names and keys.
    """

    async def catalogue(self, *, lock: bool = False) -> Catalogue:
        """Return all specifications; locked: nobody else changes any until the end of the transaction."""

    async def schedules(self, names: Collection[str]) -> dict[str, Stored]:
        """Read and lock schedules."""

    async def fires(self, keys: Collection[Key]) -> dict[Key, Fire]:
        """Read and lock rows."""

    async def unfinished(self, names: Collection[str]) -> list[Fire]:
        """Read all rows of some schedules that are not ``finished``, the oldest first. The schedules are locked before."""

    async def of_jobs(self, ids: Collection[int]) -> list[Fire]:
        """Read and lock the rows that have these jobs and no outcome yet."""

    async def joins(self, keys: Collection[Key]) -> dict[Key, Join]:
        """Read and lock joins."""

    async def write(self, writes: Writes) -> None:
        """Write what has changed."""

    async def joined(self, limit: int) -> list[tuple[Fire, Ended | None]]:
        """Return rows that are JOINED and have no outcome, although their job has ended; None where it is no longer kept."""

    async def queued(self, limit: int) -> list[str]:
        """Return the names of schedules with ``queued`` rows."""

    async def stuck(self, limit: int) -> list[Fire]:
        """Return rows that have an outcome and wait for children."""

    async def forgotten(self, names: Collection[str]) -> dict[str, int]:
        """Return the newest fire time whose row was dropped, of those names that have one."""

    async def declare(self, app: str, digest: bytes, now_us: int) -> list[Declared]:
        """Note a declaration; see ``Declare``."""


class HistoryTables(ScheduleTables, Protocol):
    """The same of engines whose histories end: what ``retention`` asks for."""

    async def oldest(self, after: str, before_us: int, limit: int) -> tuple[list[str], list[Fire]]:
        """Return the names of schedules that have rows, and rows of them, which are not locked.

        These are the next ``retention.NAMES`` names after one, in order, also of removed schedules. The rows are those of fire
        times before a time, without the newest ``retention.KEPT`` of each: in the order of names and times, ``limit`` at most.
        """

    async def forget(self, until: Mapping[str, int]) -> None:
        """Drop the rows of some schedules up to a fire time each, which is noted: see ``forgotten``."""
