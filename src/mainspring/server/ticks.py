"""The timer of a node's ticks: each tick returns the time of the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.maintenance import TICK_INTERVAL

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Callable

    from mainspring.clock import Clock


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
