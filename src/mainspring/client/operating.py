"""The jobs, runs, functions and schedules of an App's servers.

``python -m checks.operating`` writes this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from mainspring.client.connections import OnServers
from mainspring.client.job import FindsJobs
from mainspring.client.run import FindsRuns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from datetime import date, datetime
    from typing import Unpack

    from msgspec import UnsetType

    from mainspring.api.functions import FunctionInfo
    from mainspring.api.operations import StartedBackfill
    from mainspring.api.schedules import FireInfo as Fired
    from mainspring.api.schedules import Previewed, RemovedSchedule, ScheduleDetails, ScheduleInfo, Times
    from mainspring.client.connections import Named
    from mainspring.client.job import Job, ListedJob
    from mainspring.client.options import Duration, Rate, Retry
    from mainspring.client.run import ListedRun, Run


class JobCriteria(TypedDict, total=False):
    """Criteria of the jobs in a list."""

    state: str | Sequence[str] | None
    function: str | Named | None
    unique: str | None
    key: str | None
    schedule: str | None
    workflow: str | None
    error_type: str | None
    tag: str | None
    created_from: datetime | None
    created_to: datetime | None


class CloneChanges(TypedDict, total=False):
    """The parts of a clone that differ from its job."""

    unique: str
    priority: Literal["high", "low", "normal"] | None
    delay: Duration | None
    run_at: datetime | None
    expires: Duration | None
    start_within: Duration | None
    deadline: Duration | None
    concurrency_key: str | None
    tags: Sequence[str] | None
    args: Any | UnsetType


class RunStart(TypedDict, total=False):
    """The options of the start of a run."""

    id: str
    version: str
    timeout: Duration | None
    priority: Literal["high", "low", "normal"]
    start_within: Duration | None
    deadline: Duration | None
    concurrency_key: str
    args: Any | UnsetType


class RunCriteria(TypedDict, total=False):
    """Criteria of the runs in a list."""

    open: bool
    closed: bool
    parked: bool
    paused: bool
    stranded: bool
    overdue: bool
    type: str | None
    id: str | None
    status: (
        Literal[
            "cancelled",
            "completed",
            "continued_as_new",
            "failed",
            "open",
            "pending",
            "scheduled",
            "terminated",
            "timed_out",
        ]
        | None
    )
    since: datetime | None


class FunctionLimits(TypedDict, total=False):
    """The limits of a function."""

    concurrency: int | UnsetType | None
    concurrency_per_key: int | UnsetType | None
    rate: Rate | UnsetType | None
    rate_per_key: Rate | UnsetType | None
    unlimited: bool
    declared: bool


class ScheduleFields(TypedDict, total=False):
    """The parts of a schedule beside its name."""

    function: str | Named | UnsetType
    args: Any | UnsetType
    cron: str | UnsetType
    every: Duration | UnsetType
    at: datetime | UnsetType
    timezone: str | UnsetType
    start: datetime | UnsetType | None
    end: datetime | UnsetType | None
    jitter: Duration | UnsetType
    exclude: Sequence[date | str] | UnsetType
    misfire: Literal["all", "once", "skip"] | int | UnsetType
    misfire_after: Duration | UnsetType
    overlap: str | UnsetType
    parents: Sequence[str | Named] | UnsetType
    wait_for_children: bool | UnsetType
    priority: str | UnsetType
    retry: Retry | UnsetType | None
    timeout: Duration | UnsetType | None
    unique: str | UnsetType
    expires: Duration | UnsetType | None
    start_within: Duration | UnsetType | None
    deadline: Duration | UnsetType | None
    tags: Sequence[str] | UnsetType


class FireCriteria(TypedDict, total=False):
    """Criteria of the fire times in a list."""

    schedule: str | None
    state: Literal["fired", "joined", "skipped", "waiting"] | None
    outcome: Literal["cancelled", "expired", "failed", "succeeded"] | None
    since: datetime | None
    until: datetime | None


class BackfillBounds(TypedDict, total=False):
    """The bounds and the pace of a backfill."""

    to: datetime | None
    max: int | None
    dry_run: bool
    reason: str
    rate: float | None


class Jobs(FindsJobs):
    """The jobs on an App's servers.

    Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and
    ConnectionLostError. Methods that begin with ``a`` are for asyncio.
    """

    def list(self, *, limit: int | None = None, **fields: Unpack[JobCriteria]) -> Iterator[ListedJob]:
        """Yield the jobs that match all given criteria, newest first.

        ``limit`` is the most to yield; None: all. Pages are requested as they are read.
        """
        return self._each_listedjob(self._pages("jobs.list", fields, limit))

    def alist(self, *, limit: int | None = None, **fields: Unpack[JobCriteria]) -> AsyncIterator[ListedJob]:
        """As ``list``."""
        return self._aeach_listedjob(self._apages("jobs.list", fields, limit))

    def find(self, **fields: Unpack[JobCriteria]) -> ListedJob | None:
        """Return the newest job that matches all given criteria; None if there is none."""
        return self._as_listedjob(self._first("jobs.list", fields))

    async def afind(self, **fields: Unpack[JobCriteria]) -> ListedJob | None:
        """As ``find``."""
        return self._as_listedjob(await self._afirst("jobs.list", fields))

    def get(self, handle: str) -> ListedJob:
        """Return a job by its handle. ``row`` has all its details."""
        return self._as_listedjob(self._ask("jobs.show", {"handle": handle}))

    async def aget(self, handle: str) -> ListedJob:
        """As ``get``."""
        return self._as_listedjob(await self._aask("jobs.show", {"handle": handle}))

    def clone(self, handle: str, **fields: Unpack[CloneChanges]) -> Job[bytes]:
        """Submit a new job like another one, whatever the state of that.

        The new job has the function, the arguments, the priority, the concurrency key, the tags, the retry policy, the time
        limits and the version of the other one, where the request gives no others. It has no unique, and runs at once, unless
        the request says otherwise. Its expiry and the times after which it is late count from now, so they are not those of
        the other one.
        """
        return self._as_job(self._ask("jobs.clone", {"handle": handle, **fields}))

    async def aclone(self, handle: str, **fields: Unpack[CloneChanges]) -> Job[bytes]:
        """As ``clone``."""
        return self._as_job(await self._aask("jobs.clone", {"handle": handle, **fields}))


class Runs(FindsRuns):
    """The runs of workflows on an App's servers.

    Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and
    ConnectionLostError. Methods that begin with ``a`` are for asyncio.
    """

    def start(self, function: str | Named, **fields: Unpack[RunStart]) -> Run[bytes]:
        """Start a run of a workflow, or join the open run with the workflow id ``id``."""
        return self._as_run(self._ask("workflows.start", {"function": function, **fields}))

    async def astart(self, function: str | Named, **fields: Unpack[RunStart]) -> Run[bytes]:
        """As ``start``."""
        return self._as_run(await self._aask("workflows.start", {"function": function, **fields}))

    def list(self, *, limit: int | None = None, **fields: Unpack[RunCriteria]) -> Iterator[ListedRun]:
        """Yield the runs that match all given criteria, newest first.

        ``limit`` is the most to yield; None: all. Pages are requested as they are read.
        """
        return self._each_listedrun(self._pages("workflows.list", fields, limit))

    def alist(self, *, limit: int | None = None, **fields: Unpack[RunCriteria]) -> AsyncIterator[ListedRun]:
        """As ``list``."""
        return self._aeach_listedrun(self._apages("workflows.list", fields, limit))

    def find(self, **fields: Unpack[RunCriteria]) -> ListedRun | None:
        """Return the newest run that matches all given criteria; None if there is none."""
        return self._as_listedrun(self._first("workflows.list", fields))

    async def afind(self, **fields: Unpack[RunCriteria]) -> ListedRun | None:
        """As ``find``."""
        return self._as_listedrun(await self._afirst("workflows.list", fields))

    def get(self, key: str) -> ListedRun:
        """Return a run by its handle or workflow id. ``row`` has all its details."""
        return self._as_listedrun(self._ask("workflows.show", {"key": key}))

    async def aget(self, key: str) -> ListedRun:
        """As ``get``."""
        return self._as_listedrun(await self._aask("workflows.show", {"key": key}))


class Functions(OnServers):
    """The functions on an App's servers.

    Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and
    ConnectionLostError. Methods that begin with ``a`` are for asyncio.
    """

    def list(self, *, name: str = "", limit: int | None = None) -> Iterator[FunctionInfo]:
        """Yield the functions. ``name`` is a part of their names.

        ``limit`` is the most to yield; None: all. Pages are requested as they are read.
        """
        return self._pages("functions.list", {"name": name}, limit)

    def alist(self, *, name: str = "", limit: int | None = None) -> AsyncIterator[FunctionInfo]:
        """As ``list``."""
        return self._apages("functions.list", {"name": name}, limit)

    def get(self, function: str | Named) -> FunctionInfo:
        """Return a function."""
        return self._ask("functions.show", {"function": function})

    async def aget(self, function: str | Named) -> FunctionInfo:
        """As ``get``."""
        return await self._aask("functions.show", {"function": function})

    def pause(
        self, function: str | Named, *, reason: str = "", until: datetime | None = None, revision: str | None = None
    ) -> FunctionInfo:
        """Start no more jobs of a function."""
        return self._ask(
            "functions.pause", {"function": function, "reason": reason, "until": until, "revision": revision}
        )

    async def apause(
        self, function: str | Named, *, reason: str = "", until: datetime | None = None, revision: str | None = None
    ) -> FunctionInfo:
        """As ``pause``."""
        return await self._aask(
            "functions.pause", {"function": function, "reason": reason, "until": until, "revision": revision}
        )

    def resume(self, function: str | Named, *, revision: str | None = None) -> FunctionInfo:
        """Start the jobs of a paused function again."""
        return self._ask("functions.resume", {"function": function, "revision": revision})

    async def aresume(self, function: str | Named, *, revision: str | None = None) -> FunctionInfo:
        """As ``resume``."""
        return await self._aask("functions.resume", {"function": function, "revision": revision})

    def limit(
        self, function: str | Named, *, revision: str | None = None, **fields: Unpack[FunctionLimits]
    ) -> FunctionInfo:
        """Limit a function. Limits that are left out do not change."""
        return self._ask("functions.limit", {"function": function, "revision": revision, **fields})

    async def alimit(
        self, function: str | Named, *, revision: str | None = None, **fields: Unpack[FunctionLimits]
    ) -> FunctionInfo:
        """As ``limit``."""
        return await self._aask("functions.limit", {"function": function, "revision": revision, **fields})


class Schedules(OnServers):
    """The schedules on an App's servers.

    Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and
    ConnectionLostError. Methods that begin with ``a`` are for asyncio.
    """

    def list(self, *, limit: int | None = None) -> Iterator[ScheduleInfo]:
        """Yield the schedules, by name.

        ``limit`` is the most to yield; None: all. Pages are requested as they are read.
        """
        return self._pages("schedules.list", {}, limit)

    def alist(self, *, limit: int | None = None) -> AsyncIterator[ScheduleInfo]:
        """As ``list``."""
        return self._apages("schedules.list", {}, limit)

    def get(self, name: str) -> ScheduleDetails:
        """Return a schedule with all its details."""
        return self._ask("schedules.show", {"name": name})

    async def aget(self, name: str) -> ScheduleDetails:
        """As ``get``."""
        return await self._aask("schedules.show", {"name": name})

    def add(self, name: str, **fields: Unpack[ScheduleFields]) -> ScheduleInfo:
        """Create a schedule."""
        return self._ask("schedules.add", {"name": name, **fields})

    async def aadd(self, name: str, **fields: Unpack[ScheduleFields]) -> ScheduleInfo:
        """As ``add``."""
        return await self._aask("schedules.add", {"name": name, **fields})

    def edit(self, name: str, *, revision: str | None = None, **fields: Unpack[ScheduleFields]) -> ScheduleInfo:
        """Change a part of a schedule. Fields that are left out do not change."""
        return self._ask("schedules.edit", {"revision": revision, "name": name, **fields})

    async def aedit(self, name: str, *, revision: str | None = None, **fields: Unpack[ScheduleFields]) -> ScheduleInfo:
        """As ``edit``."""
        return await self._aask("schedules.edit", {"revision": revision, "name": name, **fields})

    def replace(self, name: str, *, revision: str | None = None, **fields: Unpack[ScheduleFields]) -> ScheduleInfo:
        """Change a schedule. Fields that are left out get their defaults."""
        return self._ask("schedules.replace", {"revision": revision, "name": name, **fields})

    async def areplace(
        self, name: str, *, revision: str | None = None, **fields: Unpack[ScheduleFields]
    ) -> ScheduleInfo:
        """As ``replace``."""
        return await self._aask("schedules.replace", {"revision": revision, "name": name, **fields})

    def preview(self, name: str, *, count: int = 10, **fields: Unpack[ScheduleFields]) -> Previewed:
        """Return what ``add`` or ``edit`` would do, and save nothing."""
        return self._ask("schedules.preview", {"count": count, "name": name, **fields})

    async def apreview(self, name: str, *, count: int = 10, **fields: Unpack[ScheduleFields]) -> Previewed:
        """As ``preview``."""
        return await self._aask("schedules.preview", {"count": count, "name": name, **fields})

    def pause(self, name: str, *, revision: str | None = None) -> ScheduleInfo:
        """Skip the fire times of a schedule from now on."""
        return self._ask("schedules.pause", {"name": name, "revision": revision})

    async def apause(self, name: str, *, revision: str | None = None) -> ScheduleInfo:
        """As ``pause``."""
        return await self._aask("schedules.pause", {"name": name, "revision": revision})

    def resume(self, name: str, *, revision: str | None = None) -> ScheduleInfo:
        """Let a paused schedule run again."""
        return self._ask("schedules.resume", {"name": name, "revision": revision})

    async def aresume(self, name: str, *, revision: str | None = None) -> ScheduleInfo:
        """As ``resume``."""
        return await self._aask("schedules.resume", {"name": name, "revision": revision})

    def trigger(self, name: str) -> Fired:
        """Run a schedule now."""
        return self._ask("schedules.trigger", {"name": name})

    async def atrigger(self, name: str) -> Fired:
        """As ``trigger``."""
        return await self._aask("schedules.trigger", {"name": name})

    def remove(self, name: str, *, revision: str | None = None, children: bool = False) -> RemovedSchedule:
        """Remove a schedule. Its history stays."""
        return self._ask("schedules.remove", {"name": name, "revision": revision, "children": children})

    async def aremove(self, name: str, *, revision: str | None = None, children: bool = False) -> RemovedSchedule:
        """As ``remove``."""
        return await self._aask("schedules.remove", {"name": name, "revision": revision, "children": children})

    def next(self, name: str, *, count: int = 10) -> Times:
        """Return the next times of a schedule."""
        return self._ask("schedules.next", {"name": name, "count": count})

    async def anext(self, name: str, *, count: int = 10) -> Times:
        """As ``next``."""
        return await self._aask("schedules.next", {"name": name, "count": count})

    def fires(self, *, limit: int | None = None, **fields: Unpack[FireCriteria]) -> Iterator[Fired]:
        """Yield the outcomes of the fire times of all schedules, or of one, newest first.

        ``limit`` is the most to yield; None: all. Pages are requested as they are read.
        """
        return self._pages("schedules.fires", fields, limit)

    def afires(self, *, limit: int | None = None, **fields: Unpack[FireCriteria]) -> AsyncIterator[Fired]:
        """As ``fires``."""
        return self._apages("schedules.fires", fields, limit)

    def backfill(self, name: str, from_: datetime, **fields: Unpack[BackfillBounds]) -> StartedBackfill:
        """Run a schedule for its past fire times that have not run, each once, in an operation."""
        return self._ask("schedules.backfill", {"name": name, "from_": from_, **fields})

    async def abackfill(self, name: str, from_: datetime, **fields: Unpack[BackfillBounds]) -> StartedBackfill:
        """As ``backfill``."""
        return await self._aask("schedules.backfill", {"name": name, "from_": from_, **fields})
