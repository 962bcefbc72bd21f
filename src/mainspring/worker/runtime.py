"""The worker: asks its servers for jobs, as many as it can hold, and stops politely."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from enum import Enum
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.attempt_log import AttemptLog
from mainspring.client.validation import refusal
from mainspring.errors import SettingsError
from mainspring.worker.executors.process import TASK_PROCESS
from mainspring.worker.extra_places import ExtraPlaces
from mainspring.worker.failed_attempts import FailedAttempts
from mainspring.worker.heartbeats import Heartbeats
from mainspring.worker.held_jobs import HeldJobs
from mainspring.worker.link import Connector, Link
from mainspring.worker.memory import resident_bytes
from mainspring.worker.places import Places
from mainspring.worker.prefetch import PrefetchController
from mainspring.worker.session import Assigned, Event, Key, Refused, Shown, Stop, WorkerSession
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from mainspring.worker.current import CurrentJob
    from mainspring.worker.delivery import Delivery
    from mainspring.worker.job_counters import JobCounters
    from mainspring.worker.registry import Registry

STOP_GRACE: Final = 1.0
"""Seconds for what is stopped by force at the end of a drain."""

HELD_UP_AFTER: Final = 1.0
"""Seconds after which a job that could not be started goes back."""

SETTLE_GRACE: Final = 5.0
"""Seconds for the servers to acknowledge the last settlements."""

_log = structlog.get_logger(__name__)


class Ending(Enum):
    """Why a worker has ended."""

    STOPPED = "stopped"
    RECYCLED = "recycled"


class Worker:
    """Runs the functions of a registry for several servers at once; ``selector`` names the App for its processes.

    ``task_process`` is the command that starts one of these, without its arguments. ``counters`` is kept for a supervisor.
    ``left_out``: functions that it takes jobs of later, each with the monotonic time from which on it does.
    ``servers`` are connectors by a name for people. Make it and run it on one event loop.
    """

    def __init__(
        self,
        registry: Registry,
        servers: Mapping[str, Connector],
        settings: WorkerSettings | None = None,
        *,
        selector: str | None = None,
        task_process: Sequence[str] = TASK_PROCESS,
        counters: JobCounters | None = None,
        left_out: Mapping[str, float] | None = None,
    ) -> None:
        given: object = settings
        if given is not None and not isinstance(given, WorkerSettings):
            raise refusal("settings", "WorkerSettings", given)
        self.settings = settings or WorkerSettings()
        self._name = self.settings.name or f"{socket.gethostname()}-{os.getpid()}"
        self._functions = {function.name.encode(): function for function in registry}
        self._selector = selector
        self._left_out = dict(left_out or {})
        registrations = {function.name: function.registration() for function in registry}
        functions = [(name.encode(), options) for name, options in registrations.items() if name not in self._left_out]
        self._servers = dict(servers)
        slots, isolates = self.settings.concurrency, selector is not None
        self._links = [
            Link(place, connect, WorkerSession(functions, self._name, slots, isolates=isolates), self)
            for place, connect in servers.items()
        ]
        self._all_links = [*self._links]  # also those for extra places
        self._prefetch = PrefetchController(self.settings.concurrency)
        self._places = Places(self.settings.concurrency, self.settings.waiting_places)
        self._waits = Waits(self.settings.concurrency, self._reconsider)
        self._extra = ExtraPlaces(self._places, self._waits, registrations, self)
        self._held_jobs = HeldJobs(
            self._functions,
            self._places,
            self._waits,
            self._prefetch,
            self.settings,
            selector=selector,
            task_process=task_process,
            counters=counters,
            ended=self._jobs_ended,
        )
        self._ending = Ending.STOPPED
        self._asked = False  # to stop, by its owner: recycling is no reason to hurry
        self._draining = asyncio.Event()
        self._hurried = asyncio.Event()
        self._changed = asyncio.Event()  # something has ended
        self._heartbeats = Heartbeats(self._all_links, self._tick)

    # What its owner calls.

    def stop(self, *, now: bool = False) -> None:
        """Stop politely; ``now``: without the grace, also where a polite stop is under way."""
        self._asked = True
        if not self._draining.is_set():
            self._begin_to_drain()
        if now:
            self._hurried.set()
            self._changed.set()

    def interrupt(self) -> None:
        """Stop politely; called in a stop: stop now."""
        self.stop(now=self._asked)

    @property
    def running(self) -> int:
        """The number of jobs that run at present."""
        return self._places.running + self._places.extra

    @property
    def jobs_done(self) -> int:
        """The number of jobs that this worker has run to their end."""
        return self._held_jobs.done

    @property
    def held(self) -> Sequence[Delivery]:
        """The jobs that it holds: those that run, and those taken in advance."""
        return self._held_jobs.deliveries()

    @property
    def links(self) -> Sequence[Link]:
        """Its connections: one for each server, and one more while it has extra places."""
        return self._all_links

    async def run(self) -> Ending:
        """Work until ``stop``, or until recycling is due; what is left then is settled or handed back.

        Raises ServerError where a server does not speak the extension.
        """
        if not self._functions:
            raise SettingsError("the App defines no task: there is nothing for a worker to do")
        loop = asyncio.get_running_loop()
        attempts = AttemptLog(loop.time, loop.call_later)
        self._held_jobs.attach(FailedAttempts(attempts, time.time, tracebacks=self.settings.log_tracebacks))
        self._waits.attach()
        for name, until in self._left_out.items():
            loop.call_later(until - time.monotonic(), self._take_up, name)
        keepers = [asyncio.create_task(link.keep(), name=f"mainspring {link.name}") for link in self._links]
        beats = asyncio.create_task(self._heartbeats.run(), name="mainspring heartbeats")
        extra = asyncio.create_task(self._extra.run(), name="mainspring extra places")
        drained = asyncio.create_task(self._draining.wait(), name="mainspring stop")
        owned = [*keepers, beats, extra, drained]
        try:
            ended, _ = await asyncio.wait(owned, return_when=asyncio.FIRST_COMPLETED)
            if drained not in ended:
                for task in ended:
                    task.result()  # raises: they end by themselves only with an error
            await self._drain()
        finally:
            # The order: no new connections and beats; then what still runs; the connections last, for what it settled.
            for task in owned:
                task.cancel()
            await asyncio.gather(*owned, return_exceptions=True)
            await self._held_jobs.close()
            for link in self._all_links:
                await link.close()
            attempts.close()
        return self._ending

    # What the links tell.

    def agreed(self, link: Link) -> None:
        """Begin to take jobs from a server."""
        if self._draining.is_set():
            link.session.pause()
        elif link.extra:
            self._extra.agreed(link)
        else:
            self._ask()

    def received(self, link: Link, events: Sequence[Event]) -> None:
        """Take jobs and stops."""
        now = asyncio.get_running_loop().time()
        for event in events:
            if isinstance(event, Assigned):
                taken = self._held_jobs.accept(link, event, now)
                if taken is not None and b'"heartbeat"' in event.info:
                    self._heartbeats.shorten(taken.info.heartbeat)
            elif isinstance(event, Stop):
                self._held_jobs.stop(link, event.key, event.reason)
            elif isinstance(event, Shown):
                self._extra.shown(link, event)
            elif isinstance(event, Refused):
                _log.warning("server refused a request", server=link.name, code=event.code, message=event.message)
        self._go_on()

    def lost(self, link: Link, keys: set[Key]) -> None:
        """Stop what is lost."""
        for key in keys:
            self._held_jobs.stop(link, key, "lost")
        self._go_on()

    def _go_on(self) -> None:
        """Start what can start, and ask for what there is room for: jobs have come or ended."""
        self._changed.set()
        self._held_jobs.start()
        self._ask()
        self._extra.reconsider()

    # What the extra places need.

    def running_jobs(self) -> Collection[CurrentJob]:
        """Return the jobs that run."""
        return {delivery.job for delivery in self.held if delivery.running}

    def release_prefetched(self) -> None:
        """Hand back what was taken in advance: all places are held by tasks that wait, maybe for one of these jobs."""
        if self._held_jobs.hand_back_waiting():
            self._prefetch.held_up()
            self._ask()

    def open_links(self) -> Sequence[Link]:
        """Make links for extra places."""
        links = [
            Link(place, connect, WorkerSession((), self._name, isolates=self._selector is not None), self, extra=True)
            for place, connect in self._servers.items()
        ]
        self._all_links += links
        return links

    async def close_links(self, links: Sequence[Link]) -> None:
        """End links for extra places, and the threads and processes that only these have needed."""
        for link in links:
            await link.close()
            self._all_links.remove(link)
        self._held_jobs.shrink()

    def _reconsider(self) -> None:
        self._extra.reconsider()

    def _take_up(self, name: str) -> None:
        """Take jobs of a function that was left out."""
        function = self._functions.get(name.encode())
        if function is not None and not self._draining.is_set():
            for link in self._links:
                link.session.register(name.encode(), function.registration())
                link.flush()

    def _jobs_ended(self) -> None:
        if self.settings.max_jobs is not None and self.jobs_done >= self.settings.max_jobs:
            self._recycle()
        self._go_on()
        for link in self._all_links:
            link.flush()

    def _ask(self) -> None:
        """Ask the servers for as many jobs as can be held.

        Each may give as many as there is room for, since nobody knows which of them has any. What one gives is taken back
        from the others while jobs are long.
        """
        if self._draining.is_set():
            return
        wanted = self._prefetch.wanted()
        room = max(0, wanted - self._held_jobs.usual)
        for link in self._links:
            session = link.session
            if not session.agreed:
                continue
            missing = room - session.credit
            if missing < 0 and not session.pausing and not self._prefetch.brief:
                session.pause()
                missing = room
            # One packet for several, as long as the server has enough to go on with.
            if missing > 0 and (missing * 4 >= wanted or session.credit <= missing):
                session.ready(missing)
            link.flush()

    # What only time changes.

    def _tick(self) -> None:
        """Hand back what was held in advance and had to wait, and see whether recycling is due."""
        overdue = asyncio.get_running_loop().time() - HELD_UP_AFTER
        if self._held_jobs.hand_back_waiting(overdue):
            self._prefetch.held_up()
            self._ask()
        if self.settings.max_rss is not None and resident_bytes() > self.settings.max_rss:
            self._recycle()

    def _recycle(self) -> None:
        if not self._draining.is_set():
            self._ending = Ending.RECYCLED
            self._begin_to_drain()

    def _begin_to_drain(self) -> None:
        # The pause goes out before anything is handed back: otherwise it would come again.
        self._places.close()
        for link in self._all_links:
            link.session.pause()
            link.flush()
        self._draining.set()

    async def _drain(self) -> None:
        """Stop: no new jobs; those that run may end; what is left is stopped; all is settled or handed back."""
        self._held_jobs.hand_back_waiting()
        await self._until(lambda: not self.running and not self._pausing(), self.settings.grace, hurry=True)
        self._held_jobs.stop_all("drain")
        await self._until(lambda: not self.running, STOP_GRACE)
        self._held_jobs.give_up()
        await self._until(lambda: not any(link.session.unsettled for link in self._all_links), SETTLE_GRACE)

    def _pausing(self) -> bool:
        return any(link.session.pausing for link in self._all_links)

    async def _until(self, done: Callable[[], bool], seconds: float, *, hurry: bool = False) -> None:
        """Wait for something that comes with a change, so many seconds at most; not at all where there is a hurry."""
        try:
            async with asyncio.timeout(seconds):
                while not done() and not (hurry and self._hurried.is_set()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
