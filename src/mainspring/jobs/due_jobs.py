"""Stored jobs that wait and that this node does not hold: they become due, expire or are cancelled where they are."""

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
"""Seconds of a difference between the clocks that a timer waits for; where there is more, the wall clock was stepped."""
MIN_RECHECK: Final = 0.001
"""Seconds to wait at least when the wall clock says that the time has not come, although it should have."""


class DueJobs:
    """Has the store make jobs pending when they are due, and expire late ones."""

    def __init__(self, context: Context, serving: Serving) -> None:
        self._dispatch, self._commits, self._timers = context.dispatch, context.commits, context.timers
        self._clock, self._listeners, self._hub = context.clock, context.listeners, context.hub
        self._serving = serving
        self._next_us = 0
        self._in_progress = False

    def wake_at(self, due_us: int) -> None:
        """Look for due jobs at a wall time, if not before."""
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
            # The clocks differ a little. Where they differ much, the wall clock was stepped, and every tick looks.
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
        """Look for due jobs where the wall clock was stepped."""
        if self._next_us and self._clock.wall() * 1_000_000 >= self._next_us:
            self.wake()

    def ended(self, job: Job, before: int) -> None:
        """A job that was in this state has ended without having been held."""
        queue = self._dispatch.tracked(job.function)
        if queue is None:
            pass  # the store alone counts it
        elif before == State.PENDING:
            self._serving.no_longer_pending(queue, job.priority)
        else:
            self._serving.no_longer_away(queue)
        self._listeners.notify(job)
        if self._hub.active:
            self._hub.publish(job)
