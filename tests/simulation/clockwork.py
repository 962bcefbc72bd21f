"""A simulated event loop: callbacks wait until the simulation runs them, and time passes only when it advances the clock."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock


class Clockwork:
    """The callbacks of one life of a node; they end with it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.soon: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def call_soon(self, function: Callable[[], None]) -> None:
        self.soon.append(function)

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._later, (self.clock.monotonic() + seconds, self._count, function))

    def next(self) -> float | None:
        """Return the time of the next callback."""
        return self._later[0][0] if self._later else None

    def run_due(self) -> None:
        while self._later and self._later[0][0] <= self.clock.monotonic():
            heapq.heappop(self._later)[2]()
