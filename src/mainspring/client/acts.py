"""The methods of a job and of a run that change it, or read what is kept of it.

``python -m checks.operating`` writes this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from mainspring.client.connections import OfJob, OfRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from mainspring.api.jobs import Attempt, DeletedJob, JobInfo, KeptArguments
    from mainspring.api.workflows import ChangedRuns, ForkedRun, ReachedRun
    from mainspring.client.options import Duration


class JobActs(OfJob):
    """Changes a job, and reads what is kept of it.

    Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and
    ConnectionLostError. Methods that begin with ``a`` are for asyncio.
    """

    __slots__ = ()

    def retry(self, *, delay: Duration | None = None, args: Any | UnsetType = UNSET) -> JobInfo:
        """Retry a job that ended without success.

        It is pending at once, or after the ``delay``. With arguments, it gets these in place of its own: that needs the
        permission to submit jobs.
        """
        return self._ask_of_handle("jobs.retry", {"delay": delay, "args": args})

    async def aretry(self, *, delay: Duration | None = None, args: Any | UnsetType = UNSET) -> JobInfo:
        """As ``retry``."""
        return await self._aask_of_handle("jobs.retry", {"delay": delay, "args": args})

    def update(
        self,
        *,
        run_at: datetime | UnsetType = UNSET,
        priority: Literal["high", "low", "normal"] | UnsetType = UNSET,
        expires_at: datetime | UnsetType | None = UNSET,
        start_within: Duration | UnsetType | None = UNSET,
        deadline: Duration | UnsetType | None = UNSET,
    ) -> JobInfo:
        """Change the time, the priority or the expiry of a job that waits, or by when a job should begin and end.

        Keys that are left out stay as they are.
        """
        return self._ask_of_handle(
            "jobs.update",
            {
                "run_at": run_at,
                "priority": priority,
                "expires_at": expires_at,
                "start_within": start_within,
                "deadline": deadline,
            },
        )

    async def aupdate(
        self,
        *,
        run_at: datetime | UnsetType = UNSET,
        priority: Literal["high", "low", "normal"] | UnsetType = UNSET,
        expires_at: datetime | UnsetType | None = UNSET,
        start_within: Duration | UnsetType | None = UNSET,
        deadline: Duration | UnsetType | None = UNSET,
    ) -> JobInfo:
        """As ``update``."""
        return await self._aask_of_handle(
            "jobs.update",
            {
                "run_at": run_at,
                "priority": priority,
                "expires_at": expires_at,
                "start_within": start_within,
                "deadline": deadline,
            },
        )

    def snooze(self, delay: Duration) -> JobInfo:
        """Postpone a job that waits."""
        return self._ask_of_handle("jobs.snooze", {"delay": delay})

    async def asnooze(self, delay: Duration) -> JobInfo:
        """As ``snooze``."""
        return await self._aask_of_handle("jobs.snooze", {"delay": delay})

    def delete(self) -> DeletedJob:
        """Delete a job that has ended."""
        return self._ask_of_handle("jobs.delete", {})

    async def adelete(self) -> DeletedJob:
        """As ``delete``."""
        return await self._aask_of_handle("jobs.delete", {})

    def attempts(self) -> Sequence[Attempt]:
        """Return the attempts, oldest first."""
        return (self._ask_of_handle("jobs.attempts", {})).attempts

    async def aattempts(self) -> Sequence[Attempt]:
        """As ``attempts``."""
        return (await self._aask_of_handle("jobs.attempts", {})).attempts

    def arguments(self) -> KeptArguments:
        """Return the arguments, as far as they are kept."""
        return self._ask_of_handle("jobs.arguments", {})

    async def aarguments(self) -> KeptArguments:
        """As ``arguments``."""
        return await self._aask_of_handle("jobs.arguments", {})


class RunActs(OfRun):
    """Changes a run of a workflow, beside the methods of its job.

    Raises NotFoundError, ConflictError, UsageError for an invalid value, ForbiddenError if the App's token lacks a right, and
    ConnectionLostError. Methods that begin with ``a`` are for asyncio.
    """

    __slots__ = ()

    def move(self, version: str) -> ReachedRun:
        """Give a run another version before its code has recorded anything. It continues as new."""
        return self._ask_of_key("workflows.move", {"version": version})

    async def amove(self, version: str) -> ReachedRun:
        """As ``move``."""
        return await self._aask_of_key("workflows.move", {"version": version})

    def reset(
        self,
        *,
        event: int | None = None,
        before: str | None = None,
        first: bool = False,
        last: bool = False,
        drop_signals: bool = False,
        dry_run: bool = False,
        reason: str = "",
    ) -> ForkedRun:
        """Make one of a run's decisions anew. A new run of the same workflow id repeats the decisions before it."""
        return self._ask_of_key(
            "workflows.reset",
            {
                "event": event,
                "before": before,
                "first": first,
                "last": last,
                "drop_signals": drop_signals,
                "dry_run": dry_run,
                "reason": reason,
            },
        )

    async def areset(
        self,
        *,
        event: int | None = None,
        before: str | None = None,
        first: bool = False,
        last: bool = False,
        drop_signals: bool = False,
        dry_run: bool = False,
        reason: str = "",
    ) -> ForkedRun:
        """As ``reset``."""
        return await self._aask_of_key(
            "workflows.reset",
            {
                "event": event,
                "before": before,
                "first": first,
                "last": last,
                "drop_signals": drop_signals,
                "dry_run": dry_run,
                "reason": reason,
            },
        )

    def pause(self, *, reason: str = "", until: datetime | None = None) -> ReachedRun:
        """Pause an open run: no decision of it is handed out, and none of its waiting activities starts, until it is resumed.

        It takes signals and other events on. A paused run gets the new reason and end.
        """
        return self._ask_of_key("workflows.pause", {"reason": reason, "until": until})

    async def apause(self, *, reason: str = "", until: datetime | None = None) -> ReachedRun:
        """As ``pause``."""
        return await self._aask_of_key("workflows.pause", {"reason": reason, "until": until})

    def resume(self) -> ReachedRun:
        """Resume the run, if it is paused."""
        return self._ask_of_key("workflows.resume", {})

    async def aresume(self) -> ReachedRun:
        """As ``resume``."""
        return await self._aask_of_key("workflows.resume", {})

    def rerun(
        self,
        *,
        from_call: str | None = None,
        repeat: Sequence[str] = (),
        skip: Mapping[str, Any] | None = None,
        version: str = "",
        drop_signals: bool = False,
        dry_run: bool = False,
        reason: str = "",
        args: Any | UnsetType = UNSET,
    ) -> ForkedRun:
        """Run a workflow again with the results that a run of it has. Calls with the same function and arguments do not execute.

        A new run of the same workflow id begins with today's code. With arguments or results of the request, that needs the
        permission to submit jobs.
        """
        return self._ask_of_key(
            "workflows.rerun",
            {
                "from_call": from_call,
                "repeat": repeat,
                "skip": skip,
                "version": version,
                "drop_signals": drop_signals,
                "dry_run": dry_run,
                "reason": reason,
                "args": args,
            },
        )

    async def arerun(
        self,
        *,
        from_call: str | None = None,
        repeat: Sequence[str] = (),
        skip: Mapping[str, Any] | None = None,
        version: str = "",
        drop_signals: bool = False,
        dry_run: bool = False,
        reason: str = "",
        args: Any | UnsetType = UNSET,
    ) -> ForkedRun:
        """As ``rerun``."""
        return await self._aask_of_key(
            "workflows.rerun",
            {
                "from_call": from_call,
                "repeat": repeat,
                "skip": skip,
                "version": version,
                "drop_signals": drop_signals,
                "dry_run": dry_run,
                "reason": reason,
                "args": args,
            },
        )

    def unpark(self) -> ChangedRuns:
        """Let the code try the run again, if it is parked."""
        return self._ask_of_key("workflows.unpark", {})

    async def aunpark(self) -> ChangedRuns:
        """As ``unpark``."""
        return await self._aask_of_key("workflows.unpark", {})
