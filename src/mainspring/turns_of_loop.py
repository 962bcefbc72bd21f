"""Work on a node's loop: long work in turns with everything else, and functions at their times.

A client's connection, disconnection or request can cause work for very many names. Done at once, it would delay heartbeats,
health checks and all other answers. So it is divided into steps of at most about a millisecond each (`LongWork`).

`Timers` is one heap of monotonic times and functions.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLICE: Final = 0.005
"""Seconds of steps in one turn of the loop."""


class LongWork:
    """Runs steps in the order of their arrival, one slice of them in each turn of the loop.

    ``soon`` calls a function in a later turn of the loop; ``monotonic`` returns the time for the slices.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object], monotonic: Callable[[], float]) -> None:
        self._soon = soon
        self._monotonic = monotonic
        self._steps: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def put(self, step: Callable[[], None]) -> None:
        """Run a step in one of the next slices. A step may put the next one."""
        self._steps.append(step)
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._slice)

    def start(self, work: Iterator[object]) -> None:
        """Run work, the first slice of it now: short work ends at once."""
        end = self._monotonic() + SLICE
        for _ in work:
            if self._monotonic() >= end:
                self.run(work)
                return

    def run(self, work: Iterator[object], then: Callable[[], None] | None = None) -> None:
        """Run work to its end, one step up to each ``yield``; then call ``then``."""

        def step() -> None:
            for _ in work:
                self.put(step)
                return
            if then is not None:
                then()

        self.put(step)

    def _slice(self) -> None:
        end = self._monotonic() + SLICE
        try:
            while self._steps:
                self._steps.popleft()()
                if self._monotonic() >= end:
                    break
        finally:  # an exception in one step must not stop the others
            self._scheduled = bool(self._steps)
            if self._scheduled:
                self._soon(self._slice)


_MIN_CANCELLED = 64
"""The number of cancelled timers above which the heap may be cleared of them."""


class Timer:
    """A function with a time; None once it was called or cancelled, so that its closure is freed."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], None]) -> None:
        self.function: Callable[[], None] | None = function


class Timers:
    """Functions to call at monotonic times.

    Most limits end with their job long before their time, so that timers can be cancelled: the number of active timers bounds
    the size of the heap.

    ``earlier`` is called when a timer comes before all others, so that the owner can wake up sooner.
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
        """Call all functions that are due."""
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
