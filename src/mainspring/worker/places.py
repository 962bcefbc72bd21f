"""The places of a worker, each for one running job, and extra places while tasks wait for other jobs.

A task that waits for a job holds its place. If such tasks hold all places, the awaited jobs could never start here. Therefore
one extra place opens when every place is occupied and every running task waits. When the task in the extra place waits, too,
the next one opens, up to a limit. As soon as a task continues, no extra place accepts a new job.

An extra place must not run every job: another task that waits for jobs would only hold that place, too. Therefore its
jobs arrive over separate connections, which register only the functions of awaited jobs that have not started. The worker
queries the servers for these.

``Places`` decides how many places are needed, by what `Waits` gets from the tasks' threads; ``ExtraPlaces`` opens and closes
them. It opens connections only after all tasks have waited for a moment, and closes them when no extra place was needed for a
while.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from mainspring.errors import WorkerFullError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence

    from mainspring.client.inside import Awaited
    from mainspring.worker.current import CurrentJob
    from mainspring.worker.link import Link
    from mainspring.worker.session import Shown


class Need(Enum):
    """The need for extra places."""

    NONE = "none"
    """A task does not wait, a place is free, or the worker is about to end."""

    ANOTHER = "another"
    """All tasks wait: one more place is needed."""

    TOO_MANY = "too many"
    """All tasks wait, and all extra places are occupied."""


@dataclass(slots=True)
class Places:
    """The places of a worker: ``concurrency`` regular ones, and at most ``most_extra`` extra ones."""

    concurrency: int
    most_extra: int
    running: int = 0
    """Jobs in regular places."""

    extra: int = 0
    """Jobs in extra places."""

    closed: bool = False
    """Whether the worker is about to end, so that no new job is started."""

    @property
    def free(self) -> int:
        """The number of free regular places."""
        return self.concurrency - self.running

    def occupy(self, places: int, extra: int = 0) -> None:
        """Count jobs that start in regular and in extra places."""
        self.running += places
        self.extra += extra

    def vacate(self, places: int, extra: int) -> None:
        """Count jobs that have ended in regular and in extra places."""
        self.occupy(-places, -extra)

    def close(self) -> None:
        """Prevent further jobs from starting."""
        self.closed = True

    def need(self, waiting: int) -> Need:
        """Return the need for extra places while ``waiting`` of the running jobs wait for others."""
        if self.closed or self.free > 0 or waiting < self.running + self.extra:
            return Need.NONE
        return Need.ANOTHER if self.extra < self.most_extra else Need.TOO_MANY


class Waits:
    """All waits of a worker's tasks.

    ``changed`` is called on the loop after a wait has begun or ended while at least ``places`` tasks wait. With fewer waiting
    tasks, no extra place is needed.
    """

    def __init__(self, places: int, changed: Callable[[], None]) -> None:
        self._places = places
        self._changed = changed
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: dict[Awaited, CurrentJob] = {}  # the oldest wait first
        self._counts: dict[CurrentJob, int] = {}
        self._scheduled = False
        self.begun = 0
        """The number of waits that have begun so far."""

    def attach(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()

    def begin(self, job: CurrentJob, awaited: Awaited) -> None:
        """Record that a task waits for a job; do nothing in a fork of a task."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self.begun += 1
            self._jobs[awaited] = job
            self._counts[job] = self._counts.get(job, 0) + 1
            self._notify(len(self._counts))

    def end(self, awaited: Awaited) -> None:
        """Record that a wait is over; do nothing if that is already recorded."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            job = self._jobs.pop(awaited, None)
            if job is None:
                return
            before = len(self._counts)
            self._counts[job] -= 1
            if not self._counts[job]:
                del self._counts[job]
            self._notify(before)

    def _notify(self, waiting: int) -> None:
        if waiting < self._places or self._scheduled or self._loop is None:
            return
        self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._report)
        except RuntimeError:
            pass  # the loop is closed: the worker has ended

    def _report(self) -> None:
        self._scheduled = False  # first, so that later changes schedule another call
        self._changed()

    # Called on the loop's thread.

    @property
    def many(self) -> bool:
        """Whether enough tasks wait to hold all places."""
        return len(self._counts) >= self._places

    def count(self, jobs: Iterable[CurrentJob]) -> int:
        """Return how many of these jobs wait."""
        with self._lock:
            return sum(job in self._counts for job in jobs)

    def newest(self, jobs: Container[CurrentJob]) -> list[Awaited]:
        """Return the jobs that these jobs wait for, the newest wait first."""
        with self._lock:
            return [awaited for awaited, job in reversed(self._jobs.items()) if job in jobs]

    def of(self, job: CurrentJob) -> list[Awaited]:
        """Return the jobs that one job waits for."""
        with self._lock:
            return [awaited for awaited, other in self._jobs.items() if other is job] if job in self._counts else []


OPEN_DELAY: Final = 0.05
"""Seconds for which all tasks must wait before connections are opened, because most waits end sooner."""

POLL_INTERVAL: Final = 0.5
"""Seconds between queries for awaited jobs."""

QUICK_POLLS: Final = 8
"""Polls at that interval without a new wait; afterwards, each interval is longer than the last."""

MAX_POLL_INTERVAL: Final = 10.0
"""Seconds between polls, at most."""

IDLE_TIMEOUT: Final = 10.0
"""Seconds for which connections stay open without need for an extra place."""

REFUSE_AFTER: Final = 2.0
"""Seconds for which waiting tasks must hold all places, extra ones included, before a wait is refused.

