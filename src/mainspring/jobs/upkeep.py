"""What a node looks after again and again: due jobs, old ones, windows, long runs and silent workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.store import Assign, Sweep, Wake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.errors import StoreError
    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.listeners import Listeners
    from mainspring.jobs.model import Job
    from mainspring.jobs.settling import Settling
    from mainspring.jobs.store import Woken
    from mainspring.jobs.window import Window
    from mainspring.slices import Slices

TICK = 0.25
"""Seconds between looks at what needs no exact time: windows, silent workers, what runs for long."""
RECORD_AFTER = 1.0
"""A job that runs for so many seconds is recorded as running."""
SILENT_AFTER = 1.0
"""A worker that was woken and did nothing for so many seconds no longer keeps others asleep."""
SWEEP_EVERY = 10.0
SWEEP_SHARED = 60.0
"""Where several nodes have the store: each of them sweeps for all."""
STEP = 1000
"""Functions that are looked at in one step."""
SHARE = 10
"""A look at all functions takes at most about one part in so many of the time."""
SLEW = 0.001
"""Seconds to wait at least when the wall clock says that the time has not come, although it should have."""


class Upkeep:
    """Looks after a window and its store.

    ``retention`` and ``dead_retention`` are seconds for which ended jobs, and dead letters, are kept. ``ended`` is told of a job
    that expired in the store, and in which state it had been.
    """

    def __init__(
        self,
        window: Window,
        settling: Settling,
        listeners: Listeners,
        slices: Slices,
        ended: Callable[[Job, int], None],
        *,
        retention: float,
        dead_retention: float,
    ) -> None:
        self._window = window
        self._settling = settling
        self._listeners = listeners
        self._slices = slices
        self._ended = ended
        self._retention = retention
        self._dead_retention = dead_retention
        self._clock = window.clock
        self._next_wake_us = 0
        self._waking = False
        self._adapted = self._swept = self._looked = self._clock.monotonic()
        self._woken: dict[Worker, float] = {}
        self._passing = False
        """A pass over the functions is under way."""
        self._pass_at = self._adapted

    def tick(self) -> float:
        """Do what is due; returns the monotonic time of the next tick that is wanted."""
        window = self._window
        now = self._clock.monotonic()
        window.timers.run(now)
        if now - self._adapted >= TICK:
            self._adapted = now
            self._record_running()
            self._pass_over_silent(now)
            if self._settling.unsettled:
                self._settling.try_again()
            window.suspects.next()
            self._look_at_functions(now)
            if self._next_wake_us and self._clock.wall() * 1_000_000 >= self._next_wake_us:
                self.wake()  # the wall clock was stepped
        if now - self._swept >= (SWEEP_SHARED if window.claiming.shared else SWEEP_EVERY):
            self._swept = now
            self._slices.run(window.dispatch.tidy())
            window.tidy()
            self._listeners.tidy()
            self._sweep()
        following = window.timers.next()
        return min(now + TICK, following) if following is not None else now + TICK

    def _look_at_functions(self, now: float) -> None:
        """Fit the windows of all functions to their workers, and serve each: where they are many, a part in each turn."""
        if self._passing or now < self._pass_at:
            return
        window = self._window
        order = window.dispatch.order
        seconds, self._looked = now - self._looked, now

        def look() -> Iterator[None]:
            start = 0
            while part := order[
                start : start + STEP
            ]:  # no copy of all: it would keep those that are forgotten meanwhile
                for queue in part:
                    if queue.stirs():
                        window.claiming.adapt(queue, seconds)
                        window.serve(queue)
                start += len(part)
                yield

        def looked() -> None:
            self._passing = False
            ended = self._clock.monotonic()
            self._pass_at = ended + SHARE * (ended - now)

        self._passing = True
        if len(order) > STEP:
            self._slices.run(look(), looked)
        else:
            for _ in look():
                pass
            looked()

    # ---- jobs that become due or expire in the store ----

    def wake_at(self, due_us: int) -> None:
        """Look for due jobs at a wall time, if not before."""
        if self._next_wake_us and self._next_wake_us <= due_us:
            return
        self._next_wake_us = due_us
        wait = due_us / 1_000_000 - self._clock.wall()
        self._window.timers.at(self._clock.monotonic() + max(wait, 0), self._wake_if_due)

    def _wake_if_due(self) -> None:
        due_us = self._next_wake_us
        if not due_us:
            return
        wait = due_us / 1_000_000 - self._clock.wall()
        if wait <= 0:
            self.wake()
        elif wait < TICK:
            # The clocks differ a little. Where they differ much, the wall clock was stepped, and every tick looks.
            self._window.timers.at(self._clock.monotonic() + max(wait, SLEW), self._wake_if_due)

    def wake(self) -> None:
        """Make due jobs pending and expire late ones, now."""
        if not self._waking:
            self._waking = True
            self._next_wake_us = 0
            self._window.commits.put(Wake(round(self._clock.wall() * 1_000_000), self._woke, self._not_woken))

    def _woke(self, woken: Woken) -> None:
        self._waking = False
        for (function, priority), number in woken.due.items():
            queue = self._window.dispatch.known(function)
            if queue is None:
                continue
            self._window.no_longer_away(queue, number)
            queue.backlog[priority] += number
            self._window.serve(queue)
        for job, before in woken.expired:
            self._ended(job, before)
        if woken.next_us:
            self.wake_at(woken.next_us)

    def _not_woken(self, error: StoreError) -> None:
        del error
        self._waking = False
        self.wake_at(round((self._clock.wall() + 1) * 1_000_000))

    # ---- what runs, who is silent, what is old ----

    def _record_running(self) -> None:
        before_us = round((self._clock.wall() - RECORD_AFTER) * 1_000_000)
        long = [
            held
            for worker in self._window.dispatch.workers
            for held in worker.running.values()
            if held.stored and not held.recorded and held.started_us <= before_us
        ]
        if long:
            for held in long:
                held.recorded = True
            self._window.commits.put(
                Assign([held.job for held in long], lambda _: None, lambda _: self._not_recorded(long))
            )

    @staticmethod
    def _not_recorded(jobs: list[Held]) -> None:
        for held in jobs:
            held.recorded = False

    def _pass_over_silent(self, now: float) -> None:
        """A woken worker that stays silent must not strand a job: wake the next one in its place."""
        dispatch = self._window.dispatch
        woken = {worker: self._woken.get(worker, now) for worker in dispatch.workers if worker.woken_for is not None}
        for worker, since in list(woken.items()):
            if now - since >= SILENT_AFTER:
                dispatch.answered(worker)
                del woken[worker]
        self._woken = woken

    def _sweep(self) -> None:
        wall = self._clock.wall()
        self._window.commits.put(
            Sweep(
                round((wall - self._retention) * 1_000_000),
                round((wall - self._dead_retention) * 1_000_000),
                lambda forgotten: self._sweep() if forgotten else None,
                lambda _: None,
            )
        )
