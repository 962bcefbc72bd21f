"""The life of a node: it starts, serves, drains and closes, once and in this order."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from mainspring.errors import StoreBrokenError, StoreFencedError, StoreUnavailableError
from mainspring.jobs.outcome_reader import RETRY_DELAY
from mainspring.server.stopping import show_released, show_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.attempt_log import AttemptLog
    from mainspring.bulk.service import BulkService
    from mainspring.clock import Clock
    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.ids import Term
    from mainspring.jobs.service import JobService
    from mainspring.schedules.service import ScheduleService
    from mainspring.server.fleet import Fleet
    from mainspring.server.settings import ServerSettings
    from mainspring.server.shutdown import Shutdown
    from mainspring.server.store_watch import StoreWatch
    from mainspring.server.ticks import Ticks
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Engine
    from mainspring.storage.reads import Reads
    from mainspring.workflows.service import WorkflowService

COMMIT_TIMEOUT: Final = 10.0
"""Seconds for which a node that ends waits for its last group."""
CHECK_INTERVAL: Final = 1.0
"""Seconds between two runs of the periodic checks, such as silent connections."""

log = structlog.get_logger("mainspring.node")


class Node:
    """A node on an open store.

    ``fleet`` is the node's part in a fleet, or None if no other node shares the store. The node calls ``checks`` with the
    monotonic time once a second while it is ready, and ``last_writes`` before its last commit.
    """

    def __init__(
        self,
        settings: ServerSettings,
        engine: Engine,
        clock: Clock,
        commits: CommitQueue,
        reads: Reads,
        service: JobService,
        face: GearmanFace,
        *,
        schedules: ScheduleService,
        workflows: WorkflowService | None,
        bulk: BulkService | None,
        fleet: Fleet | None,
        shutdown: Shutdown,
        ticks: Ticks,
        watch: StoreWatch,
        attempt_log: AttemptLog,
        checks: Sequence[Callable[[float], object]],
        last_writes: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.clock = clock
        self.commits = commits
        self._reads = reads
        self.service = service
        self.face = face
        self.schedules = schedules
        self.workflows = workflows
        self._bulk = bulk
        self.fleet = fleet
        self.shutdown = shutdown
        self.ticks = ticks
        self._watch = watch
        self._attempt_log = attempt_log
        self._checks = checks
        self._last_writes = last_writes
        self._checked = clock.monotonic()
        self._ready = False
        self._renewing: asyncio.Task[None] | None = None

    async def start(self, sent_at: float) -> None:
        """Recover jobs of earlier runs, and serve. The node requested its term at the monotonic time ``sent_at``."""
        if self.fleet is not None:
            await self._start_fleet(self.fleet, sent_at)
            self._renewing = asyncio.create_task(self.fleet.run())
            self._renewing.add_done_callback(self._on_renewing_ended)
        recovered = await self._start_service()
        if recovered:
            log.info("jobs recovered", jobs=recovered)
        self.schedules.fetch()
        if self.workflows is not None:
            self.workflows.fetch()
        self._ready = True
        self.ticks.start(self.tick, self._check)

    async def _start_fleet(self, fleet: Fleet, sent_at: float) -> None:
        """Begin the first term. Nothing is due before the store's time is known, so retry while the store is away."""
        while True:
            try:
                return await fleet.start(self.service, self.term, sent_at)
            except StoreUnavailableError as error:
                log.info("the store does not answer", error=str(error))
                await asyncio.sleep(RETRY_DELAY)

    async def _start_service(self) -> int:
        """Load the store's state, and return how many jobs were recovered. In a fleet, retry while the store is away."""
        while True:
            started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            ready = partial(_unless_done, started, started.set_result)
            failed = partial(_unless_done, started, started.set_exception)
            if self.workflows is None:
                self.service.start(ready, failed)
            else:
                self.workflows.load(partial(self.service.start, ready, failed), failed)
            try:
                return await started
            except (StoreUnavailableError, StoreFencedError) as error:
                if self.fleet is None:
                    raise  # without a fleet the node cannot get another term
                log.info("the store does not answer", error=str(error))
                await asyncio.sleep(RETRY_DELAY)

    def _on_renewing_ended(self, task: asyncio.Task[None]) -> None:
        """End the node if the task that renews the lease has ended. It never ends by itself, so this is a defect."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the task that renews the lease has ended", error=repr(error))
            self.shutdown.fail(StoreBrokenError(f"the node cannot renew its lease any more: {error!r}"))

    @property
    def term(self) -> Term:
        """The current term, under which the node holds jobs."""
        return self.service.term

    # ---- time ----

    def tick(self) -> float:
        """Run due timers; return the monotonic time of the next tick."""
        self.schedules.tick()
        if self.workflows is not None:
            self.workflows.tick()
        if self._bulk is not None:
            self._bulk.tick()
        return self.service.tick()

    def _check(self) -> None:
        """Check the store after each tick, and everything else once a second."""
        now = self.clock.monotonic()
        self._watch.check(self.commits)
        if now - self._checked > CHECK_INTERVAL:
            self._checked = now
            self.face.end_silent()
            if self._ready:
                for check in self._checks:
                    check(now)

    # ---- health ----

    def healthy(self) -> bool:
        """Return whether the node can work at all."""
        return self.shutdown.broken is None

    def ready(self) -> bool:
        """Return whether the node accepts new work."""
        if not self._ready or self.shutdown.broken is not None or self.service.unsettled:
            return False
        fenced = self.fleet is not None and not self.fleet.lease_manager.lease_valid()
        return not fenced and self._watch.ready(self.commits)

    def running(self) -> int:
        """Return how many jobs workers run."""
        return sum(len(worker.running) for worker in self.service.workers())

    # ---- the end ----

    async def drain(self) -> None:
        """Wait for running jobs until the deadline, release the rest, and wait until everything is committed."""
        self._ready = False
        self.service.end()
        if self._bulk is not None:
            self._bulk.end()
        await self._wait_for_running()
        if self.shutdown.broken is None:
            if running := self.running():
                show_released(self.settings.log, running)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._commit_all(), COMMIT_TIMEOUT)
                for write in self._last_writes:
                    write()
                await asyncio.wait_for(self._commit_all(), COMMIT_TIMEOUT)

    async def _wait_for_running(self) -> None:
        """Wait until running jobs have ended or the deadline has passed. Show each change of the deadline."""
        shown: float | None = -1.0
        while self.shutdown.broken is None and (running := self.running()) and not self.shutdown.is_overdue():
            deadline = self.shutdown.deadline
            if deadline != shown:
                shown = deadline
                show_waiting(self.settings.log, running, None if deadline is None else self.settings.process.grace)
            await asyncio.sleep(0.02)

    async def _commit_all(self) -> None:
        """Release running jobs, and those that arrive from the store meanwhile, and commit until nothing is under way.

        A worker that goes on with the run of a workflow gets its next decision with the commit of the one before.
        """
        while self.shutdown.broken is None:
            self.service.hand_back()
            for worker in self.service.workers():
                for held in list(worker.running.values()):
                    self.service.released(held)
            self.service.retry_settlements()
            if self.commits.idle:
                return
            idle = asyncio.Event()
            self.commits.when_idle(idle.set)
            await idle.wait()
            if self.service.unsettled:
                await asyncio.sleep(RETRY_DELAY)

    async def close(self) -> None:
        """Close all connections and the store."""
        self.ticks.stop()
        self.face.close()
        self.commits.close()
        self._reads.close()
        self._attempt_log.close()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        await self.engine.close()


def _unless_done(future: asyncio.Future[int], then: Callable[[Any], None], value: object) -> None:
    """Set a future's result or error unless it is done: a shutdown may have cancelled it."""
    if not future.done():
        then(value)
