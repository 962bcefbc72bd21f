"""The life of a node: it starts, serves, drains and closes, once and in this order.

A timer makes its ticks (`Ticks`). A watch over its store makes it unready while the store commits no groups, and logs that
(`StoreWatch`). An operator requests its end, or a broken store forces it (`Shutdown`).
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from mainspring.errors import StoreBrokenError, StoreCorruptError, StoreFencedError, StoreUnavailableError
from mainspring.faces.web import Measure
from mainspring.jobs.maintenance import TICK_INTERVAL
from mainspring.jobs.outcomes import LOOKUP_RETRY_DELAY
from mainspring.log_limit import CauseLimit
from mainspring.server.process import show_released, show_waiting
from mainspring.storage.engine import Probe

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.bulk.service import BulkService
    from mainspring.clock import Clock
    from mainspring.deadlines.service import Deadlines
    from mainspring.errors import StoreError
    from mainspring.event_log.service import EventLog
    from mainspring.external.service import WorkService
    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.ids import Term
    from mainspring.jobs.service import JobService
    from mainspring.log_limit import AttemptLog
    from mainspring.schedules.service import ScheduleService
    from mainspring.server.fleet import Fleet
    from mainspring.server.settings import ServerSettings
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Engine
    from mainspring.storage.reads import Reads
    from mainspring.subscriptions.service import Deliverer
    from mainspring.subscriptions.webhooks import WebhookWorkers
    from mainspring.workflows.service import WorkflowService


class Shutdown:
    """The state of a node's shutdown; it exists before the store is open. Running jobs get ``grace`` seconds."""

    def __init__(self, clock: Clock, grace: float) -> None:
        self._clock = clock
        self._grace = grace
        self.requested = asyncio.Event()
        self.deadline: float | None = None
        """The monotonic time at which running jobs are released; None: no limit."""
        self.broken: StoreError | None = None
        """The error that prevents the node from going on."""

    def stop(self, graceful: bool = False) -> None:
        """Request the end; ``graceful`` waits for all running jobs, unless a later request is not graceful."""
        if not graceful and self.deadline is None:
            self.deadline = self._clock.monotonic() + self._grace
        self.requested.set()

    def interrupt(self) -> None:
        """Request the end. If a deadline is set already, set it to now: running jobs are released immediately."""
        if self.deadline is None:
            self.stop()
        else:
            self.deadline = self._clock.monotonic()

    def fail(self, error: StoreError) -> None:
        """Shutdown the node because of an error; the first one is kept."""
        if self.broken is None:
            self.broken = error
            self.requested.set()

    def is_overdue(self) -> bool:
        """Return whether the deadline of running jobs has passed."""
        return self.deadline is not None and self._clock.monotonic() >= self.deadline


UNREADY_AFTER: Final = 5.0
"""Seconds without an answer from the store after which a node is unready. A large group on a slow disk takes less."""
PROBE_INTERVAL: Final = 1.0
"""Seconds between two probes of a store that refuses groups."""
LOG_LOCK_AFTER: Final = 1.0
"""Seconds for which another program may lock the store before a log line reports it."""

log = structlog.get_logger("mainspring.node")


class StoreWatch:
    """Watches the results of a node's groups. It calls ``broken`` if no group can succeed any more."""

    def __init__(self, monotonic: Callable[[], float], *, broken: Callable[[StoreError], None]) -> None:
        self._monotonic = monotonic
        self._broken = broken
        now = monotonic()
        self._limit = CauseLimit()
        self._failed: StoreError | None = None
        """The error of the last refused group, until a probe is committed."""
        self._failed_at = now
        """The monotonic time of the first refused group since the last success."""
        self._refused = 0
        """The number of groups refused since then."""
        self._refused_ever = 0
        self._is_probing = False
        self._probed_at = now - PROBE_INTERVAL
        self._answered = 0
        self._answered_at = now
        """The monotonic time at which the store had last answered, or had no request."""

    def failed(self, error: StoreError) -> None:
        """Record that a group was not committed."""
        if isinstance(error, (StoreBrokenError, StoreCorruptError)):
            self._broken(error)
            return
        now = self._monotonic()
        if self._failed is None:
            self._failed_at = now
            self._refused = 0
        self._failed = error
        self._refused += 1
        self._refused_ever += 1
        cause = str(error)
        if isinstance(error, StoreFencedError):
            return  # the fleet begins another term and logs that; until a group of it is committed, the node is unready
        if self._limit.allows(cause, now):
            log.error("the store refused a group", error=cause, refused=self._refused)

    def read_failed(self, error: StoreError) -> None:
        """Report a damaged store that a query has found. A query that did not reach the store proves nothing about groups."""
        if isinstance(error, (StoreBrokenError, StoreCorruptError)):
            self._broken(error)

    def check(self, commits: CommitQueue) -> None:
        """Log a locked store, and probe a refusing one. The node calls this several times a second with its queue."""
        now = self._monotonic()
        silent = self._silent(commits, now)
        locked = commits.locked
        if locked is not None and silent >= LOG_LOCK_AFTER:
            cause = str(locked)
            if self._limit.allows(cause, now):
                log.warning("the store is locked: writes wait, and are refused after 5 s", error=cause)
        if self._failed is not None and not self._is_probing and now - self._probed_at >= PROBE_INTERVAL:
            self._is_probing = True
            self._probed_at = now
            commits.put(Probe(), lambda _: self._recovered(), lambda _: self._probe_failed())

    def ready(self, commits: CommitQueue) -> bool:
        """Return whether the store can be expected to commit the next group soon."""
        return self._failed is None and self._silent(commits, self._monotonic()) < UNREADY_AFTER

    def _silent(self, commits: CommitQueue, now: float) -> float:
        """Return for how many seconds the store has not answered its requests."""
        if commits.idle or commits.answered != self._answered:
            self._answered, self._answered_at = commits.answered, now
        return now - self._answered_at

    def metrics(self) -> Iterable[Measure]:
        """Return the current measures."""
        text = "Groups that the store refused."
        yield Measure("mainspring_commits_refused_total", "counter", text, [({}, float(self._refused_ever))])

    def _recovered(self) -> None:
        self._is_probing = False
        self._failed = None
        now = self._probed_at
        if self._limit.allows("recovered", now):
            log.info("the store commits again", refused=self._refused, seconds=round(now - self._failed_at, 1))

    def _probe_failed(self) -> None:
        self._is_probing = False


