"""A running node: its store, its jobs, and what its pages and tools see of it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
import structlog

from mainspring.attempt_log import AttemptLog
from mainspring.clock import to_us
from mainspring.errors import StoreBrokenError, StoreCorruptError, StoreFencedError, StoreUnavailableError
from mainspring.events.hub import Hub
from mainspring.faces.gearman.calls import Calls
from mainspring.faces.gearman.face import GearmanFace, GearmanSettings
from mainspring.faces.gearman.function_calls import METHODS as FUNCTIONS
from mainspring.faces.gearman.schedule_calls import ScheduleCalls
from mainspring.faces.http.figures import Measure
from mainspring.ids import Handles, job_ids
from mainspring.jobs.following import Following
from mainspring.jobs.held import FunctionQueue
from mainspring.jobs.lookups import AGAIN
from mainspring.jobs.service import JobService
from mainspring.jobs.upkeep import TICK
from mainspring.nodes.strategies import strategy
from mainspring.schedules.service import ScheduleService
from mainspring.schedules.store import SchedulesPort
from mainspring.server.clock import StoreClock
from mainspring.server.failed_attempts import FailedAttempts
from mainspring.server.fleet import Fleet, SharedEngine, node_row
from mainspring.server.fleet_calls import FleetCalls, LoneCalls
from mainspring.server.metrics import Metrics
from mainspring.server.oldest import Oldest
from mainspring.server.shares import shares
from mainspring.server.stopping import tell_handed_back, tell_waiting
from mainspring.server.store_watch import StoreWatch
from mainspring.server.unserved import GRACE, Unserved
from mainspring.storage.commit_queue import CommitQueue
from mainspring.version import version
from mainspring.wire.gearman.connection import MAX_BODY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.faces.http.figures import Distribution
    from mainspring.ids import Term
    from mainspring.nodes.model import NodeRow
    from mainspring.server.settings import ServerSettings
    from mainspring.storage.engine import Engine

SHOWN = 1000
"""Functions that the status shows at most: those with the most jobs."""
COMMIT_SECONDS = 10.0
"""How long a node that ends waits for its last group."""

log = structlog.get_logger("mainspring.node")


class Node:
    """One node in a loop: opened, serving, drained, closed, once and in this order."""

    def __init__(self, settings: ServerSettings, engine: Engine, clock: Clock) -> None:
        self.settings = settings
        self.engine = engine
        self.clock = clock
        self.address = ""
        """Where its Gearman port is to be, set before it is opened: the other nodes are told."""
        self.stopping = asyncio.Event()
        self._patience: float | None = None
        """Until when, by the monotonic clock, a stop waits for running jobs; None: without a limit."""
        self.broken: StoreError | None = None
        """Why the node cannot go on."""
        self._ready = False
        self._timer: asyncio.TimerHandle | None = None
        self._next_tick = 0.0
        self.schedules: ScheduleService | None = None
        """The schedules, where the store has them."""
        self.fleet: Fleet | None = None
        """This node's part in a fleet, where its store is shared."""
        self._keeping: asyncio.Task[None] | None = None
        self._started = self._silence_checked = clock.monotonic()
        self._started_us = to_us(clock.wall())

    async def open(self) -> None:
        """Open the store and take back what an earlier run of this node held."""
        loop = self._loop = asyncio.get_running_loop()
        sent_at = self.clock.monotonic()
        opened = await self.engine.open(self.settings.name, loop.call_soon_threadsafe)
        handles = Handles(opened.nodes)
        store_clock = StoreClock(self.clock) if self.engine.shared else None
        self.commits = CommitQueue(
            self.engine, loop.call_soon, loop.call_later, pressure=self._pressure, failing=self._failing
        )
        self._watch = StoreWatch(self.commits, self.clock.monotonic())
        self.hub = Hub()
        jobs = self.settings.jobs
        clock = store_clock or self.clock
        self._attempt_log = AttemptLog(loop.time, loop.call_later)
        failed = FailedAttempts(self._attempt_log, handles, clock.wall)
        self.service = JobService(
            self.commits,
            store_clock or self.clock,
            opened.term,
            handles,
            self.hub,
            earlier=self._tick_at,
            round_robin=jobs.round_robin,
            wakeup=jobs.worker_wakeup,
            most_functions=self.settings.limits.max_functions,
            lost_limit=jobs.job_retries,
            retention=jobs.retention,
            dead_retention=jobs.dead_retention,
            attempts_ended=(failed.ended,),
        )
        self.service.functions.kept = self.engine.limits
        calls = Calls(self.status)
        calls.add(FUNCTIONS)
        self.face = GearmanFace(
            self.service,
            GearmanSettings(
                # What no store takes is refused from its header. What this one alone cannot take has to be read: a result that is
                # too large ends its job, and the client is told what to do instead.
                max_packet=min(self.settings.limits.max_packet, max(self.engine.max_value, MAX_BODY)),
                max_value=self.engine.max_value,
                queued_jobs=self.settings.limits.queued_jobs,
                queued_bytes=self.settings.limits.queued_bytes,
                exceptions=jobs.exceptions,
                version=self.settings.banner or version(),
                verbosity=self.settings.verbosity or self.settings.log.level.upper(),
                unsent_bytes=self.settings.limits.unsent_bytes,
                connections=shares(self.settings).gearman,
                idle_timeout=self.settings.limits.idle_timeout,
                packet_timeout=self.settings.limits.packet_timeout,
            ),
            next_id=job_ids(opened.term),
            calls=calls,
            shut_down=self.stop,
        )
        if isinstance(self.engine, SchedulesPort):
            # Not the function as it is now: another term has another one.
            self.engine.followers = Following(self.service, lambda: self.face.next_id())  # noqa: PLW0108
            self.schedules = ScheduleService(
                self.commits,
                store_clock or self.clock,
                self.service.timers,
                lambda: self.service.dispatch.paused,
                retention=jobs.dead_retention,
                fires=jobs.schedules,
            )
            if store_clock is None:
                self.schedules.alone()
            calls.add(ScheduleCalls(self.schedules, store_clock or self.clock).methods)
        if store_clock is None:
            calls.add(LoneCalls(self._row).methods)
        else:
            self.fleet = Fleet(
                cast("SharedEngine", self.engine),
                self.service,
                self.face,
                handles,
                store_clock,
                self.settings,
                strategy(self.settings.fleet.strategy),
                self.address,
            )
            calls.add(FleetCalls(self.fleet).methods)
            await self.fleet.start(opened.term, sent_at)
            self._keeping = loop.create_task(self.fleet.run())
            self._keeping.add_done_callback(self._kept)
        recovered = await self._start_service()
        if recovered:
            log.info("jobs taken back", jobs=recovered)
        self._oldest = Oldest(self.service.census.functions, self.commits, self.service.clock)
        self._metrics = Metrics(self.service, self.face, self.commits, self._oldest)
        fleet = self.fleet
        self._unserved = Unserved(
            self.service.census.functions,
            self.service.registered,
            mine=(lambda _: True) if fleet is None else fleet.first_in_line,
            grace=GRACE if fleet is None else GRACE + self.settings.fleet.beat,
        )
        if self.schedules is not None:
            if self.fleet is not None:
                self.schedules.first = self.fleet.first_in_line
            self.schedules.look()
        self._ready = True
        self._tick()

    async def _start_service(self) -> int:
        """Learn what the store has, however often it is away meanwhile; returns how many jobs were taken back."""
        while True:
            started: asyncio.Future[int] = self._loop.create_future()
            self.service.start(
                partial(_unless_done, started, started.set_result),
                partial(_unless_done, started, started.set_exception),
            )
            try:
                return await started
            except (StoreUnavailableError, StoreFencedError) as error:
                if self.fleet is None:
                    raise  # nobody gets it another term
                log.info("the store does not answer", error=str(error))
                await asyncio.sleep(AGAIN)

    def _kept(self, task: asyncio.Task[None]) -> None:
        """The loop that keeps the lease never ends by itself: where it did, it is a defect, and without it the node is none."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the node's heart has stopped", error=repr(error))
            self.broken = self.broken or StoreBrokenError(f"the node cannot keep its lease any more: {error!r}")
            self.stopping.set()

    @property
    def term(self) -> Term:
        """The number under which the node holds jobs at present."""
        return self.service.term

    def stop(self, graceful: bool = False) -> None:
        """Ask the node to end; ``graceful``: when all running jobs have ended, or it is asked again without that."""
        if not graceful and self._patience is None:
            self._patience = self.clock.monotonic() + self.settings.process.grace
        self.stopping.set()

    def interrupt(self) -> None:
        """Ask the node to end; asked in a stop that has a limit: to end now, and to hand running jobs back."""
        if self._patience is None:
            self.stop()
        else:
            self._patience = self.clock.monotonic()

    async def drain(self) -> None:
        """Let running jobs end for a while, then hand them back, and wait until everything is on disk."""
        self._ready = False
        self.service.end()
        await self._wait_for_running()
        if self.broken is None:
            if running := self.running():
                tell_handed_back(self.settings.log, running)
            for worker in list(self.service.dispatch.workers):
                for held in list(worker.running.values()):
                    self.service.settling.released(held)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._commit_all(), COMMIT_SECONDS)

    async def _wait_for_running(self) -> None:
        """Wait until running jobs have ended or have had their time, and say so whenever that time changes."""
        told: float | None = -1.0
        while self.broken is None and (running := self.running()) and not self._has_waited():
            if self._patience != told:
                told = self._patience
                tell_waiting(self.settings.log, running, None if told is None else self.settings.process.grace)
            await asyncio.sleep(0.02)

    def _has_waited(self) -> bool:
        """Tell whether running jobs have had their time."""
        return self._patience is not None and self.clock.monotonic() >= self._patience

    async def _commit_all(self) -> None:
        """Hand back also what has come from the store meanwhile, until nothing is under way."""
        while self.broken is None:
            self.service.hand_back()
            self.service.settling.try_again()
            if self.commits.idle:
                return
            idle = asyncio.Event()
            self.commits.when_idle(idle.set)
            await idle.wait()
            if self.service.settling.unsettled:
                await asyncio.sleep(AGAIN)

    def running(self) -> int:
        """Return how many jobs are with workers."""
        return sum(len(worker.running) for worker in self.service.dispatch.workers)

    async def close(self) -> None:
        """Close all connections and the store."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.face.close()
        self.commits.close()
        self._attempt_log.close()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        await self.engine.close()

    # ---- time ----

    def _tick_at(self, at: float) -> None:
        if self._timer is not None and at < self._next_tick:
            self._arm(at)

    def _tick(self) -> None:
        following = self.clock.monotonic() + TICK
        try:
            following = self.tick()
        finally:
            self._arm(following)  # a defect in one timer must not end all of them
        now = self.clock.monotonic()
        self._watch.look(now)
        if now - self._silence_checked > 1:
            self._silence_checked = now
            self.face.end_silent()
            if self._ready:
                self._unserved.look(now)
                if self.settings.listen.http is not None and self.engine.lines:
                    self._oldest.look()

    def tick(self) -> float:
        """Do what is due; returns the monotonic time of the next tick that is wanted."""
        if self.schedules is not None:
            self.schedules.tick()
        return self.service.tick()

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_tick = at
        self._timer = self._loop.call_later(max(at - self.clock.monotonic(), 0), self._tick)

    # ---- pressure and failure ----

    def _pressure(self, full: bool) -> None:
        self.face.pause(full)

    def _failing(self, error: StoreError) -> None:
        if isinstance(error, StoreFencedError):
            return  # its part in the fleet goes on under another term
        if isinstance(error, (StoreBrokenError, StoreCorruptError)):
            if self.broken is None:
                self.broken = error
                self.stopping.set()
        else:
            self._watch.failed(error, self.clock.monotonic())

    # ---- what others see ----

    def healthy(self) -> bool:
        """Tell whether the node can do its work at all."""
        return self.broken is None

    def ready(self) -> bool:
        """Tell whether the node takes new work."""
        if not self._ready or self.broken is not None or self.service.settling.unsettled:
            return False
        fenced = self.fleet is not None and not self.fleet.keeper.believes()
        return not fenced and self._watch.ready(self.clock.monotonic())

    def status(self) -> dict[str, Any]:
        """Return what ``mainspring status`` shows."""
        service = self.service
        known: Iterable[FunctionQueue] = service.dispatch.queues.values()
        total, running, waiting = service.census.jobs, 0, service.census.waiting
        for queue in known:
            total += queue.total()
            running += queue.running
            waiting += queue.size + sum(queue.backlog)
        number = service.census.number
        if number > SHOWN:
            known = heapq.nlargest(SHOWN, service.census.functions(), key=FunctionQueue.total)
        functions: list[dict[str, Any]] = []
        for queue in known:
            high, normal, low = queue.waiting_by_priority()
            functions.append(
                {
                    "function": queue.name.decode("utf-8", "backslashreplace"),
                    "total": queue.total(),
                    "running": queue.running,
                    "workers": sum(queue.workers.values()),
                    "waiting": {"high": high, "normal": normal, "low": low},
                }
            )
        return {
            "version": version(),
            "name": self.settings.name,
            "term": self.term,
            "store": self.settings.store.shown,
            "pid": os.getpid(),
            "uptime": round(self.clock.monotonic() - self._started, 3),
            "connections": len(self.face.peers),
            "schedules": self.schedules is not None and self.schedules.fires,
            "workers": sum(1 for worker in self.service.dispatch.workers if worker.abilities),
            "known_functions": number,
            "jobs": {"total": total, "running": running, "waiting": waiting},
            "commits": {"groups": self.commits.groups, "jobs": self.commits.jobs},
            "functions": functions,
        }

    def _row(self) -> NodeRow:
        """Say what this node is like, where nobody shares its store."""
        row = node_row(self.settings, self.service, 0)
        return msgspec.structs.replace(row, address=self.address, started_us=self._started_us)

    def metrics(self) -> Iterable[Measure | Distribution]:
        """Return the figures of this moment."""
        yield Measure(
            "mainspring_ready", "gauge", "1 where /readyz says 200, otherwise 0.", [({}, float(self.ready()))]
        )
        yield from self._metrics.figures()
        yield from self._watch.metrics()
        if self.fleet is not None:
            yield from self.fleet.metrics()


def _unless_done(future: asyncio.Future[int], then: Callable[[Any], None], value: object) -> None:
    """Go on with a future that may be cancelled: a node that is asked to end does not wait for what its store was asked."""
    if not future.done():
        then(value)
