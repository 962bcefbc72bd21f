"""What has to happen at a time: one heap of monotonic times and functions."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Timers:
    """Functions to call at monotonic times. Nothing is ever taken back: a function looks for itself whether it still applies.

    ``earlier`` is called when a timer comes before all others, so that the owner can look sooner than it meant to.
    """

    def __init__(self, earlier: Callable[[float], object]) -> None:
        self._earlier = earlier
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, function: Callable[[], None]) -> None:
        """Call a function at a monotonic time, or as soon as possible after it."""
        self._count += 1
        if not self._heap or time < self._heap[0][0]:
            self._earlier(time)
        heapq.heappush(self._heap, (time, self._count, function))

    def run(self, now: float) -> None:
        """Call everything whose time has come."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            heapq.heappop(heap)[2]()

    def next(self) -> float | None:
        """Return when to run next."""
        return self._heap[0][0] if self._heap else None