class Ticks:
    """Runs ticks from `start` until `stop`. ``call_later`` calls a function after some seconds."""

    def __init__(self, clock: Clock, call_later: Callable[[float, Callable[[], None]], TimerHandle]) -> None:
        self._clock = clock
        self._call_later = call_later
        self._due: Callable[[], float]
        self._after: Callable[[], None]
        self._timer: TimerHandle | None = None
        self._next = 0.0

    def start(self, due: Callable[[], float], after: Callable[[], None]) -> None:
        """Run the first tick now. Each calls ``due``, which returns the monotonic time of the next tick, and then ``after``."""
        self._due, self._after = due, after
        self._tick()

    def earlier(self, at: float) -> None:
        """Move the next tick forward to a monotonic time, unless it comes before."""
        if self._timer is not None and at < self._next:
            self._arm(at)

    def stop(self) -> None:
        """Cancel the next tick."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        following = self._clock.monotonic() + TICK_INTERVAL
        try:
            following = self._due()
        finally:
            self._arm(following)  # a defect in one timer must not stop all of them
        self._after()

    def _arm(self, at: float) -> None:
        self.stop()
        self._next = at
        self._timer = self._call_later(max(at - self._clock.monotonic(), 0), self._tick)


COMMIT_TIMEOUT: Final = 10.0
"""Seconds for which a node that ends waits for its last group."""
CHECK_INTERVAL: Final = 1.0
"""Seconds between two runs of the periodic checks, such as silent connections."""


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
        deadlines: Deadlines,
        workflows: WorkflowService | None,
        bulk: BulkService | None,
        events: EventLog | None,
        deliverer: Deliverer | None,
        webhooks: WebhookWorkers | None,
        works: WorkService | None,
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
        self._deadlines = deadlines
        self.workflows = workflows
        self._bulk = bulk
        self.events = events
        self.deliverer = deliverer
        self._webhooks = webhooks
        self._works = works
        self.fleet = fleet
        self.shutdown = shutdown
        self.ticks = ticks
        self._watch = watch
        self._attempt_log = attempt_log
        self._checks = checks
        self._last_writes = last_writes
        self._checked = self._rests_until = self._works_at = clock.monotonic()
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
        self._deadlines.fetch()
        self.service.completions.fetch()
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
                await asyncio.sleep(LOOKUP_RETRY_DELAY)

    async def _start_service(self) -> int:
        """Load the store's state, and return how many jobs were recovered. In a fleet, retry while the store is away."""
        while True:
            started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            ready = partial(_unless_done, started, started.set_result)
            failed = partial(_unless_done, started, started.set_exception)
            if self.workflows is None:
                self.service.startup.run(ready, failed)
            else:
                self.workflows.load(partial(self.service.startup.run, ready, failed), failed)
            try:
                return await started
            except (StoreUnavailableError, StoreFencedError) as error:
                if self.fleet is None:
                    raise  # without a fleet the node cannot get another term
                log.info("the store does not answer", error=str(error))
                await asyncio.sleep(LOOKUP_RETRY_DELAY)

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
        """Run due timers, and periodic work every `TICK_INTERVAL`; return the monotonic time of the next tick.

        A busy node has a thousand timers each second. A node that rests runs timers alone.
        """
        now = self.clock.monotonic()
        if now < self._works_at:
            return min(self.service.run_timers(), self._works_at)
        self._works_at = now + TICK_INTERVAL
        if now < self._rests_until and self.service.idle and not (self.events is not None and self.events.is_read):
            return self.service.run_timers()
        self._rests_until = now + self.settings.fleet.rest
        self.schedules.tick()
        self._deadlines.tick()
        if self.workflows is not None:
            self.workflows.tick()
        if self._bulk is not None:
            self._bulk.tick()
        if self.events is not None:
            self.events.tick()
        if self.deliverer is not None:
            self.deliverer.tick()
        if self._webhooks is not None:
            self._webhooks.tick()
        if self._works is not None:
            self._works.tick()
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
        """Return how many jobs workers run, without those whose work runs elsewhere: it goes on without this node."""
        held = (held for worker in self.service.dispatch.workers for held in worker.running.values())
        return sum(one.elsewhere is None or not one.elsewhere.is_submitted for one in held)

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
            for worker in list(self.service.dispatch.workers):
                for held in list(worker.running.values()):
                    self.service.settling.released(held)
            self.service.ends.retry_settlements()
            if self.commits.idle:
                return
            idle = asyncio.Event()
            self.commits.when_idle(idle.set)
            await idle.wait()
            if self.service.unsettled:
                await asyncio.sleep(LOOKUP_RETRY_DELAY)

    async def close(self) -> None:
        """Close all connections and the store."""
        self.ticks.stop()
        if self._webhooks is not None:
            await self._webhooks.close()
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
