"""The worker: takes jobs from its servers, has them run, settles them, and stops politely."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.attempt_log import AttemptLog
from mainspring.client.checking import refusal
from mainspring.errors import SettingsError
from mainspring.worker.appetite import Appetite
from mainspring.worker.current import CurrentJob, JobStopped
from mainspring.worker.delivery import Delivery, Executor, Finished
from mainspring.worker.executors.aio import CoroutineExecutor
from mainspring.worker.executors.process import TASK_PROCESS, ProcessExecutor
from mainspring.worker.executors.thread import ThreadExecutor
from mainspring.worker.extra_places import ExtraPlaces
from mainspring.worker.failed_attempts import FailedAttempts
from mainspring.worker.heartbeats import Heartbeats
from mainspring.worker.link import Connector, Link
from mainspring.worker.memory import resident_bytes
from mainspring.worker.performance import CANCELLED, RELEASED, Settlement, failure
from mainspring.worker.places import Places
from mainspring.worker.reports import Origin, Reports
from mainspring.worker.session import Assigned, Event, Key, Refused, Shown, Stop, WorkerSession
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from mainspring.worker.registry import Registry
    from mainspring.worker.slate import Slate

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

    ``task_process`` is the command that starts one of these, without its arguments. ``slate`` is kept for a supervisor.
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
        slate: Slate | None = None,
        left_out: Mapping[str, float] | None = None,
    ) -> None:
        given: object = settings
        if given is not None and not isinstance(given, WorkerSettings):
            raise refusal("settings", "WorkerSettings", given)
        self.settings = settings or WorkerSettings()
        self._name = self.settings.name or f"{socket.gethostname()}-{os.getpid()}"
        self._functions = {function.name.encode(): function for function in registry}
        self._selector = selector
        self._task_process = task_process
        self._slate = slate
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
        self._appetite = Appetite(self.settings.concurrency)
        self._places = Places(self.settings.concurrency, self.settings.waiting_places)
        self._waits = Waits(self.settings.concurrency, self._reconsider)
        self._extra = ExtraPlaces(self._places, self._waits, registrations, self)
        self._waiting: deque[Delivery] = deque()
        self._done = 0
        self._ending = Ending.STOPPED
        self._asked = False  # to stop, by its owner: recycling is no reason to hurry
        self._draining = asyncio.Event()
        self._hurried = asyncio.Event()
        self._changed = asyncio.Event()  # something has ended
        self._executors: dict[str, Executor] = {}
        self._reports = Reports(self._waits)
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
        return self._done

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
        self._reports.attach()
        loop = asyncio.get_running_loop()
        attempts = AttemptLog(loop.time, loop.call_later)
        self._failures = FailedAttempts(attempts, time.time, tracebacks=self.settings.log_tracebacks)
        self._waits.attach()
        usual, most = self.settings.concurrency, self.settings.concurrency + self.settings.waiting_places
        self._executors = {
            "thread": ThreadExecutor(usual, self._finish, most=most),
            "coroutine": CoroutineExecutor(self._finish),
            "process": ProcessExecutor(
                usual,
                self._selector,
                self._finish,
                most=most,
                max_rss=self.settings.max_rss,
                command=self._task_process,
            ),
        }
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
            for executor in self._executors.values():
                await executor.close()
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
                self._take(link, event, now)
            elif isinstance(event, Stop):
                self._stop_job(link, event.key, event.reason)
            elif isinstance(event, Shown):
                self._extra.shown(link, event)
            elif isinstance(event, Refused):
                _log.warning("server refused a request", server=link.name, code=event.code, message=event.message)
        self._changed.set()
        self._start()
        self._ask()
        self._extra.reconsider()

    def lost(self, link: Link, keys: set[Key]) -> None:
        """Stop what is lost."""
        for key in keys:
            self._stop_job(link, key, "lost")
        self._changed.set()
        self._start()
        self._ask()
        self._extra.reconsider()

    # What the extra places need.

    def running_jobs(self) -> Collection[CurrentJob]:
        """Return the jobs that run."""
        return {delivery.job for delivery in self._all_held() if delivery.running}

    def make_way(self) -> None:
        """Hand back what was taken in advance: all places are held by tasks that wait, maybe for one of these jobs."""
        if self._waiting:
            self._appetite.held_up()
            while self._waiting:
                self._hand_back(self._waiting.popleft())
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
        for executor in self._executors.values():
            executor.shrink()

    def _reconsider(self) -> None:
        self._extra.reconsider()

    def _take_up(self, name: str) -> None:
        """Take jobs of a function that was left out."""
        function = self._functions.get(name.encode())
        if function is not None and not self._draining.is_set():
            for link in self._links:
                link.session.register(name.encode(), function.registration())
                link.flush()

    # Jobs' ways.

    def _take(self, link: Link, assigned: Assigned, now: float) -> None:
        handle, lease, name, unique, info, payload = assigned
        key = (handle, lease)
        function = self._functions.get(name)
        if function is None:
            job = CurrentJob(handle, unique, name.decode("utf-8", "backslashreplace"), info, self._reports)
            settlement = failure("UsageError", f"this worker has no function {name!r}", final=True)
            self._failures.failed(job, None, settlement)
            link.session.settle(key, settlement)
        elif self._draining.is_set():
            link.session.settle(key, RELEASED)
        else:
            job = CurrentJob(handle, unique, function.name, info, self._reports, Origin(link, key))
            isolated = self._selector is not None and b'"alone"' in info
            delivery = Delivery(link, key, function, payload, job, now, isolated=isolated)
            link.held[key] = delivery
            if not link.extra:
                self._waiting.append(delivery)
            elif self._places.extra < self._places.most_extra:
                self._places.extra += 1
                delivery.running = True
                if self._slate is not None:
                    self._slate.begun([delivery])
                self._executors[delivery.executor].start([delivery], brief=False)
            else:
                self._hand_back(delivery)  # several servers had one for the same place
            if b'"heartbeat"' in info:
                self._heartbeats.hasten(job.info.heartbeat)

    def _start(self) -> None:
        free = self._places.free
        if not self._waiting or free <= 0 or self._draining.is_set():
            return
        batches: dict[str, list[Delivery]] = {}
        while self._waiting and free:
            delivery = self._waiting.popleft()
            delivery.running = True
            batches.setdefault(delivery.executor, []).append(delivery)
            free -= 1
        self._places.running = self._places.concurrency - free
        for kind, batch in batches.items():
            if self._slate is not None:
                self._slate.begun(batch)
            self._executors[kind].start(batch, brief=self._appetite.brief)

    def _finish(self, finished: Sequence[Finished]) -> None:
        """Settle what executors are done with, and fill the places."""
        self._done += len(finished)
        extra = 0
        self._reports.send()
        for delivery, settlement, seconds in finished:
            self._appetite.saw(seconds)
            extra += delivery.link.extra
            session = delivery.link.session
            if settlement.outcome == b"failed" and delivery.key in session.running:  # others are the server's to log
                self._failures.failed(delivery.job, delivery.function, settlement)
            session.settle(delivery.key, settlement)
            delivery.link.held.pop(delivery.key, None)
        if self._slate is not None:
            self._slate.ended([one.delivery for one in finished])
        self._places.running -= len(finished) - extra
        self._places.extra -= extra
        if self.settings.max_jobs is not None and self._done >= self.settings.max_jobs:
            self._recycle()
        self._changed.set()
        self._start()
        self._ask()
        self._extra.reconsider()
        self._flush()

    def _stop_job(self, link: Link, key: Key, reason: str) -> None:
        delivery = link.held.get(key)
        if delivery is None:
            return
        if reason in {"timeout", "lost"}:
            link.session.drop(key)  # the delivery is over: nothing is to be settled
        if delivery.running:
            self._stop_running(delivery, reason, at_once=reason != "cancelled")
        else:
            self._waiting.remove(delivery)
            self._hand_back(delivery, CANCELLED if reason == "cancelled" else RELEASED)

    def _stop_running(self, delivery: Delivery, reason: str, *, at_once: bool) -> None:
        """Stop what runs. A thread can only be asked, but while it waits for another job, that wait can be ended."""
        delivery.job.ask_to_stop(reason)
        self._executors[delivery.executor].stop(delivery, at_once=at_once)
        if delivery.executor == "thread":
            for awaited in self._waits.of(delivery.job):
                awaited.refuse(JobStopped(reason))

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
        for link in self._all_links:
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
        self._places.closed = True
        for link in self._all_links:
            link.session.pause()
            link.flush()
        self._draining.set()

    async def _drain(self) -> None:
        """Stop: no new jobs; those that run may end; what is left is stopped; all is settled or handed back."""
        while self._waiting:
            self._hand_back(self._waiting.popleft())
        await self._until(lambda: not self.running and not self._pausing(), self.settings.grace, hurry=True)
        for delivery in self._all_held():
            self._stop_running(delivery, "drain", at_once=True)
        await self._until(lambda: not self.running, STOP_GRACE)
        for delivery in self._all_held():
            self._hand_back(delivery)  # a thread that does not listen; it ends with the process
        await self._until(lambda: not any(link.session.unsettled for link in self._all_links), SETTLE_GRACE)

    def _pausing(self) -> bool:
        return any(link.session.pausing for link in self._all_links)

    def _all_held(self) -> list[Delivery]:
        return [delivery for link in self._all_links for delivery in link.held.values()]

    async def _until(self, done: Callable[[], bool], seconds: float, *, hurry: bool = False) -> None:
        """Wait for something that comes with a change, so many seconds at most; not at all where there is a hurry."""
        try:
            async with asyncio.timeout(seconds):
                while not done() and not (hurry and self._hurried.is_set()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
