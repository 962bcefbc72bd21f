"""The jobs, runs, functions and schedules of an App's servers.

``python -m checks.operating`` writes this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from mainspring.client.asking import OnServers
from mainspring.client.found import FindsJobs, FindsRuns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from datetime import date, datetime

    from mainspring.api.backfills import Begun
    from mainspring.api.functions import FunctionInfo
    from mainspring.api.schedules import Previewed, Removed, ScheduleDetails, ScheduleInfo, Times
    from mainspring.api.schedules import Run as Fired
    from mainspring.client.asking import Named
    from mainspring.client.found import ListedJob, ListedRun
    from mainspring.client.job import Job
    from mainspring.client.options import Duration, Rate, Retry
    from mainspring.client.run import Run


class Jobs(FindsJobs):
    """The jobs on an App's servers.

    Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and
    ConnectionLostError. Methods that begin with ``a`` are for asyncio.
    """

    def list(
        self,
        *,
        state: str | Sequence[str] | None = None,
        function: str | Named | None = None,
        unique: str | None = None,
        key: str | None = None,
        schedule: str | None = None,
        workflow: str | None = None,
        error_type: str | None = None,
        tag: str | None = None,
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[ListedJob]:
        """Yield the jobs that match all given criteria, newest first.

        ``limit`` is the most to yield; None: all. Pages are requested as they are read.
        """
        answer: Iterator[ListedJob] = self._each_listedjob(
            self._pages(
                "jobs.list",
                {
                    "state": state,
                    "function": function,
                    "unique": unique,
                    "key": key,
                    "schedule": schedule,
                    "workflow": workflow,
                    "error_type": error_type,
                    "tag": tag,
                    "created_from": created_from,
                    "created_to": created_to,
                    "partial": True,
                },
                "jobs",
                "before",
                limit,
            )
        )
        return answer

    def alist(
        self,
        *,
        state: str | Sequence[str] | None = None,
        function: str | Named | None = None,
        unique: str | None = None,
        key: str | None = None,
        schedule: str | None = None,
        workflow: str | None = None,
        error_type: str | None = None,
        tag: str | None = None,
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[ListedJob]:
        """As ``list``."""
        answer: AsyncIterator[ListedJob] = self._aeach_listedjob(
            self._apages(
                "jobs.list",
                {
                    "state": state,
                    "function": function,
                    "unique": unique,
                    "key": key,
                    "schedule": schedule,
                    "workflow": workflow,
                    "error_type": error_type,
                    "tag": tag,
                    "created_from": created_from,
                    "created_to": created_to,
                    "partial": True,
                },
                "jobs",
                "before",
                limit,
            )
        )
        return answer

    def find(
        self,
        *,
        state: str | Sequence[str] | None = None,
        function: str | Named | None = None,
        unique: str | None = None,
        key: str | None = None,
        schedule: str | None = None,
        workflow: str | None = None,
        error_type: str | None = None,
        tag: str | None = None,
        created_from: datetime | None = None,
        created_to: datetime | None = None,
    ) -> ListedJob | None:
        """Return the newest job that matches all given criteria; None if there is none."""
        answer: ListedJob | None = self._as_listedjob(
            self._first(
                "jobs.list",
                {
                    "state": state,
                    "function": function,
                    "unique": unique,
                    "key": key,
                    "schedule": schedule,
                    "workflow": workflow,
                    "error_type": error_type,
                    "tag": tag,
                    "created_from": created_from,
                    "created_to": created_to,
                    "partial": True,
                },
                "jobs",
                "before",
            )
        )
        return answer

    async def afind(
        self,
        *,
        state: str | Sequence[str] | None = None,
        function: str | Named | None = None,
        unique: str | None = None,
        key: str | None = None,
        schedule: str | None = None,
        workflow: str | None = None,
        error_type: str | None = None,
        tag: str | None = None,
        created_from: datetime | None = None,
        created_to: datetime | None = None,
    ) -> ListedJob | None:
        """As ``find``."""
        answer: ListedJob | None = self._as_listedjob(
            await self._afirst(
                "jobs.list",
                {
                    "state": state,
                    "function": function,
                    "unique": unique,
                    "key": key,
                    "schedule": schedule,
                    "workflow": workflow,
                    "error_type": error_type,
                    "tag": tag,
                    "created_from": created_from,
                    "created_to": created_to,
                    "partial": True,
                },
                "jobs",
                "before",
            )
        )
        return answer

    def get(self, handle: str) -> ListedJob:
        """Return a job by its handle. ``row`` has all its details."""
        answer: ListedJob = self._as_listedjob(self._ask("jobs.show", {"handle": handle}))
        return answer

    async def aget(self, handle: str) -> ListedJob:
        """As ``get``."""
        answer: ListedJob = self._as_listedjob(await self._aask("jobs.show", {"handle": handle}))
        return answer

    def clone(
        self,
        handle: str,
        *,
        unique: str = "",
        priority: Literal["high", "low", "normal"] | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        expires: Duration | None = None,
        concurrency_key: str | None = None,
        tags: Sequence[str] | None = None,
        args: Any | UnsetType = UNSET,
    ) -> Job[bytes]:
        """Submit a new job like another one, whatever the state of that.

        The new job has the function, the arguments, the priority, the concurrency key, the tags, the retry policy, the time
        limits and the version of the other one, where the request gives no others. It has no unique, and runs at once, unless
        the request says otherwise.
        """
        answer: Job[bytes] = self._as_job(
            self._ask(
                "jobs.clone",
                {
                    "handle": handle,
                    "unique": unique,
                    "priority": priority,
                    "delay": delay,
                    "run_at": run_at,
                    "expires": expires,
                    "concurrency_key": concurrency_key,
                    "tags": tags,
                    "args": args,
                },
            )
        )
        return answer

    async def aclone(
        self,
        handle: str,
        *,
        unique: str = "",
        priority: Literal["high", "low", "normal"] | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        expires: Duration | None = None,
        concurrency_key: str | None = None,
        tags: Sequence[str] | None = None,
        args: Any | UnsetType = UNSET,
    ) -> Job[bytes]:
        """As ``clone``."""
        answer: Job[bytes] = self._as_job(
            await self._aask(
                "jobs.clone",
                {
                    "handle": handle,
                    "unique": unique,
                    "priority": priority,
                    "delay": delay,
                    "run_at": run_at,
                    "expires": expires,
                    "concurrency_key": concurrency_key,
                    "tags": tags,
                    "args": args,
                },
            )
        )
        return answer


class Runs(FindsRuns):
    """The runs of workflows on an App's servers.

    Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and
    ConnectionLostError. Methods that begin with ``a`` are for asyncio.
    """

    def start(
        self,
        function: str | Named,
        *,
        id: str = "",
        version: str = "",
        timeout: Duration | None = None,
        priority: Literal["high", "low", "normal"] = "normal",
        args: Any | UnsetType = UNSET,
    ) -> Run[bytes]:
        """Start a run of a workflow, or join the open run with the workflow id ``id``."""
        answer: Run[bytes] = self._as_run(
            self._ask(
                "workflows.start",
                {
                    "function": function,
                    "id": id,
                    "version": version,
                    "timeout": timeout,
                    "priority": priority,
                    "args": args,
                },
            )
        )
        return answer

    async def astart(
        self,
        function: str | Named,
        *,
        id: str = "",
        version: str = "",
        timeout: Duration | None = None,
        priority: Literal["high", "low", "normal"] = "normal",
        args: Any | UnsetType = UNSET,
    ) -> Run[bytes]:
        """As ``start``."""
        answer: Run[bytes] = self._as_run(
            await self._aask(
                "workflows.start",
                {
                    "function": function,
                    "id": id,
                    "version": version,
                    "timeout": timeout,
                    "priority": priority,
                    "args": args,
                },
            )
        )
        return answer

    def list(
        self,
        *,
        open: bool = False,
        closed: bool = False,
        parked: bool = False,
        stranded: bool = False,
        type: str | None = None,
        id: str | None = None,
        status: Literal[
            "canceled",
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
        | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[ListedRun]:
        """Yield the runs that match all given criteria, newest first.

        ``limit`` is the most to yield; None: all. Pages are requested as they are read.
        """
        answer: Iterator[ListedRun] = self._each_listedrun(
            self._pages(
                "workflows.list",
                {
                    "open": open,
                    "closed": closed,
                    "parked": parked,
                    "stranded": stranded,
                    "type": type,
                    "id": id,
                    "status": status,
                    "since": since,
                    "partial": True,
                },
                "runs",
                "after",
                limit,
            )
        )
        return answer

    def alist(
        self,
        *,
        open: bool = False,
        closed: bool = False,
        parked: bool = False,
        stranded: bool = False,
        type: str | None = None,
        id: str | None = None,
        status: Literal[
            "canceled",
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
        | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[ListedRun]:
        """As ``list``."""
        answer: AsyncIterator[ListedRun] = self._aeach_listedrun(
            self._apages(
                "workflows.list",
                {
                    "open": open,
                    "closed": closed,
                    "parked": parked,
                    "stranded": stranded,
                    "type": type,
                    "id": id,
                    "status": status,
                    "since": since,
                    "partial": True,
                },
                "runs",
                "after",
                limit,
            )
        )
        return answer

    def find(
        self,
        *,
        open: bool = False,
        closed: bool = False,
        parked: bool = False,
        stranded: bool = False,
        type: str | None = None,
        id: str | None = None,
        status: Literal[
            "canceled",
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
        | None = None,
        since: datetime | None = None,
    ) -> ListedRun | None:
        """Return the newest run that matches all given criteria; None if there is none."""
        answer: ListedRun | None = self._as_listedrun(
            self._first(
                "workflows.list",
                {
                    "open": open,
                    "closed": closed,
                    "parked": parked,
                    "stranded": stranded,
                    "type": type,
                    "id": id,
                    "status": status,
                    "since": since,
                    "partial": True,
                },
                "runs",
                "after",
            )
        )
        return answer

    async def afind(
        self,
        *,
        open: bool = False,
        closed: bool = False,
        parked: bool = False,
        stranded: bool = False,
        type: str | None = None,
        id: str | None = None,
        status: Literal[
            "canceled",
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
        | None = None,
        since: datetime | None = None,
    ) -> ListedRun | None:
        """As ``find``."""
        answer: ListedRun | None = self._as_listedrun(
            await self._afirst(
                "workflows.list",
                {
                    "open": open,
                    "closed": closed,
                    "parked": parked,
                    "stranded": stranded,
                    "type": type,
                    "id": id,
                    "status": status,
                    "since": since,
                    "partial": True,
                },
                "runs",
                "after",
            )
        )
        return answer

    def get(self, key: str) -> ListedRun:
        """Return a run by its handle or workflow id. ``row`` has all its details."""
        answer: ListedRun = self._as_listedrun(self._ask("workflows.show", {"key": key}))
        return answer

    async def aget(self, key: str) -> ListedRun:
        """As ``get``."""
        answer: ListedRun = self._as_listedrun(await self._aask("workflows.show", {"key": key}))
        return answer


class Functions(OnServers):
    """The functions on an App's servers.

    Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and
    ConnectionLostError. Methods that begin with ``a`` are for asyncio.
    """

    def list(self, *, name: str = "", limit: int | None = None) -> Iterator[FunctionInfo]:
        """Yield the functions. ``name`` is a part of their names.

        ``limit`` is the most to yield; None: all. Pages are requested as they are read.
        """
        answer: Iterator[FunctionInfo] = self._pages("functions.list", {"name": name}, "functions", "after", limit)
        return answer

    def alist(self, *, name: str = "", limit: int | None = None) -> AsyncIterator[FunctionInfo]:
        """As ``list``."""
        answer: AsyncIterator[FunctionInfo] = self._apages(
            "functions.list", {"name": name}, "functions", "after", limit
        )
        return answer

    def get(self, function: str | Named) -> FunctionInfo:
        """Return a function."""
        answer: FunctionInfo = self._ask("functions.show", {"function": function})
        return answer

    async def aget(self, function: str | Named) -> FunctionInfo:
        """As ``get``."""
        answer: FunctionInfo = await self._aask("functions.show", {"function": function})
        return answer

    def pause(
        self, function: str | Named, *, reason: str = "", until: datetime | None = None, revision: str | None = None
    ) -> FunctionInfo:
        """Start no more jobs of a function."""
        answer: FunctionInfo = self._ask(
            "functions.pause", {"function": function, "reason": reason, "until": until, "revision": revision}
        )
        return answer

    async def apause(
        self, function: str | Named, *, reason: str = "", until: datetime | None = None, revision: str | None = None
    ) -> FunctionInfo:
        """As ``pause``."""
        answer: FunctionInfo = await self._aask(
            "functions.pause", {"function": function, "reason": reason, "until": until, "revision": revision}
        )
        return answer

    def resume(self, function: str | Named, *, revision: str | None = None) -> FunctionInfo:
        """Start jobs of a paused function again."""
        answer: FunctionInfo = self._ask("functions.resume", {"function": function, "revision": revision})
        return answer

    async def aresume(self, function: str | Named, *, revision: str | None = None) -> FunctionInfo:
        """As ``resume``."""
        answer: FunctionInfo = await self._aask("functions.resume", {"function": function, "revision": revision})
        return answer

    def limit(
        self,
        function: str | Named,
        *,
        concurrency: int | UnsetType | None = UNSET,
        concurrency_per_key: int | UnsetType | None = UNSET,
        rate: Rate | UnsetType | None = UNSET,
        rate_per_key: Rate | UnsetType | None = UNSET,
        unlimited: bool = False,
        declared: bool = False,
        revision: str | None = None,
    ) -> FunctionInfo:
        """Limit a function; limits that are left out do not change."""
        answer: FunctionInfo = self._ask(
            "functions.limit",
            {
                "function": function,
                "concurrency": concurrency,
                "concurrency_per_key": concurrency_per_key,
                "rate": rate,
                "rate_per_key": rate_per_key,
                "unlimited": unlimited,
                "declared": declared,
                "revision": revision,
            },
        )
        return answer

    async def alimit(
        self,
        function: str | Named,
        *,
        concurrency: int | UnsetType | None = UNSET,
        concurrency_per_key: int | UnsetType | None = UNSET,
        rate: Rate | UnsetType | None = UNSET,
        rate_per_key: Rate | UnsetType | None = UNSET,
        unlimited: bool = False,
        declared: bool = False,
        revision: str | None = None,
    ) -> FunctionInfo:
        """As ``limit``."""
        answer: FunctionInfo = await self._aask(
            "functions.limit",
            {
                "function": function,
                "concurrency": concurrency,
                "concurrency_per_key": concurrency_per_key,
                "rate": rate,
                "rate_per_key": rate_per_key,
                "unlimited": unlimited,
                "declared": declared,
                "revision": revision,
            },
        )
        return answer


class ScheduleRequests(OnServers):
    """The schedules on an App's servers.

    Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and
    ConnectionLostError. Methods that begin with ``a`` are for asyncio.
    """

    def list(self) -> Iterator[ScheduleInfo]:
        """Yield the schedules, by name."""
        answer: Iterator[ScheduleInfo] = self._pages("schedules.list", {}, "schedules", "", None)
        return answer

    def alist(self) -> AsyncIterator[ScheduleInfo]:
        """As ``list``."""
        answer: AsyncIterator[ScheduleInfo] = self._apages("schedules.list", {}, "schedules", "", None)
        return answer

    def get(self, name: str) -> ScheduleDetails:
        """Return a schedule with all its details."""
        answer: ScheduleDetails = self._ask("schedules.show", {"name": name})
        return answer

    async def aget(self, name: str) -> ScheduleDetails:
        """As ``get``."""
        answer: ScheduleDetails = await self._aask("schedules.show", {"name": name})
        return answer

    def add(
        self,
        name: str,
        *,
        function: str | Named | UnsetType = UNSET,
        args: Any | UnsetType = UNSET,
        cron: str | UnsetType = UNSET,
        every: Duration | UnsetType = UNSET,
        at: datetime | UnsetType = UNSET,
        timezone: str | UnsetType = UNSET,
        start: datetime | UnsetType | None = UNSET,
        end: datetime | UnsetType | None = UNSET,
        jitter: Duration | UnsetType = UNSET,
        exclude: Sequence[date | str] | UnsetType = UNSET,
        misfire: Literal["all", "once", "skip"] | int | UnsetType = UNSET,
        misfire_after: Duration | UnsetType = UNSET,
        overlap: str | UnsetType = UNSET,
        parents: Sequence[str | Named] | UnsetType = UNSET,
        wait_for_children: bool | UnsetType = UNSET,
        priority: str | UnsetType = UNSET,
        retry: Retry | UnsetType | None = UNSET,
        timeout: Duration | UnsetType | None = UNSET,
        unique: str | UnsetType = UNSET,
        expires: Duration | UnsetType | None = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
    ) -> ScheduleInfo:
        """Create a schedule."""
        answer: ScheduleInfo = self._ask(
            "schedules.add",
            {
                "name": name,
                "function": function,
                "args": args,
                "cron": cron,
                "every": every,
                "at": at,
                "timezone": timezone,
                "start": start,
                "end": end,
                "jitter": jitter,
                "exclude": exclude,
                "misfire": misfire,
                "misfire_after": misfire_after,
                "overlap": overlap,
                "parents": parents,
                "wait_for_children": wait_for_children,
                "priority": priority,
                "retry": retry,
                "timeout": timeout,
                "unique": unique,
                "expires": expires,
                "tags": tags,
            },
        )
        return answer

    async def aadd(
        self,
        name: str,
        *,
        function: str | Named | UnsetType = UNSET,
        args: Any | UnsetType = UNSET,
        cron: str | UnsetType = UNSET,
        every: Duration | UnsetType = UNSET,
        at: datetime | UnsetType = UNSET,
        timezone: str | UnsetType = UNSET,
        start: datetime | UnsetType | None = UNSET,
        end: datetime | UnsetType | None = UNSET,
        jitter: Duration | UnsetType = UNSET,
        exclude: Sequence[date | str] | UnsetType = UNSET,
        misfire: Literal["all", "once", "skip"] | int | UnsetType = UNSET,
        misfire_after: Duration | UnsetType = UNSET,
        overlap: str | UnsetType = UNSET,
        parents: Sequence[str | Named] | UnsetType = UNSET,
        wait_for_children: bool | UnsetType = UNSET,
        priority: str | UnsetType = UNSET,
        retry: Retry | UnsetType | None = UNSET,
        timeout: Duration | UnsetType | None = UNSET,
        unique: str | UnsetType = UNSET,
        expires: Duration | UnsetType | None = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
    ) -> ScheduleInfo:
        """As ``add``."""
        answer: ScheduleInfo = await self._aask(
            "schedules.add",
            {
                "name": name,
                "function": function,
                "args": args,
                "cron": cron,
                "every": every,
                "at": at,
                "timezone": timezone,
                "start": start,
                "end": end,
                "jitter": jitter,
                "exclude": exclude,
                "misfire": misfire,
                "misfire_after": misfire_after,
                "overlap": overlap,
                "parents": parents,
                "wait_for_children": wait_for_children,
                "priority": priority,
                "retry": retry,
                "timeout": timeout,
                "unique": unique,
                "expires": expires,
                "tags": tags,
            },
        )
        return answer

    def edit(
        self,
        name: str,
        *,
        revision: str | None = None,
        function: str | Named | UnsetType = UNSET,
        args: Any | UnsetType = UNSET,
        cron: str | UnsetType = UNSET,
        every: Duration | UnsetType = UNSET,
        at: datetime | UnsetType = UNSET,
        timezone: str | UnsetType = UNSET,
        start: datetime | UnsetType | None = UNSET,
        end: datetime | UnsetType | None = UNSET,
        jitter: Duration | UnsetType = UNSET,
        exclude: Sequence[date | str] | UnsetType = UNSET,
        misfire: Literal["all", "once", "skip"] | int | UnsetType = UNSET,
        misfire_after: Duration | UnsetType = UNSET,
        overlap: str | UnsetType = UNSET,
        parents: Sequence[str | Named] | UnsetType = UNSET,
        wait_for_children: bool | UnsetType = UNSET,
        priority: str | UnsetType = UNSET,
        retry: Retry | UnsetType | None = UNSET,
        timeout: Duration | UnsetType | None = UNSET,
        unique: str | UnsetType = UNSET,
        expires: Duration | UnsetType | None = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
    ) -> ScheduleInfo:
        """Change a schedule; fields that are left out do not change."""
        answer: ScheduleInfo = self._ask(
            "schedules.edit",
            {
                "revision": revision,
                "name": name,
                "function": function,
                "args": args,
                "cron": cron,
                "every": every,
                "at": at,
                "timezone": timezone,
                "start": start,
                "end": end,
                "jitter": jitter,
                "exclude": exclude,
                "misfire": misfire,
                "misfire_after": misfire_after,
                "overlap": overlap,
                "parents": parents,
                "wait_for_children": wait_for_children,
                "priority": priority,
                "retry": retry,
                "timeout": timeout,
                "unique": unique,
                "expires": expires,
                "tags": tags,
            },
        )
        return answer

    async def aedit(
        self,
        name: str,
        *,
        revision: str | None = None,
        function: str | Named | UnsetType = UNSET,
        args: Any | UnsetType = UNSET,
        cron: str | UnsetType = UNSET,
        every: Duration | UnsetType = UNSET,
        at: datetime | UnsetType = UNSET,
        timezone: str | UnsetType = UNSET,
        start: datetime | UnsetType | None = UNSET,
        end: datetime | UnsetType | None = UNSET,
        jitter: Duration | UnsetType = UNSET,
        exclude: Sequence[date | str] | UnsetType = UNSET,
        misfire: Literal["all", "once", "skip"] | int | UnsetType = UNSET,
        misfire_after: Duration | UnsetType = UNSET,
        overlap: str | UnsetType = UNSET,
        parents: Sequence[str | Named] | UnsetType = UNSET,
        wait_for_children: bool | UnsetType = UNSET,
        priority: str | UnsetType = UNSET,
        retry: Retry | UnsetType | None = UNSET,
        timeout: Duration | UnsetType | None = UNSET,
        unique: str | UnsetType = UNSET,
        expires: Duration | UnsetType | None = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
    ) -> ScheduleInfo:
        """As ``edit``."""
        answer: ScheduleInfo = await self._aask(
            "schedules.edit",
            {
                "revision": revision,
                "name": name,
                "function": function,
                "args": args,
                "cron": cron,
                "every": every,
                "at": at,
                "timezone": timezone,
                "start": start,
                "end": end,
                "jitter": jitter,
                "exclude": exclude,
                "misfire": misfire,
                "misfire_after": misfire_after,
                "overlap": overlap,
                "parents": parents,
                "wait_for_children": wait_for_children,
                "priority": priority,
                "retry": retry,
                "timeout": timeout,
                "unique": unique,
                "expires": expires,
                "tags": tags,
            },
        )
        return answer

    def replace(
        self,
        name: str,
        *,
        revision: str | None = None,
        function: str | Named | UnsetType = UNSET,
        args: Any | UnsetType = UNSET,
        cron: str | UnsetType = UNSET,
        every: Duration | UnsetType = UNSET,
        at: datetime | UnsetType = UNSET,
        timezone: str | UnsetType = UNSET,
        start: datetime | UnsetType | None = UNSET,
        end: datetime | UnsetType | None = UNSET,
        jitter: Duration | UnsetType = UNSET,
        exclude: Sequence[date | str] | UnsetType = UNSET,
        misfire: Literal["all", "once", "skip"] | int | UnsetType = UNSET,
        misfire_after: Duration | UnsetType = UNSET,
        overlap: str | UnsetType = UNSET,
        parents: Sequence[str | Named] | UnsetType = UNSET,
        wait_for_children: bool | UnsetType = UNSET,
        priority: str | UnsetType = UNSET,
        retry: Retry | UnsetType | None = UNSET,
        timeout: Duration | UnsetType | None = UNSET,
        unique: str | UnsetType = UNSET,
        expires: Duration | UnsetType | None = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
    ) -> ScheduleInfo:
        """Change a schedule; fields that are left out get their defaults."""
        answer: ScheduleInfo = self._ask(
            "schedules.replace",
            {
                "revision": revision,
                "name": name,
                "function": function,
                "args": args,
                "cron": cron,
                "every": every,
                "at": at,
                "timezone": timezone,
                "start": start,
                "end": end,
                "jitter": jitter,
                "exclude": exclude,
                "misfire": misfire,
                "misfire_after": misfire_after,
                "overlap": overlap,
                "parents": parents,
                "wait_for_children": wait_for_children,
                "priority": priority,
                "retry": retry,
                "timeout": timeout,
                "unique": unique,
                "expires": expires,
                "tags": tags,
            },
        )
        return answer

    async def areplace(
        self,
        name: str,
        *,
        revision: str | None = None,
        function: str | Named | UnsetType = UNSET,
        args: Any | UnsetType = UNSET,
        cron: str | UnsetType = UNSET,
        every: Duration | UnsetType = UNSET,
        at: datetime | UnsetType = UNSET,
        timezone: str | UnsetType = UNSET,
        start: datetime | UnsetType | None = UNSET,
        end: datetime | UnsetType | None = UNSET,
        jitter: Duration | UnsetType = UNSET,
        exclude: Sequence[date | str] | UnsetType = UNSET,
        misfire: Literal["all", "once", "skip"] | int | UnsetType = UNSET,
        misfire_after: Duration | UnsetType = UNSET,
        overlap: str | UnsetType = UNSET,
        parents: Sequence[str | Named] | UnsetType = UNSET,
        wait_for_children: bool | UnsetType = UNSET,
        priority: str | UnsetType = UNSET,
        retry: Retry | UnsetType | None = UNSET,
        timeout: Duration | UnsetType | None = UNSET,
        unique: str | UnsetType = UNSET,
        expires: Duration | UnsetType | None = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
    ) -> ScheduleInfo:
        """As ``replace``."""
        answer: ScheduleInfo = await self._aask(
            "schedules.replace",
            {
                "revision": revision,
                "name": name,
                "function": function,
                "args": args,
                "cron": cron,
                "every": every,
                "at": at,
                "timezone": timezone,
                "start": start,
                "end": end,
                "jitter": jitter,
                "exclude": exclude,
                "misfire": misfire,
                "misfire_after": misfire_after,
                "overlap": overlap,
                "parents": parents,
                "wait_for_children": wait_for_children,
                "priority": priority,
                "retry": retry,
                "timeout": timeout,
                "unique": unique,
                "expires": expires,
                "tags": tags,
            },
        )
        return answer

    def preview(
        self,
        name: str,
        *,
        count: int = 10,
        function: str | Named | UnsetType = UNSET,
        args: Any | UnsetType = UNSET,
        cron: str | UnsetType = UNSET,
        every: Duration | UnsetType = UNSET,
        at: datetime | UnsetType = UNSET,
        timezone: str | UnsetType = UNSET,
        start: datetime | UnsetType | None = UNSET,
        end: datetime | UnsetType | None = UNSET,
        jitter: Duration | UnsetType = UNSET,
        exclude: Sequence[date | str] | UnsetType = UNSET,
        misfire: Literal["all", "once", "skip"] | int | UnsetType = UNSET,
        misfire_after: Duration | UnsetType = UNSET,
        overlap: str | UnsetType = UNSET,
        parents: Sequence[str | Named] | UnsetType = UNSET,
        wait_for_children: bool | UnsetType = UNSET,
        priority: str | UnsetType = UNSET,
        retry: Retry | UnsetType | None = UNSET,
        timeout: Duration | UnsetType | None = UNSET,
        unique: str | UnsetType = UNSET,
        expires: Duration | UnsetType | None = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
    ) -> Previewed:
        """Return what ``add`` or ``edit`` would do, and save nothing."""
        answer: Previewed = self._ask(
            "schedules.preview",
            {
                "count": count,
                "name": name,
                "function": function,
                "args": args,
                "cron": cron,
                "every": every,
                "at": at,
                "timezone": timezone,
                "start": start,
                "end": end,
                "jitter": jitter,
                "exclude": exclude,
                "misfire": misfire,
                "misfire_after": misfire_after,
                "overlap": overlap,
                "parents": parents,
                "wait_for_children": wait_for_children,
                "priority": priority,
                "retry": retry,
                "timeout": timeout,
                "unique": unique,
                "expires": expires,
                "tags": tags,
            },
        )
        return answer

    async def apreview(
        self,
        name: str,
        *,
        count: int = 10,
        function: str | Named | UnsetType = UNSET,
        args: Any | UnsetType = UNSET,
        cron: str | UnsetType = UNSET,
        every: Duration | UnsetType = UNSET,
        at: datetime | UnsetType = UNSET,
        timezone: str | UnsetType = UNSET,
        start: datetime | UnsetType | None = UNSET,
        end: datetime | UnsetType | None = UNSET,
        jitter: Duration | UnsetType = UNSET,
        exclude: Sequence[date | str] | UnsetType = UNSET,
        misfire: Literal["all", "once", "skip"] | int | UnsetType = UNSET,
        misfire_after: Duration | UnsetType = UNSET,
        overlap: str | UnsetType = UNSET,
        parents: Sequence[str | Named] | UnsetType = UNSET,
        wait_for_children: bool | UnsetType = UNSET,
        priority: str | UnsetType = UNSET,
        retry: Retry | UnsetType | None = UNSET,
        timeout: Duration | UnsetType | None = UNSET,
        unique: str | UnsetType = UNSET,
        expires: Duration | UnsetType | None = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
    ) -> Previewed:
        """As ``preview``."""
        answer: Previewed = await self._aask(
            "schedules.preview",
            {
                "count": count,
                "name": name,
                "function": function,
                "args": args,
                "cron": cron,
                "every": every,
                "at": at,
                "timezone": timezone,
                "start": start,
                "end": end,
                "jitter": jitter,
                "exclude": exclude,
                "misfire": misfire,
                "misfire_after": misfire_after,
                "overlap": overlap,
                "parents": parents,
                "wait_for_children": wait_for_children,
                "priority": priority,
                "retry": retry,
                "timeout": timeout,
                "unique": unique,
                "expires": expires,
                "tags": tags,
            },
        )
        return answer

    def pause(self, name: str, *, revision: str | None = None) -> ScheduleInfo:
        """Skip a schedule's fire times from now on."""
        answer: ScheduleInfo = self._ask("schedules.pause", {"name": name, "revision": revision})
        return answer

    async def apause(self, name: str, *, revision: str | None = None) -> ScheduleInfo:
        """As ``pause``."""
        answer: ScheduleInfo = await self._aask("schedules.pause", {"name": name, "revision": revision})
        return answer

    def resume(self, name: str, *, revision: str | None = None) -> ScheduleInfo:
        """Let a paused schedule run again."""
        answer: ScheduleInfo = self._ask("schedules.resume", {"name": name, "revision": revision})
        return answer

    async def aresume(self, name: str, *, revision: str | None = None) -> ScheduleInfo:
        """As ``resume``."""
        answer: ScheduleInfo = await self._aask("schedules.resume", {"name": name, "revision": revision})
        return answer

    def trigger(self, name: str) -> Fired:
        """Run a schedule now."""
        answer: Fired = self._ask("schedules.trigger", {"name": name})
        return answer

    async def atrigger(self, name: str) -> Fired:
        """As ``trigger``."""
        answer: Fired = await self._aask("schedules.trigger", {"name": name})
        return answer

    def remove(self, name: str, *, revision: str | None = None, children: bool = False) -> Removed:
        """Remove a schedule; its history stays."""
        answer: Removed = self._ask("schedules.remove", {"name": name, "revision": revision, "children": children})
        return answer

    async def aremove(self, name: str, *, revision: str | None = None, children: bool = False) -> Removed:
        """As ``remove``."""
        answer: Removed = await self._aask(
            "schedules.remove", {"name": name, "revision": revision, "children": children}
        )
        return answer

    def next(self, name: str, *, count: int = 10) -> Times:
        """Return the next times of a schedule."""
        answer: Times = self._ask("schedules.next", {"name": name, "count": count})
        return answer

    async def anext(self, name: str, *, count: int = 10) -> Times:
        """As ``next``."""
        answer: Times = await self._aask("schedules.next", {"name": name, "count": count})
        return answer

    def fires(
        self,
        *,
        schedule: str | None = None,
        state: Literal["fired", "joined", "skipped", "waiting"] | None = None,
        outcome: Literal["cancelled", "expired", "failed", "succeeded"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[Fired]:
        """Yield the outcomes of the fire times of all schedules, or of one, newest first.

        ``limit`` is the most to yield; None: all. Pages are requested as they are read.
        """
        answer: Iterator[Fired] = self._pages(
            "schedules.fires",
            {"schedule": schedule, "state": state, "outcome": outcome, "since": since, "until": until},
            "fires",
            "after",
            limit,
        )
        return answer

    def afires(
        self,
        *,
        schedule: str | None = None,
        state: Literal["fired", "joined", "skipped", "waiting"] | None = None,
        outcome: Literal["cancelled", "expired", "failed", "succeeded"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Fired]:
        """As ``fires``."""
        answer: AsyncIterator[Fired] = self._apages(
            "schedules.fires",
            {"schedule": schedule, "state": state, "outcome": outcome, "since": since, "until": until},
            "fires",
            "after",
            limit,
        )
        return answer

    def backfill(
        self,
        name: str,
        from_: datetime,
        *,
        to: datetime | None = None,
        max: int | None = None,
        dry_run: bool = False,
        reason: str = "",
        rate: float | None = None,
    ) -> Begun:
        """Run a schedule for its past fire times that have not run, each once, in an operation."""
        answer: Begun = self._ask(
            "schedules.backfill",
            {"name": name, "from_": from_, "to": to, "max": max, "dry_run": dry_run, "reason": reason, "rate": rate},
        )
        return answer

    async def abackfill(
        self,
        name: str,
        from_: datetime,
        *,
        to: datetime | None = None,
        max: int | None = None,
        dry_run: bool = False,
        reason: str = "",
        rate: float | None = None,
    ) -> Begun:
        """As ``backfill``."""
        answer: Begun = await self._aask(
            "schedules.backfill",
            {"name": name, "from_": from_, "to": to, "max": max, "dry_run": dry_run, "reason": reason, "rate": rate},
        )
        return answer
