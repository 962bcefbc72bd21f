"""The chain of a node's ticks: each says when the next one is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.upkeep import TICK

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Callable

    from mainspring.clock import Clock


class Ticks:
    """Runs what is due, from `start` until `stop`. ``call_later`` runs a function after some seconds."""

    def __init__(self, clock: Clock, call_later: Callable[[float, Callable[[], None]], TimerHandle]) -> None:
        self._clock = clock
        self._call_later = call_later
        self._due: Callable[[], float]
        self._look: Callable[[], None]
        self._timer: TimerHandle | None = None
        self._next = 0.0

    def start(self, due: Callable[[], float], look: Callable[[], None]) -> None:
        """Call ``due``, which returns the monotonic time of the next tick, and ``look`` after it; at once for the first time."""
        self._due, self._look = due, look
        self._tick()

    def earlier(self, at: float) -> None:
        """Tick at a monotonic time already."""
        if self._timer is not None and at < self._next:
            self._arm(at)

    def stop(self) -> None:
        """Tick no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        following = self._clock.monotonic() + TICK
        try:
            following = self._due()
        finally:
            self._arm(following)  # a defect in one timer must not end all of them
        self._look()

    def _arm(self, at: float) -> None:
        self.stop()
        self._next = at
        self._timer = self._call_later(max(at - self._clock.monotonic(), 0), self._tick)
