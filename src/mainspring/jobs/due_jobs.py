"""Waiting jobs that no node holds: in the store they become due, expire or are cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.model import State
from mainspring.jobs.store import Wake

if TYPE_CHECKING:
    from mainspring.errors import StoreError
    from mainspring.jobs.context import Context
    from mainspring.jobs.model import Job
    from mainspring.jobs.serving import Serving
    from mainspring.jobs.store import Woken

MAX_CLOCK_DRIFT: Final = 0.25
"""The largest difference in seconds between the clocks that a timer waits for; a larger one means a step of the wall clock."""
MIN_RECHECK: Final = 0.001
"""The shortest wait in seconds if a timer fires before the time on the wall clock."""


class DueJobs:
    """Makes stored jobs pending when they are due, and expires late ones."""

    def __init__(self, context: Context, serving: Serving) -> None:
        self._dispatch, self._commits, self._timers = context.dispatch, context.commits, context.timers
        self._clock, self._listeners, self._hub = context.clock, context.listeners, context.hub
        self._serving = serving
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
        self._serving.now_pending(woken.due, were_away=True)
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
            self._serving.no_longer_pending(queue, job.priority)
        else:
            self._serving.no_longer_away(queue)
        self._listeners.notify(job)
        if self._hub.active and job.id in self._hub.wanted:
            self._hub.publish(job)
