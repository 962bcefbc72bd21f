"""What has to happen at a time: one heap of monotonic times and functions."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MIN_CANCELLED = 64
"""So many cancelled timers are not worth a clearing."""


class Timer:
    """A function that waits for its time; None once it was called or cancelled, so that nothing it holds stays in memory."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], None]) -> None:
        self.function: Callable[[], None] | None = function


class Timers:
    """Functions to call at monotonic times.

    Most limits end with their job long before their time, so that timers can be cancelled: what the heap holds is bounded by
    what may still happen.

    ``earlier`` is called when a timer comes before all others, so that the owner can look sooner than it meant to.
    """

    def __init__(self, earlier: Callable[[float], object]) -> None:
        self._earlier = earlier
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, time: float, function: Callable[[], None]) -> Timer:
        """Call a function at a monotonic time, or as soon as possible after it."""
        self._count += 1
        timer = Timer(function)
        if not self._heap or time < self._heap[0][0]:
            self._earlier(time)
        heapq.heappush(self._heap, (time, self._count, timer))
        return timer

    def cancel(self, timer: Timer) -> None:
        """Do not call a timer's function; nothing happens where it was called already."""
        if timer.function is None:
            return
        timer.function = None
        self._cancelled += 1
        if self._cancelled > _MIN_CANCELLED and self._cancelled * 2 > len(self._heap):
            self._heap[:] = [entry for entry in self._heap if entry[2].function is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def run(self, now: float) -> None:
        """Call everything whose time has come."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            timer = heapq.heappop(heap)[2]
            function, timer.function = timer.function, None
            if function is None:
                self._cancelled -= 1
            else:
                function()

    def next(self) -> float | None:
        """Return when to run next."""
        heap = self._heap
        while heap and heap[0][2].function is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None
