"""The life of a running node: started, serving, drained, closed, once and in this order."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from mainspring.errors import StoreBrokenError, StoreFencedError, StoreUnavailableError
from mainspring.jobs.lookups import AGAIN
from mainspring.server.stopping import tell_handed_back, tell_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.attempt_log import AttemptLog
    from mainspring.clock import Clock
    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.ids import Term
    from mainspring.jobs.service import JobService
    from mainspring.schedules.service import ScheduleService
    from mainspring.server.ending import End
    from mainspring.server.fleet import Fleet
    from mainspring.server.settings import ServerSettings
    from mainspring.server.store_watch import StoreWatch
    from mainspring.server.ticks import Ticks
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Engine
    from mainspring.storage.reads import Reads

COMMIT_SECONDS: Final = 10.0
"""How long a node that ends waits for its last group."""
LOOK_EVERY: Final = 1.0
"""Seconds between two looks at what is neither due at a time nor urgent."""

log = structlog.get_logger("mainspring.node")


class Node:
    """One node in a loop, on a store that is open.

    ``fleet`` is the node's part in one whose store is shared. ``looks`` are
    called with the monotonic time once a second while the node is ready.
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
        fleet: Fleet | None,
        end: End,
        ticks: Ticks,
        watch: StoreWatch,
        attempt_log: AttemptLog,
        looks: Sequence[Callable[[float], object]],
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.clock = clock
        self.commits = commits
        self._reads = reads
        self.service = service
        self.face = face
        self.schedules = schedules
        self.fleet = fleet
        self.end = end
        self.ticks = ticks
        self._watch = watch
        self._attempt_log = attempt_log
        self._looks = looks
        self._looked = clock.monotonic()
        self._ready = False
        self._keeping: asyncio.Task[None] | None = None

    async def start(self, sent_at: float) -> None:
        """Take back what an earlier run held, and serve. The store was asked for the term at the monotonic time ``sent_at``."""
        if self.fleet is not None:
            await self.fleet.start(self.service, self.term, sent_at)
            self._keeping = asyncio.create_task(self.fleet.run())
            self._keeping.add_done_callback(self._kept)
        recovered = await self._start_service()
        if recovered:
            log.info("jobs taken back", jobs=recovered)
        self.schedules.look()
        self._ready = True
        self.ticks.start(self.tick, self._look)

    async def _start_service(self) -> int:
        """Learn what the store has, however often it is away meanwhile; returns how many jobs were taken back."""
        while True:
            started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
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
            self.end.fail(StoreBrokenError(f"the node cannot keep its lease any more: {error!r}"))

    @property
    def term(self) -> Term:
        """The number under which the node holds jobs at present."""
        return self.service.term

    # ---- time ----

    def tick(self) -> float:
        """Do what is due; returns the monotonic time of the next tick that is wanted."""
        self.schedules.tick()
        return self.service.tick()

    def _look(self) -> None:
        """Look after each tick at the store, and once a second at the rest."""
        now = self.clock.monotonic()
        self._watch.look(self.commits)
        if now - self._looked > LOOK_EVERY:
            self._looked = now
            self.face.end_silent()
            if self._ready:
                for look in self._looks:
                    look(now)

    # ---- health ----

    def healthy(self) -> bool:
        """Tell whether the node can do its work at all."""
        return self.end.broken is None

    def ready(self) -> bool:
        """Tell whether the node takes new work."""
        if not self._ready or self.end.broken is not None or self.service.unsettled:
            return False
        fenced = self.fleet is not None and not self.fleet.keeper.believes()
        return not fenced and self._watch.ready(self.commits)

    def running(self) -> int:
        """Return how many jobs are with workers."""
        return sum(len(worker.running) for worker in self.service.workers())

    # ---- the end ----

    async def drain(self) -> None:
        """Let running jobs end for a while, then hand them back, and wait until everything is on disk."""
        self._ready = False
        self.service.end()
        await self._wait_for_running()
        if self.end.broken is None:
            if running := self.running():
                tell_handed_back(self.settings.log, running)
            for worker in self.service.workers():
                for held in list(worker.running.values()):
                    self.service.released(held)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._commit_all(), COMMIT_SECONDS)

    async def _wait_for_running(self) -> None:
        """Wait until running jobs have ended or have had their time, and say so whenever that time changes."""
        told: float | None = -1.0
        while self.end.broken is None and (running := self.running()) and not self.end.has_waited():
            patience = self.end.patience
            if patience != told:
                told = patience
                tell_waiting(self.settings.log, running, None if told is None else self.settings.process.grace)
            await asyncio.sleep(0.02)

    async def _commit_all(self) -> None:
        """Hand back also what has come from the store meanwhile, until nothing is under way."""
        while self.end.broken is None:
            self.service.hand_back()
            self.service.try_again()
            if self.commits.idle:
                return
            idle = asyncio.Event()
            self.commits.when_idle(idle.set)
            await idle.wait()
            if self.service.unsettled:
                await asyncio.sleep(AGAIN)

    async def close(self) -> None:
        """Close all connections and the store."""
        self.ticks.stop()
        self.face.close()
        self.commits.close()
        self._reads.close()
        self._attempt_log.close()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        await self.engine.close()


def _unless_done(future: asyncio.Future[int], then: Callable[[Any], None], value: object) -> None:
    """Go on with a future that may be cancelled: a node that is asked to end does not wait for what its store was asked."""
    if not future.done():
        then(value)
