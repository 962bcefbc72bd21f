"""Time limits of jobs in memory: the expiry of waiting jobs, and the timeout and heartbeat of running ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs import rules
from mainspring.jobs.rules import LONGEST_PREPARATION

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.context import Context
    from mainspring.jobs.held import Held

RECHECK: Final = 60.0
"""Seconds after which a wait for an expiry time looks at the wall clock again: it may have been stepped."""


class TimeLimits:
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
        """Let the timeout of a job wait until its worker has prepared an executor, up to `LONGEST_PREPARATION` from its start.

        Only the first call for a delivery does so: a worker that reports more cannot extend the time of an attempt.
        """
        if held.begins_by:
            return
        elapsed = max(self._clock.wall() - held.started_us / 1_000_000, 0.0)
        left = max(LONGEST_PREPARATION - elapsed, 0.0)
        held.begins_by = self._clock.monotonic() + left
        if left:
            self.end(held)
            self.started(held, preparation=left)

    def prepared(self, held: Held) -> bool:
        """Let a prepared job begin, and return whether it begins now: it has begun before after `LONGEST_PREPARATION`.

        A job whose worker has reported no preparation does not change.
        """
        if not held.begins_by:
            return False
        now = self._clock.monotonic()
        late = max(now - held.begins_by, 0.0)
        held.started_us = round((self._clock.wall() - late) * 1_000_000)
        if not late:
            held.begins_by = now
            self.end(held)
            self.started(held)
        return not late

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
