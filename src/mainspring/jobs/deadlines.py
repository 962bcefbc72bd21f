"""Timers of held jobs: one heap, and whoever looks at it sees only what still applies."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.jobs.held import Held


class Deadlines:
    """Monotonic times at which a delivery is over. A timer belongs to one lease: later ones of the same job do not see it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Held, bytes, str]] = []
        self._count = 0

    def add(self, at: float, held: Held, kind: str) -> None:
        """Set a timer of a kind for the present delivery of a job."""
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, held, held.lease, kind))

    def next(self) -> float | None:
        """Return when to look next."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[tuple[Held, str]]:
        """Take the timers out whose time has come, and yield those whose delivery still lasts."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, held, lease, kind = heapq.heappop(heap)
            if held.worker is not None and held.lease == lease:
                yield held, kind
