"""The worker: requests as many jobs from its servers as it can hold, and stops gracefully."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from enum import Enum
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.client.options import refusal
from mainspring.errors import SettingsError
from mainspring.log_limit import AttemptLog
from mainspring.namespaces import DEFAULT, name_text
from mainspring.resources.rules import NO_TIMES
from mainspring.worker.around import Life
from mainspring.worker.execution import FailedAttempts
from mainspring.worker.executors.process import TASK_PROCESS
from mainspring.worker.heartbeats import INTERVAL, NO_ROOM, Heartbeats
from mainspring.worker.held_jobs import HeldJobs, JobRequests, PrefetchController
from mainspring.worker.link import Connector, Link
from mainspring.worker.log_records import capturing
from mainspring.worker.places import ExtraPlaces, Places, Waits
from mainspring.worker.processes import resident_bytes
from mainspring.worker.session import (
    DECISIONS,
    Assigned,
    Event,
    Extended,
    Key,
    Refused,
    Shown,
    Stop,
    Unserved,
    WorkerSession,
)
from mainspring.worker.settings import WorkerSettings
from mainspring.worker.watcher import Watcher
from mainspring.worker.workflows.decider import WorkflowDecider

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from mainspring.worker.current import CurrentJob
    from mainspring.worker.delivery import Decider, Delivery, Origin
    from mainspring.worker.registry import Registry
    from mainspring.worker.supervisor import JobCounters

FORCED_STOP_TIMEOUT: Final = 1.0
"""Seconds for jobs that are stopped by force at the end of a drain."""

RELEASE_AFTER: Final = 1.0
"""Seconds after which a prefetched job that has not started is released."""

NAMED_DELIVERIES: Final = 100
"""Deliveries of each connection that a report about a frozen worker names."""

SETTLE_GRACE: Final = 5.0
"""Seconds for the servers to acknowledge the last settlements."""

_LEAVE_OUT: Final = "leave it out with --not, or all workflows with --no-workflows"

_log = structlog.get_logger(__name__)


class Ending(Enum):
    """The reason why a worker has ended."""

    STOPPED = "stopped"
    RECYCLED = "recycled"


class Worker:
    """Runs the functions of a registry for several servers at once; its processes import the App by ``selector``.

    ``task_process`` is the command that starts such a process, without its arguments. ``counters`` are for a supervisor.
    ``left_out``: functions that it registers later, each with the monotonic time at which it does. ``decider`` decides the runs
    of workflows; by default one is created if the registry has workflows. ``monotonic`` returns seconds since any time.
    ``servers`` maps names for the log to connectors; ``token`` is for servers that demand one. ``life`` is what runs around its
    jobs, and around itself; by default that of the registry. Create and run it on one loop.
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
        decider: Decider | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        token: str | None = None,
        namespace: str = DEFAULT,
        life: Life | None = None,
    ) -> None:
        self._token, self._namespace = token, namespace
        given: object = settings
        if given is not None and not isinstance(given, WorkerSettings):
            raise refusal("settings", "WorkerSettings", given)
        self.settings = settings or WorkerSettings()
        self._name = self.settings.name or f"{socket.gethostname()}-{os.getpid()}"
        self._life = life or Life(registry)
        self._functions = {function.name.encode(): self._life.surround(function) for function in registry}
        self._selector = selector
        if decider is None and registry.workflows:
            decider = WorkflowDecider(
                registry.workflows,
                self.settings,
                selector=selector,
                task_process=task_process,
                monotonic=monotonic,
                surround=self._life.surround,
                ends_orderly=self._life.has_ends,
                codecs=registry.codecs,
                external=[one.name for one in registry if one.elsewhere],
            )
        self._decider = decider
        self._left_out = dict(left_out or {})
        elsewhere = {name: self._functions.pop(name) for name, one in [*self._functions.items()] if one.elsewhere}
        self._elsewhere = elsewhere
        registrations = {one.name: one.registration() for one in registry if one.elsewhere is None}
        functions = [(name.encode(), options) for name, options in registrations.items() if name not in self._left_out]
        self._servers = dict(servers)
        self._keeps = {one.name: one.kept.arguments for one in registry if one.kept.arguments is not None}
        self._keeps_results = {one.name: one.kept.seconds for one in registry if one.kept.seconds is not None}
        times = {one.name: one.times for one in registry} | {
            one.code.name: one.times for one in registry.workflows.values()
        }
        self._times = {name: one for name, one in times.items() if one != NO_TIMES}
        self._resources = {one.name: one.spec for one in registry.resources} if registry.workflows else {}
        self._heartbeats = Heartbeats(self._tick)
        for function in registry:
            if function.heartbeat is not None:
                self._heartbeats.expect(function.heartbeat)
        self._links = self._new_links(functions)
        self._all_links = [*self._links]  # including those for extra places
        self._prefetch = PrefetchController(self.settings.concurrency)
        self._places = Places(self.settings.concurrency, self.settings.waiting_places)
        self._waits = Waits(self.settings.concurrency, self._reconsider)
        self._watcher: Watcher | None = None
        if elsewhere:
            self._watcher = Watcher(
                elsewhere,
                self._heartbeats,
                self._waits,
                changed=self._changed_elsewhere,
                refused=self._leave_out,
                stop=self.stop,
                codecs=registry.codecs,
            )
            self._all_links += self._new_links(
                [(name, one.registration()) for name, one in elsewhere.items() if one.name not in self._left_out],
                extra=True,
                owner=self._watcher,
            )
        self._watching = self._all_links[len(self._links) :]
        """The connections for jobs that are watched."""
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
            decider=decider,
            ends_orderly=self._life.has_ends,
            codecs=registry.codecs,
        )
        self._requests = JobRequests(self._links, self._prefetch, self._held_jobs)
        self._unserved: dict[bytes, set[Link]] = {}
        """Functions that stores cannot serve, each with the connections to their servers."""
        self._left_out_at: set[tuple[bytes, str]] = set()
        """Functions and servers that the log has named."""
        self._ending = Ending.STOPPED
        self._stop_requested = False  # by its owner; a second request skips the grace, which recycling must not
        self._draining = asyncio.Event()
        self._skip_grace = asyncio.Event()
        self._changed = asyncio.Event()  # jobs have arrived or ended

    def _new_links(
        self, functions: Sequence[tuple[bytes, bytes]] = (), *, extra: bool = False, owner: Watcher | None = None
    ) -> list[Link]:
        """Return a link for each server. The worker receives its events, unless there is another ``owner``."""
        slots, isolates = None if extra else self.settings.concurrency, self._selector is not None
        links = []
        for place, connect in self._servers.items():
            session = WorkerSession(
                functions,
                self._name,
                slots,
                isolates=isolates,
                stops=not extra,
                beats=INTERVAL if self.settings.frozen_after else None,
                keeps=None if extra else self._keeps,
                keeps_results=None if extra else self._keeps_results,
                times=None if extra else self._times,
                resources=None if extra else self._resources,
                token=self._token,
                namespace=self._namespace,
                ended=self._heartbeats.ended,
            )
            link = Link(place, connect, session, self if owner is None else owner, extra=extra)
            self._heartbeats.watch(link)
            links.append(link)
        return links

    # Called by its owner.

    def stop(self, *, now: bool = False) -> None:
        """Stop gracefully; ``now``: without the grace, even during a graceful stop."""
        self._stop_requested = True
        if not self._draining.is_set():
            self._begin_to_drain()
        if now:
            self._skip_grace.set()
            self._changed.set()

    def interrupt(self) -> None:
        """Stop gracefully; the second call stops now."""
        self.stop(now=self._stop_requested)

    @property
    def running(self) -> int:
        """The number of running jobs."""
        return self._places.running + self._places.extra

    @property
    def jobs_done(self) -> int:
        """The number of jobs that this worker has run to their end."""
        return self._held_jobs.done

    @property
    def held(self) -> Sequence[Delivery]:
        """The jobs that it holds: running and prefetched ones."""
        return self._held_jobs.deliveries()

    @property
    def links(self) -> Sequence[Link]:
        """Its connections: one for each server, and one more while it has extra places."""
        return self._all_links

    def deliveries_by_server(self) -> dict[str, list[Key]]:
        """Return some deliveries of each connection, by the names of the servers. Any thread may call it."""
        found: dict[str, list[Key]] = {}
        for link in list(self._all_links):
            found.setdefault(link.name, []).extend(list(link.session.running)[:NAMED_DELIVERIES])
        return found

    async def unserved(self, server: str) -> list[str]:
        """Wait until a server has answered the registrations; return the functions that it cannot serve."""
        (link,) = (link for link in self._links if link.name == server)
        await link.registered.wait()
        return [name_text(function) for function, links in self._unserved.items() if link in links]

    def activation(self) -> tuple[str, Origin | None] | None:
        """Return the workflow whose code runs at the moment, with the delivery of its decision. Any thread may call it."""
        return None if self._decider is None else self._decider.activation()

    async def run(self) -> Ending:
        """Run until ``stop``, or until recycling is due; then settle or release the remaining jobs.

        Raises ServerError if a server does not support the extension, SettingsError if none can serve one of the functions, and
        WorkerStartError if a hook of the start fails.
        """
        if not self._functions and self._decider is None:
            raise SettingsError("the App defines no task, so a worker has nothing to run: define one with @app.task")
        await self._life.start(self._draining)
        try:
            if not self._draining.is_set():
                await self._run()
        finally:
            await self._life.close()
        return self._ending

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        attempts = AttemptLog(loop.time, loop.call_later)
        failures = FailedAttempts(attempts, time.time, tracebacks=self.settings.log_tracebacks)
        self._held_jobs.attach(failures)
        self._waits.attach()
        if self._decider is not None:
            self._decider.attach()
        if self._watcher is not None:
            self._watcher.attach(self._watching, failures)
        for name, until in self._left_out.items():
            loop.call_later(until - time.monotonic(), self._register, name)
        connections = [
            asyncio.create_task(link.keep(), name=f"mainspring {link.name}") for link in [*self._links, *self._watching]
        ]
        beats = asyncio.create_task(self._heartbeats.run(), name="mainspring heartbeats")
        extra = asyncio.create_task(self._extra.run(), name="mainspring extra places")
        drained = asyncio.create_task(self._draining.wait(), name="mainspring stop")
        owned = [*connections, beats, extra, drained]
        with capturing():
            try:
                ended, _ = await asyncio.wait(owned, return_when=asyncio.FIRST_COMPLETED)
                if drained not in ended:
                    for task in ended:
                        task.result()  # raises, because these tasks end by themselves only with an error
                await self._drain()
            finally:
                # The order: no new connections and heartbeats; then running jobs; the connections last, because jobs
                # settle on them.
                for task in owned:
                    task.cancel()
                await asyncio.gather(*owned, return_exceptions=True)
                await self._held_jobs.close()
                if self._watcher is not None:
                    await self._watcher.close()
                if self._decider is not None:
                    await self._decider.close()
                for link in self._all_links:
                    await link.close()
                attempts.close()

    # Called by the links.

    def agreed(self, link: Link) -> None:
        """Begin to request jobs from a server."""
        for links in self._unserved.values():
            links.discard(link)  # it may have another store by now
        if self._draining.is_set():
            link.session.pause()
        elif link.extra:
            self._extra.agreed(link)
        else:
            if self._decider is not None:
                self._decider.agreed(link)
            self._request_jobs()

    def received(self, link: Link, events: Sequence[Event]) -> None:
        """Process assigned jobs, stops and answers."""
        now = asyncio.get_running_loop().time()
        for event in events:
            if isinstance(event, Assigned):
                if self._decider is not None and event.function[:1] == DECISIONS:
                    self._decider.assigned(link, event)
                    continue
                if b'"heartbeat"' in event.info and not self._heartbeats.begin(link, event):
                    link.session.settle((event.handle, event.token), NO_ROOM)
                    continue
                self._held_jobs.accept(link, event, now)
            elif isinstance(event, Stop) and event.is_for_worker:
                _log.info("a server asks the worker to stop", server=link.name)
                self.stop()
            elif isinstance(event, Stop):
                self._stop(link, event.key, event.reason)
            elif isinstance(event, Extended):
                if self._decider is not None:
                    self._decider.received(link, event)
            elif isinstance(event, Shown):
                self._extra.shown(link, event)
            elif isinstance(event, Unserved):
                self._leave_out(link, event)
            elif isinstance(event, Refused):
                _log.warning("server refused a request", server=link.name, code=event.code, message=event.message)
        if self._decider is not None:
            self._decider.flush()
        self._jobs_changed()

    def _leave_out(self, link: Link, unserved: Unserved) -> None:
        """Serve a function on the other servers only; end the worker if there are none."""
        if link.extra and link not in self._watching:
            return
        links = self._unserved.setdefault(unserved.function, set())
        links.add(link)
        if len(links) == len(self._links):
            servers = "the server" if len(links) == 1 else "each of the servers"
            link.refuse(SettingsError(f"{servers} cannot serve this worker: {unserved.message}; {_LEAVE_OUT}"))
        elif (unserved.function, link.name) not in self._left_out_at:
            self._left_out_at.add((unserved.function, link.name))
            name = name_text(unserved.function)
            _log.warning(
                f"the server cannot serve {name}, which runs for the other servers only, as do its schedules",
                function=name,
                server=link.name,
                reason=unserved.message,
            )

    def lost(self, link: Link, keys: set[Key]) -> None:
        """Stop lost jobs."""
        for key in keys:
            self._stop(link, key, "lost")
        if self._decider is not None:
            self._decider.lost(link)
        self._jobs_changed()

    def _stop(self, link: Link, key: Key, reason: str) -> None:
        self._held_jobs.stop(link, key, reason)
        if self._decider is not None:
            self._decider.stop(link, key, reason)

    def _changed_elsewhere(self) -> None:
        self._changed.set()

    def _jobs_changed(self) -> None:
        """Start waiting jobs and request new ones, after jobs have arrived or ended."""
        self._changed.set()
        self._held_jobs.start()
        self._request_jobs()
        self._extra.reconsider()

    # Called by the extra places.

    def running_jobs(self) -> Collection[CurrentJob]:
        """Return the running jobs."""
        return {delivery.job for delivery in self.held if delivery.running}

    def release_prefetched(self) -> None:
        """Release prefetched jobs, because waiting tasks hold all places, and may wait for one of these jobs."""
        if self._held_jobs.release_waiting():
            self._prefetch.suspend()
            self._request_jobs()

    def open_links(self) -> Sequence[Link]:
        """Create links for extra places."""
        links = self._new_links(extra=True)
        self._all_links += links
        return links

    async def close_links(self, links: Sequence[Link]) -> None:
        """Close links for extra places, and end the threads and processes that only these needed."""
        for link in links:
            await link.close()
            self._all_links.remove(link)
            self._heartbeats.leave(link)
        self._held_jobs.shrink()

    def _reconsider(self) -> None:
        self._extra.reconsider()

    def _register(self, name: str) -> None:
        """Register a function that was left out."""
        key = name.encode()
        function = self._functions.get(key) or self._elsewhere.get(key)
        if function is not None and not self._draining.is_set():
            for link in self._links if function.elsewhere is None else self._watching:
                link.session.register(key, function.registration())
                link.flush()

    def _jobs_ended(self) -> None:
        if self.settings.max_jobs is not None and self.jobs_done >= self.settings.max_jobs:
            self._recycle()
        if self._decider is not None:
            self._decider.flush()
        self._jobs_changed()
        for link in self._all_links:
            link.write()

    def _request_jobs(self) -> None:
        """Request as many jobs from the servers as the worker can hold, unless it stops."""
        if not self._draining.is_set():
            self._requests.send()

    # Periodic checks and the stop.

    def _tick(self) -> None:
        """Release overdue prefetched jobs, and check whether recycling is due."""
        if self._decider is not None:
            self._decider.tick()
        if self._watcher is not None:
            self._watcher.tick()
        overdue = asyncio.get_running_loop().time() - RELEASE_AFTER
        if self._held_jobs.release_waiting(overdue):
            self._prefetch.suspend()
            self._request_jobs()
        if self.settings.max_rss is not None and resident_bytes() > self.settings.max_rss:
            self._recycle()

    def _recycle(self) -> None:
        if not self._draining.is_set():
            self._ending = Ending.RECYCLED
            self._begin_to_drain()

    def _begin_to_drain(self) -> None:
        # Send the pause before jobs are released: otherwise the server would assign them again.
        self._places.close()
        if self._decider is not None:
            for link in self._links:
                link.session.drain()
            self._decider.drain()
        for link in self._all_links:
            link.session.pause()
            link.flush()
        if self._watcher is not None:
            self._watcher.drain()
        self._draining.set()

    async def _drain(self) -> None:
        """Release waiting jobs, let running ones end within the grace, stop the others, and settle or release all jobs."""
        self._held_jobs.release_waiting()
        await self._until(lambda: not self._working(), self.settings.grace, is_grace=True)
        self._held_jobs.stop_all("drain")
        await self._until(lambda: not self.running, FORCED_STOP_TIMEOUT)
        self._held_jobs.release_all()
        if self._decider is not None:
            self._decider.release_all()
        if self._watcher is not None:
            self._watcher.release_all()
        await self._until(lambda: not any(link.session.unsettled for link in self._all_links), SETTLE_GRACE)

    def _working(self) -> bool:
        """Return whether jobs or a decision are under way, or jobs that were requested before the drain may still arrive."""
        deciding = self._decider is not None and self._decider.busy
        submitting = self._watcher is not None and self._watcher.busy
        return bool(self.running) or deciding or submitting or any(link.session.pausing for link in self._all_links)

    async def _until(self, done: Callable[[], bool], seconds: float, *, is_grace: bool = False) -> None:
        """Wait until ``done`` returns true, at most for ``seconds``; a grace also ends when the owner skips it."""
        try:
            async with asyncio.timeout(seconds):
                while not done() and not (is_grace and self._skip_grace.is_set()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