Until then, another worker may start the awaited job.
"""

QUERIES_PER_POLL: Final = 8
"""Awaited jobs that a server is queried for in one poll."""

NOT_STARTED: Final = frozenset({"scheduled", "pending", "leased"})

_log = structlog.get_logger(__name__)


class Owner(Protocol):
    """The worker that owns the extra places."""

    def running_jobs(self) -> Collection[CurrentJob]:
        """Return the jobs that run, in all places."""

    def release_prefetched(self) -> None:
        """Release prefetched jobs, because the tasks may wait for one of them."""

    def open_links(self) -> Sequence[Link]:
        """Return new links to all servers, without functions."""

    def close_links(self, links: Sequence[Link]) -> Awaitable[None]:
        """Close links that hold no jobs, and end threads and processes that only extra places needed."""


class ExtraPlaces:
    """The extra places of one worker; ``functions`` maps the functions' names to options of REGISTER."""

    def __init__(self, places: Places, waits: Waits, functions: Mapping[str, bytes], owner: Owner) -> None:
        self._places = places
        self._waits = waits
        self._functions = functions
        self._owner = owner
        self._links: Sequence[Link] = ()
        self._link_tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._not_started: set[str] = set()  # handles, as of the last poll
        self._offset = 0
        self._polls = 0  # since the last wait began
        self._begun = 0
        self._full_since: float | None = None

    async def run(self) -> None:
        """Open and close extra places until cancelled."""
        try:
            while True:
                await self._run_once()
        finally:
            await self._end_link_tasks()

    async def _run_once(self) -> None:
        self._changed.clear()
        if self.need() is Need.NONE:
            try:
                async with asyncio.timeout(IDLE_TIMEOUT if self._links else None):
                    await self._changed.wait()
            except TimeoutError:
                await self._close()
            return
        await self._await_poll()
        if self.need() is not Need.NONE:
            self._open()
            self._poll()

    # Called by the worker.

    def need(self) -> Need:
        """Return the need for extra places now."""
        if not self._waits.many:
            return Need.NONE
        return self._places.need(self._waits.count(self._owner.running_jobs()))

    def reconsider(self) -> None:
        """Open or close an extra place; called when jobs or waits have begun or ended."""
        if not self._links and not self._waits.many:
            return
        need = self.need()
        now = asyncio.get_running_loop().time()
        if need is not Need.TOO_MANY:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        if need is not Need.NONE:
            self._owner.release_prefetched()
        for link in self._links:
            session = link.session
            if not session.agreed or session.pausing:
                continue
            if need is Need.ANOTHER and session.functions and not session.credit:
                session.ready(1)
            elif need is not Need.ANOTHER and session.credit:
                session.pause()
            link.flush()
        self._changed.set()

    def agreed(self, link: Link) -> None:
        """Query a server that has agreed on the extension."""
        if self.need() is not Need.NONE:
            self._query([link], self._handles())
        self.reconsider()

    def shown(self, link: Link, shown: Shown) -> None:
        """Process a server's answer about an awaited job."""
        if shown.function in self._functions and shown.state in NOT_STARTED:
            self._not_started.add(shown.handle)
            link.session.register(shown.function.encode(), self._functions[shown.function])

    # Internal.

    async def _await_poll(self) -> None:
        """Wait until the next poll. The intervals grow while the same tasks wait."""
        await asyncio.sleep(POLL_INTERVAL if self._links else OPEN_DELAY)
        if self._waits.begun != self._begun:
            self._polls = 0
        elif (late := self._polls - QUICK_POLLS) > 0:
            try:
                async with asyncio.timeout(min(MAX_POLL_INTERVAL, POLL_INTERVAL * 2**late)):
                    while self._waits.begun == self._begun and self.need() is not Need.NONE:
                        self._changed.clear()
                        await self._changed.wait()
            except TimeoutError:
                pass

    def _poll(self) -> None:
        """Refuse a wait if all places have been held for too long; query the servers for awaited jobs."""
        self._polls += 1
        self._begun = self._waits.begun
        now = asyncio.get_running_loop().time()
        if self._full_since is not None and now - self._full_since >= REFUSE_AFTER:
            self._refuse()
        self._offset = 0 if self._not_started else self._offset + QUERIES_PER_POLL
        self._not_started.clear()
        self._query(self._links, self._handles())
        self.reconsider()

    def _awaited(self) -> list[Awaited]:
        return self._waits.newest(self._owner.running_jobs())

    def _handles(self) -> list[str]:
        """Return some of the awaited handles; other ones each time, until one of them has not started."""
        handles = list(dict.fromkeys(awaited.handle for awaited in self._awaited()))
        if self._offset >= len(handles):
            self._offset = 0
        count = min(QUERIES_PER_POLL, len(handles))
        return list(itertools.islice(itertools.chain(handles[self._offset :], handles), count))

    @staticmethod
    def _query(links: Sequence[Link], handles: Sequence[str]) -> None:
        for link in links:
            if link.session.agreed:
                for handle in handles:
                    link.session.show(handle)
                link.flush()

    def _refuse(self) -> None:
        """End the newest wait for a job that has not started, because its task has done the least so far."""
        for awaited in self._awaited():
            if awaited.handle in self._not_started:
                _log.warning("a wait was refused: all places wait", awaited=awaited.handle)
                self._waits.end(awaited)
                awaited.refuse(WorkerFullError(self._refusal(awaited.handle)))
                return

    def _refusal(self, handle: str) -> str:
        places, extra = self._places.concurrency, self._places.most_extra
        return (
            f"job {handle} has not started, and cannot start here: tasks that wait for other jobs hold all of the worker's "
            f"{places} {'place' if places == 1 else 'places'} and {extra} extra ones. "
            "Instead of waiting, let the awaited job submit the next step, or let a schedule with parent=… follow it; "
            "or give the worker more --concurrency or --waiting-places"
        )

    def _open(self) -> None:
        if not self._links:
            self._links = self._owner.open_links()
            self._link_tasks = [
                asyncio.create_task(self._keep(link), name=f"mainspring {link.name}, extra places")
                for link in self._links
            ]

    @staticmethod
    async def _keep(link: Link) -> None:
        try:
            await link.keep()
        except Exception as error:  # noqa: BLE001 - the worker's own connection to the server reports more
            _log.warning("no extra places for jobs of a server", server=link.name, error=str(error))

    async def _close(self) -> None:
        """Close the connections unless they are in use."""
        sessions = [link.session for link in self._links]
        if self._places.extra or any(session.unsettled or session.pausing for session in sessions):
            return
        links, self._links = self._links, ()  # first, so that no more jobs are requested on them
        await self._end_link_tasks()
        await self._owner.close_links(links)

    async def _end_link_tasks(self) -> None:
        tasks, self._link_tasks = self._link_tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
