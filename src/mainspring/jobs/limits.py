"""Time limits of jobs in memory: the expiry of waiting jobs, and the timeout and heartbeat of running ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs import rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.context import Context
    from mainspring.jobs.held import Held

RECHECK: Final = 60.0
"""Seconds after which a wait for an expiry time looks at the wall clock again: it may have been stepped."""

LONGEST_PREPARATION: Final = 60.0
"""Seconds for an executor to become ready, such as a process that imports the App. After them, it counts as running time."""


class Limits:
    """Sets the timers of jobs. A timer ends when its job gets a worker, leaves it or is released.

    ``expired`` is called with a job that has waited too long; ``timed_out`` with a job, its timeout in seconds, and whether the
    timeout requeues it; ``silent`` with a job and the seconds for which its worker has not reported.
    """

    def __init__(
        self,
        context: Context,
        *,
        expired: Callable[[Held], None],
        timed_out: Callable[[Held, float, bool], None],
        silent: Callable[[Held, float], None],
    ) -> None:
        self._timers, self._clock = context.timers, context.clock
        self._expired = expired
        self._timed_out = timed_out
        self._silent = silent

    def waits(self, held: Held) -> None:
        """Set the expiry of a job that waits in memory: the store expires only jobs that wait there."""
        if not rules.was_tried(held.job):
            wait = held.job.expires_us / 1_000_000 - self._clock.wall()
            if wait > RECHECK:
                self._limit(held, RECHECK, lambda: self.waits(held))
            else:
                self._limit(held, max(wait, 0), lambda: self._expired(held))

    def prepares(self, held: Held) -> None:
        """Let the timeout of a job wait until its worker has prepared an executor, for `LONGEST_PREPARATION`."""
        self.end(held)
        self.started(held, preparation=LONGEST_PREPARATION)

    def started(self, held: Held, preparation: float = 0.0) -> None:
        """Set the timeout and heartbeat of a job that a worker has started. The timeout begins after ``preparation`` seconds."""
        options, ability = held.job.options, held.ability
        timeout = options.timeout if options is not None else None
        heartbeat = options.heartbeat if options is not None else None
        requeue = False
        if ability is not None:
            if timeout is None:
                timeout, requeue = ability.timeout, ability.requeue
            if heartbeat is None:
                heartbeat = ability.heartbeat
        if timeout is not None:
            self._limit(held, preparation + timeout, lambda: self._timed_out(held, timeout, requeue))
        if heartbeat is not None and held.worker is not None and held.worker.streams:
            held.beat = self._clock.monotonic()
            self._limit(held, heartbeat, lambda: self._miss_beat(held, heartbeat))

    def _miss_beat(self, held: Held, heartbeat: float) -> None:
        left = held.beat + heartbeat - self._clock.monotonic()
        if left > 0:
            self._limit(held, left, lambda: self._miss_beat(held, heartbeat))
        else:
            self._silent(held, heartbeat)

    def _limit(self, held: Held, seconds: float, function: Callable[[], None]) -> None:
        waiting = [timer for timer in held.timers or () if timer.function is not None]
        held.timers = [*waiting, self._timers.at(self._clock.monotonic() + seconds, function)]

    def end(self, held: Held) -> None:
        """Cancel the timers of a job."""
        for timer in held.timers or ():
            self._timers.cancel(timer)
        held.timers = None
