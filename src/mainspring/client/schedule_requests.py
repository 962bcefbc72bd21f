"""The schedules of an App's servers.

``python -m checks.operating`` writes this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from mainspring.client.asking import OnServers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from datetime import date, datetime

    from mainspring.api.operations import StartedBackfill
    from mainspring.api.schedules import FireInfo as Fired
    from mainspring.api.schedules import Previewed, RemovedSchedule, ScheduleDetails, ScheduleInfo, Times
    from mainspring.client.asking import Named
    from mainspring.client.options import Duration, Retry


class ScheduleRequests(OnServers):
    """The schedules on an App's servers.

    Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and
    ConnectionLostError. Methods that begin with ``a`` are for asyncio.
    """

    def list(self, *, limit: int | None = None) -> Iterator[ScheduleInfo]:
        """Yield the schedules, by name.

        ``limit`` is the most to yield; None: all. Pages are requested as they are read.
        """
        answer: Iterator[ScheduleInfo] = self._pages("schedules.list", {}, limit)
        return answer

    def alist(self, *, limit: int | None = None) -> AsyncIterator[ScheduleInfo]:
        """As ``list``."""
        answer: AsyncIterator[ScheduleInfo] = self._apages("schedules.list", {}, limit)
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
        """Change a part of a schedule. Fields that are left out do not change."""
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
        """Change a schedule. Fields that are left out get their defaults."""
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
        """Skip the fire times of a schedule from now on."""
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

    def remove(self, name: str, *, revision: str | None = None, children: bool = False) -> RemovedSchedule:
        """Remove a schedule. Its history stays."""
        answer: RemovedSchedule = self._ask(
            "schedules.remove", {"name": name, "revision": revision, "children": children}
        )
        return answer

    async def aremove(self, name: str, *, revision: str | None = None, children: bool = False) -> RemovedSchedule:
        """As ``remove``."""
        answer: RemovedSchedule = await self._aask(
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
    ) -> StartedBackfill:
        """Run a schedule for its past fire times that have not run, each once, in an operation."""
        answer: StartedBackfill = self._ask(
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
    ) -> StartedBackfill:
        """As ``backfill``."""
        answer: StartedBackfill = await self._aask(
            "schedules.backfill",
            {"name": name, "from_": from_, "to": to, "max": max, "dry_run": dry_run, "reason": reason, "rate": rate},
        )
        return answer
