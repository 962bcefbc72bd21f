"""A submitted job, as its submitter holds it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from mainspring.client.options import Duration, seconds
from mainspring.client.outcomes import Outcome, failure
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence

    from mainspring.client.connections import Connections
    from mainspring.client.streaming import JobEvent

R = TypeVar("R")

HANDLE_LIMIT: Final = 63
"""Letters of a handle: Gearman's C library has no room for more."""
FINAL: Final = frozenset({"succeeded", "failed", "cancelled", "expired"})


class Job(Generic[R]):
    """A job on a server.  ``handle`` names it there; ``joined``: it was live already when it was asked for.

    ``decode`` reads its result. A Job holds no connection. Methods without ``a`` block; their twins for asyncio begin with it.
    """

    __slots__ = ("_connections", "_outcome", "decode", "handle", "joined")

    def __init__(
        self, connections: Connections, handle: str, decode: Callable[[bytes], R], *, joined: bool = False
    ) -> None:
        self._connections = connections
        self.decode = decode
        self._outcome: Outcome | None = None
        self.handle = handle
        self.joined = joined

    def __repr__(self) -> str:
        return f"Job({self.handle!r})"

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job has ended and return its result.

        Raises JobFailed, JobCancelled, JobExpired or JobLost as it ended, TimeoutError when it has not, ServerError
        where no server can be asked, PayloadError where the result is not what the task declares. In a task of a worker also
        WorkerFullError where the worker has no place for the job, and JobStopped where the task is to stop.
        """
        if self._outcome is None:
            limit = None if timeout is None else seconds(timeout, "timeout")
            self._outcome = self._connections.blocking().outcome(self.handle, limit)
        return self._unpack(self._outcome)

    async def aresult(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109 - the twin of result
        """Wait until the job has ended and return its result; raises as ``result``."""
        if self._outcome is None:
            limit = None if timeout is None else seconds(timeout, "timeout")
            self._outcome = await self._connections.aio().outcome(self.handle, limit)
        return self._unpack(self._outcome)

    def stream(self, timeout: Duration | None = None) -> Generator[JobEvent]:
        """Give what the job's task sends, ``Progress``, ``Data`` and ``Warned``, until the job has ended, however it does.

        ``result`` then has its result or its error at once. What was sent before is not given, nor what is lost on its way
        where a server or a connection ends. Of events that come faster than they are taken, some 8 MiB are held; ``Missed``
        stands where others were dropped.

        Raises as ``result`` while it waits: TimeoutError where the job has not ended in time, and ServerError.
        """
        return self._stream(None if timeout is None else seconds(timeout, "timeout"))

    def _stream(self, limit: float | None) -> Generator[JobEvent]:
        if self._outcome is not None:
            return
        for event in self._connections.blocking().stream(self.handle, limit):
            if isinstance(event, Outcome):
                self._outcome = event
            else:
                yield event

    def astream(self, timeout: Duration | None = None) -> AsyncGenerator[JobEvent]:
        """Give what the job's task sends, for ``async for``, as ``stream`` does."""
        return self._astream(None if timeout is None else seconds(timeout, "timeout"))

    async def _astream(self, limit: float | None) -> AsyncGenerator[JobEvent]:
        if self._outcome is not None:
            return
        async with contextlib.aclosing(self._connections.aio().stream(self.handle, limit)) as events:
            async for event in events:
                if isinstance(event, Outcome):
                    self._outcome = event
                else:
                    yield event

    def cancel(self, reason: str = "") -> str:
        """Cancel the job; return ``cancelled``, ``running`` where its worker was asked to stop, or how it had ended.

        Raises NotFoundError where the server does not know the job.
        """
        answer = self._connections.blocking().call("jobs.cancel", _cancel(self.handle, reason))
        return str(answer["state"])

    async def acancel(self, reason: str = "") -> str:
        """Cancel the job, as ``cancel`` does."""
        answer = await self._connections.aio().call("jobs.cancel", _cancel(self.handle, reason))
        return str(answer["state"])

    @property
    def state(self) -> str:
        """Ask the server for the job's state: scheduled, pending, leased, running or how it ended.

        Raises NotFoundError where the server does not know the job (any more).
        """
        return self._ended() or str(self.info()["state"])

    async def astate(self) -> str:
        """Ask the server for the job's state, as ``state`` does."""
        return self._ended() or str((await self.ainfo())["state"])

    def info(self) -> dict[str, Any]:
        """Ask the server for all it says about the job: its state, attempt, times, error, progress and more."""
        answer: dict[str, Any] = self._connections.blocking().call("jobs.show", {"handle": self.handle})
        return answer

    async def ainfo(self) -> dict[str, Any]:
        """Ask the server for all it says about the job."""
        answer: dict[str, Any] = await self._connections.aio().call("jobs.show", {"handle": self.handle})
        return answer

    def _ended(self) -> str | None:
        return self._outcome.state if self._outcome is not None and self._outcome.state in FINAL else None

    def _unpack(self, outcome: Outcome) -> R:
        error = failure(outcome)
        if error is not None:
            raise error
        return self.decode(outcome.data)


def results(connections: Connections, jobs: Sequence[Job[R]], limit: float | None) -> Iterator[R]:
    """Give the results of many jobs in order, asking for many at once; ``limit`` seconds are for all of them.

    Raises at the first job that did not succeed, as ``Job.result`` would.
    """
    outcomes = connections.blocking().outcomes((job.handle for job in jobs), limit)
    for job, outcome in zip(jobs, outcomes, strict=False):
        if (error := failure(outcome)) is not None:
            raise error
        yield job.decode(outcome.data)


async def aresults(connections: Connections, jobs: Sequence[Job[R]]) -> AsyncGenerator[R]:
    """Give the results of many jobs in order, as ``results`` does."""
    ordered = iter(jobs)
    async for outcome in connections.aio().outcomes(job.handle for job in jobs):
        if (error := failure(outcome)) is not None:
            raise error
        yield next(ordered).decode(outcome.data)


def check_handle(handle: str) -> str:
    """Return what a user gives as a handle.  Raises UsageError where no server could have told it."""
    given: object = handle
    if not isinstance(given, str) or not 0 < len(given) <= HANDLE_LIMIT or not given.isprintable():
        shown = repr(given)
        if len(shown) > 2 * HANDLE_LIMIT:
            shown = f"{shown[:HANDLE_LIMIT]}…"
        raise UsageError(f"{shown} is no handle: give that of a job, such as 'H:node:1000000000001'")
    return handle


def _cancel(handle: str, reason: str) -> dict[str, str]:
    return {"handle": handle, "reason": reason} if reason else {"handle": handle}
