"""Periodic work of a node: due jobs, old jobs, windows, long runs and silent workers.

Waiting jobs that no node holds are in the store alone. There they become due, expire or are cancelled (`DueJobs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.model import State
from mainspring.jobs.store import Assign, Sweep, Wake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.errors import StoreError
    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.model import Job
    from mainspring.jobs.settlement import Ends
    from mainspring.jobs.settlement_records import ResultRetention
    from mainspring.jobs.store import Woken
    from mainspring.jobs.table import Context

TICK_INTERVAL = 0.25
"""Seconds between runs of work without an exact time: windows, silent workers, records of long runs."""
RECORD_AFTER = 1.0
"""Seconds after which a job is recorded as running."""
SILENT_AFTER = 1.0
"""Seconds after which a woken worker that sent nothing no longer keeps others asleep."""
SWEEP_INTERVAL = 10.0
SHARED_SWEEP_INTERVAL = 60.0
"""Seconds between sweeps on a shared store, where each node sweeps for all."""
FUNCTIONS_PER_STEP = 1000
"""Functions that one step processes."""
PAUSE_FACTOR = 10
"""The pause after a pass over all functions, as a multiple of the duration of the pass."""


class Maintenance:
    """Does a node's periodic work.

    ``retention`` and ``dead_retention`` are seconds for which ended jobs, and dead letters, are kept. ``shared``: other nodes
    have the store too.
    """

    def __init__(
        self,
        context: Context,
        assigner: Assigner,
        ends: Ends,
        due_jobs: DueJobs,
        *,
        retention: float,
        dead_retention: float,
        results: ResultRetention,
        shared: bool,
    ) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._timers, self._clock, self._listeners = context.timers, context.clock, context.listeners
        self._assigner = assigner
        self._ends = ends
        self._due_jobs = due_jobs
        self._slices = context.slices
        self._retention = retention
        self._dead_retention = dead_retention
        self._results = results
        self._sweep_every = SHARED_SWEEP_INTERVAL if shared else SWEEP_INTERVAL
        self._adapted = self._swept = self._looked = self._clock.monotonic()
        self._woken: dict[Worker, float] = {}
        self._passing = False
        """Whether a pass over the functions is in progress."""
        self._pass_at = self._adapted

    def tick(self) -> float:
        """Do the work that is due; return the monotonic time of the next tick."""
        now = self._clock.monotonic()
        self._timers.run(now)
        if now - self._adapted >= TICK_INTERVAL:
            self._adapted = now
            self._record_running()
            self._pass_over_silent(now)
            if self._ends.unsettled:
                self._ends.retry_settlements()
            self._assigner.next_suspect()
            self._look_at_functions(now)
            self._due_jobs.look()
            self._results.run_once()
        if now - self._swept >= self._sweep_every:
            self._swept = now
            self._slices.run(self._dispatch.tidy())
            self._table.tidy()
            self._listeners.tidy()
            self._sweep()
        return self._next_tick(now)

    def run_timers(self) -> float:
        """Run the timers that are due, and no other work; return the monotonic time of the next tick."""
        now = self._clock.monotonic()
        self._timers.run(now)
        return self._next_tick(now)

    def _next_tick(self, now: float) -> float:
        following = self._timers.next()
        return min(now + TICK_INTERVAL, following) if following is not None else now + TICK_INTERVAL

    def _look_at_functions(self, now: float) -> None:
        """Fit the windows of all functions to their workers, and serve each; many functions are processed in steps."""
        if self._passing or now < self._pass_at:
            return
        assigner = self._assigner
        order = self._dispatch.order
        seconds, self._looked = now - self._looked, now

        def look() -> Iterator[None]:
            start = 0
            while part := order[
                start : start + FUNCTIONS_PER_STEP
            ]:  # no copy: it would keep functions that are forgotten meanwhile
                for queue in part:
                    if queue.is_active():
                        assigner.look_after(queue, seconds)
                start += len(part)
                yield

        def looked() -> None:
            self._passing = False
            ended = self._clock.monotonic()
            self._pass_at = ended + PAUSE_FACTOR * (ended - now)

        self._passing = True
        if len(order) > FUNCTIONS_PER_STEP:
            self._slices.run(look(), looked)
        else:
            for _ in look():
                pass
            looked()

    # ---- running jobs, silent workers, old jobs ----

    def _record_running(self) -> None:
        now_us = round(self._clock.wall() * 1_000_000)
        before_us = now_us - round(RECORD_AFTER * 1_000_000)
        long = [
            held
            for worker in self._dispatch.workers
            for held in worker.running.values()
            # A start that lies ahead was before the clock was set back.
            if held.stored and not held.recorded and not before_us < held.started_us <= now_us
        ]
        if long:
            for held in long:
                held.recorded = True
            self._commits.put(Assign([held.job for held in long]), lambda _: None, lambda _: self._not_recorded(long))

    @staticmethod
    def _not_recorded(jobs: list[Held]) -> None:
        for held in jobs:
            held.recorded = False

    def _pass_over_silent(self, now: float) -> None:
        """Wake the next worker in place of a woken one that stays silent, so that its job does not wait."""
        dispatch = self._dispatch
        woken = {worker: self._woken.get(worker, now) for worker in dispatch.workers if worker.woken_for is not None}
        for worker, since in list(woken.items()):
            if now - since >= SILENT_AFTER:
                dispatch.answered(worker)
                del woken[worker]
        self._woken = woken

    def _sweep(self) -> None:
        wall = self._clock.wall()
        self._commits.put(
            Sweep(round((wall - self._retention) * 1_000_000), round((wall - self._dead_retention) * 1_000_000)),
            lambda forgotten: self._sweep() if forgotten else None,
            lambda _: None,
        )


MAX_CLOCK_DRIFT: Final = 0.25
"""The largest difference in seconds between the clocks that a timer waits for; a larger one means a step of the wall clock."""
MIN_RECHECK: Final = 0.001
"""The shortest wait in seconds if a timer fires before the time on the wall clock."""


class DueJobs:
    """Makes stored jobs pending when they are due, and expires late ones."""

    def __init__(self, context: Context, assigner: Assigner) -> None:
        self._dispatch, self._commits, self._timers = context.dispatch, context.commits, context.timers
        self._clock, self._listeners, self._hub = context.clock, context.listeners, context.hub
        self._assigner = assigner
        self._next_us = 0
        self._in_progress = False

    def wake_at(self, due_us: int) -> None:
        """Wake due jobs at a wall time, or earlier."""
        if self._next_us and self._next_us <= due_us:
            return
        self._next_us = due_us
        wait = due_us / 1_000_000 - self._clock.wall()
        self._timers.at(self._clock.monotonic() + max(wait, 0), self._wake_if_due)

    def _wake_if_due(self) -> None:
        due_us = self._next_us
        if not due_us:
            return
        wait = due_us / 1_000_000 - self._clock.wall()
        if wait <= 0:
            self.wake()
        elif wait < MAX_CLOCK_DRIFT:
            # The clocks differ a little. A large difference is a step of the wall clock, which every tick checks.
            self._timers.at(self._clock.monotonic() + max(wait, MIN_RECHECK), self._wake_if_due)

    def wake(self) -> None:
        """Make due jobs pending and expire late ones, now."""
        if not self._in_progress:
            self._in_progress = True
            self._next_us = 0
            self._commits.put(Wake(round(self._clock.wall() * 1_000_000)), self._woke, self._not_woken)

    def _woke(self, woken: Woken) -> None:
        self._in_progress = False
        self._assigner.now_pending(woken.due, were_away=True)
        for job, before in woken.expired:
            self.ended(job, before)
        if woken.next_us:
            self.wake_at(woken.next_us)

    def _not_woken(self, error: StoreError) -> None:
        del error
        self._in_progress = False
        self.wake_at(round((self._clock.wall() + 1) * 1_000_000))

    def look(self) -> None:
        """Wake due jobs if the wall clock was stepped."""
        if self._next_us and self._clock.wall() * 1_000_000 >= self._next_us:
            self.wake()

    def ended(self, job: Job, before: int) -> None:
        """Count and announce the end of a job that was in the state ``before`` and not held."""
        queue = self._dispatch.tracked(job.function)
        if queue is None:
            pass  # the store alone counts the function's jobs
        elif before == State.PENDING:
            self._assigner.no_longer_pending(queue, job.priority)
        else:
            self._assigner.no_longer_away(queue)
        self._listeners.notify(job)
        if self._hub.active and job.id in self._hub.wanted:
            self._hub.publish(job)
