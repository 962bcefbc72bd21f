"""The jobs, runs and functions of an App's servers.

``python -m checks.operating`` writes this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from mainspring.client.asking import OnServers
from mainspring.client.found import FindsJobs, FindsRuns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from datetime import datetime

    from mainspring.api.functions import FunctionInfo
    from mainspring.client.asking import Named
    from mainspring.client.found import ListedJob, ListedRun
    from mainspring.client.job import Job
    from mainspring.client.options import Duration, Rate
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
                },
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
                },
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
                },
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
                },
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
                },
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
                },
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
                },
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
                },
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
        answer: Iterator[FunctionInfo] = self._pages("functions.list", {"name": name}, limit)
        return answer

    def alist(self, *, name: str = "", limit: int | None = None) -> AsyncIterator[FunctionInfo]:
        """As ``list``."""
        answer: AsyncIterator[FunctionInfo] = self._apages("functions.list", {"name": name}, limit)
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
        """Start the jobs of a paused function again."""
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
        """Limit a function. Limits that are left out do not change."""
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
