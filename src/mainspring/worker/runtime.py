"""The worker: takes jobs from its servers, has them run, settles them, and stops politely."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.errors import SettingsError
from mainspring.worker.appetite import Appetite
from mainspring.worker.current import CurrentJob
from mainspring.worker.delivery import Delivery, Executor, Finished
from mainspring.worker.executors.aio import CoroutineExecutor
from mainspring.worker.executors.process import ProcessExecutor
from mainspring.worker.executors.thread import ThreadExecutor
from mainspring.worker.heartbeats import Heartbeats
from mainspring.worker.link import Connector, Link
from mainspring.worker.memory import resident_bytes
from mainspring.worker.performance import CANCELLED, RELEASED, Settlement, failure
from mainspring.worker.reports import Origin, Reports
from mainspring.worker.session import Assigned, Event, Key, Refused, Stop, WorkerSession

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.worker.registry import Registry

DRAIN_GRACE: Final = 30.0
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


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works; the defaults suit tasks that mostly wait."""

    concurrency: int = 16
    """Jobs that run at a time."""

    name: str = ""
    """What servers call it; the machine's name and the process's number where empty."""

    grace: float = DRAIN_GRACE
    """Seconds that running jobs have to end when the worker is told to stop; then they are handed back."""

    max_jobs: int | None = None
    """The worker ends after so many jobs, to be started anew."""

    max_rss: int | None = None
    """The worker ends when it takes so many bytes of memory, to be started anew."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise SettingsError(f"concurrency must be at least 1; it is {self.concurrency}")


class Worker:
    """Runs the functions of a registry for several servers at once; ``selector`` names the App for its processes.

    ``servers`` are connectors by a name for people. Make it and run it on one event loop.
    """

    def __init__(
        self,
        registry: Registry,
        servers: Mapping[str, Connector],
        settings: WorkerSettings | None = None,
        *,
        selector: str | None = None,
    ) -> None:
        self.settings = settings or WorkerSettings()
        name = self.settings.name or f"{socket.gethostname()}-{os.getpid()}"
        functions = [(function.name.encode(), function.registration()) for function in registry]
        self._functions = {function.name.encode(): function for function in registry}
        self._selector = selector
        self._links = [Link(place, connect, WorkerSession(functions, name), self) for place, connect in servers.items()]
        self._appetite = Appetite(self.settings.concurrency)
        self._waiting: deque[Delivery] = deque()
        self._running = 0
        self._done = 0
        self._ending = Ending.STOPPED
        self._draining = asyncio.Event()
        self._hurried = asyncio.Event()
        self._changed = asyncio.Event()  # something has ended
        self._executors: dict[str, Executor] = {}
        self._reports = Reports()
        self._heartbeats = Heartbeats(self._links, self._tick)

    # What its owner calls.

    def stop(self) -> None:
        """Stop politely; called again, without the grace."""
        if self._draining.is_set():
            self._hurried.set()
            self._changed.set()
        else:
            self._begin_to_drain()

    @property
    def jobs_done(self) -> int:
        """The number of jobs that this worker has run to their end."""
        return self._done

    @property
    def links(self) -> Sequence[Link]:
        """Its connections, one for each server."""
        return self._links

    async def run(self) -> Ending:
        """Work until ``stop``, or until recycling is due; what is left then is settled or handed back.

        Raises ServerError where a server does not speak the extension.
        """
        if not self._functions:
            raise SettingsError("the App defines no task: there is nothing for a worker to do")
        self._reports.attach()
        self._executors = {
            "thread": ThreadExecutor(self.settings.concurrency, self._finish),
            "coroutine": CoroutineExecutor(self._finish),
            "process": ProcessExecutor(
                self.settings.concurrency, self._selector, self._finish, max_rss=self.settings.max_rss
            ),
        }
        keepers = [asyncio.create_task(link.keep(), name=f"mainspring {link.name}") for link in self._links]
        beats = asyncio.create_task(self._heartbeats.run(), name="mainspring heartbeats")
        drained = asyncio.create_task(self._draining.wait(), name="mainspring stop")
        owned = [*keepers, beats, drained]
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
            for executor in self._executors.values():
                await executor.close()
            for link in self._links:
                await link.close()
        return self._ending

    # What the links tell.

    def agreed(self, link: Link) -> None:
        """Begin to take jobs from a server."""
        if self._draining.is_set():
            link.session.pause()
        else:
            self._ask()

    def received(self, link: Link, events: Sequence[Event]) -> None:
        """Take jobs and stops."""
        now = asyncio.get_running_loop().time()
        for event in events:
            if isinstance(event, Assigned):
                self._take(link, event, now)
            elif isinstance(event, Stop):
                self._stop_job(link, event.key, event.reason)
            elif isinstance(event, Refused):
                _log.warning("server refused a request", server=link.name, code=event.code, message=event.message)
        self._changed.set()
        self._start()
        self._ask()

    def lost(self, link: Link, keys: set[Key]) -> None:
        """Stop what is lost."""
        for key in keys:
            self._stop_job(link, key, "lost")
        self._changed.set()
        self._start()
        self._ask()

    # Jobs' ways.

    def _take(self, link: Link, assigned: Assigned, now: float) -> None:
        handle, lease, name, unique, info, payload = assigned
        key = (handle, lease)
        function = self._functions.get(name)
        if function is None:
            link.session.settle(key, failure("UsageError", f"this worker has no function {name!r}", final=True))
        elif self._draining.is_set():
            link.session.settle(key, RELEASED)
        else:
            job = CurrentJob(handle, unique, function.name, info, self._reports, Origin(link, key))
            delivery = Delivery(link, key, function, payload, job, now)
            link.held[key] = delivery
            self._waiting.append(delivery)
            if b'"heartbeat"' in info:
                self._heartbeats.hasten(job.info.heartbeat)

    def _start(self) -> None:
        free = self.settings.concurrency - self._running
        if not self._waiting or free <= 0 or self._draining.is_set():
            return
        batches: dict[str, list[Delivery]] = {}
        while self._waiting and free:
            delivery = self._waiting.popleft()
            delivery.running = True
            batches.setdefault(delivery.function.executor, []).append(delivery)
            free -= 1
        self._running = self.settings.concurrency - free
        for kind, batch in batches.items():
            self._executors[kind].start(batch, brief=self._appetite.brief)

    def _finish(self, finished: Sequence[Finished]) -> None:
        """Settle what executors are done with, and fill the places."""
        self._running -= len(finished)
        self._done += len(finished)
        self._reports.send()
        for delivery, settlement, seconds in finished:
            self._appetite.saw(seconds)
            delivery.link.session.settle(delivery.key, settlement)
            delivery.link.held.pop(delivery.key, None)
        if self.settings.max_jobs is not None and self._done >= self.settings.max_jobs:
            self._recycle()
        self._changed.set()
        self._start()
        self._ask()
        self._flush()

    def _stop_job(self, link: Link, key: Key, reason: str) -> None:
        delivery = link.held.get(key)
        if delivery is None:
            return
        if reason in {"timeout", "lost"}:
            link.session.drop(key)  # the delivery is over: nothing is to be settled
        delivery.job.ask_to_stop(reason)
        if delivery.running:
            self._executors[delivery.function.executor].stop(delivery, at_once=reason != "cancelled")
        else:
            self._waiting.remove(delivery)
            self._hand_back(delivery, CANCELLED if reason == "cancelled" else RELEASED)

    def _hand_back(self, delivery: Delivery, settlement: Settlement = RELEASED) -> None:
        """End a delivery without its function."""
        del delivery.link.held[delivery.key]
        delivery.link.session.settle(delivery.key, settlement)
        delivery.link.flush()

    def _ask(self) -> None:
        """Ask the servers for as many jobs as can be held.

        Each may give as many as there is room for, since nobody knows which of them has any. What one gives is taken back
        from the others while jobs are long.
        """
        if self._draining.is_set():
            return
        wanted = self._appetite.wanted()
        room = max(0, wanted - sum(len(link.held) for link in self._links))
        for link in self._links:
            session = link.session
            if not session.agreed:
                continue
            missing = room - session.credit
            if missing < 0 and not session.pausing and not self._appetite.brief:
                session.pause()
                missing = room
            # One packet for several, as long as the server has enough to go on with.
            if missing > 0 and (missing * 4 >= wanted or session.credit <= missing):
                session.ready(missing)
            link.flush()

    def _flush(self) -> None:
        for link in self._links:
            link.flush()

    # What only time changes.

    def _tick(self) -> None:
        """Hand back what was held in advance and had to wait, and see whether recycling is due."""
        overdue = asyncio.get_running_loop().time() - HELD_UP_AFTER
        if self._waiting and self._waiting[0].arrived < overdue:
            self._appetite.held_up()
            while self._waiting and self._waiting[0].arrived < overdue:
                self._hand_back(self._waiting.popleft())
            self._ask()
        if self.settings.max_rss is not None and resident_bytes() > self.settings.max_rss:
            self._recycle()

    def _recycle(self) -> None:
        if not self._draining.is_set():
            self._ending = Ending.RECYCLED
            self._begin_to_drain()

    def _begin_to_drain(self) -> None:
        # The pause goes out before anything is handed back: otherwise it would come again.
        for link in self._links:
            link.session.pause()
            link.flush()
        self._draining.set()

    async def _drain(self) -> None:
        """Stop: no new jobs; those that run may end; what is left is stopped; all is settled or handed back."""
        while self._waiting:
            self._hand_back(self._waiting.popleft())
        await self._until(lambda: not self._running and not self._pausing(), self.settings.grace, hurry=True)
        for delivery in self._all_held():
            delivery.job.ask_to_stop("drain")
            self._executors[delivery.function.executor].stop(delivery, at_once=True)
        await self._until(lambda: not self._running, STOP_GRACE)
        for delivery in self._all_held():
            self._hand_back(delivery)  # a thread that does not listen; it ends with the process
        await self._until(lambda: not any(link.session.unsettled for link in self._links), SETTLE_GRACE)

    def _pausing(self) -> bool:
        return any(link.session.pausing for link in self._links)

    def _all_held(self) -> list[Delivery]:
        return [delivery for link in self._links for delivery in link.held.values()]

    async def _until(self, done: Callable[[], bool], seconds: float, *, hurry: bool = False) -> None:
        """Wait for something that comes with a change, so many seconds at most; not at all where there is a hurry."""
        try:
            async with asyncio.timeout(seconds):
                while not done() and not (hurry and self._hurried.is_set()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
