"""Long work in slices, in turns with everything else that a node's loop has to do.

Whoever connects, disconnects or asks can cause work for very many names at once. Done in one go it would hold up heartbeats,
health checks and all other answers. So it is cut into steps of at most about a millisecond each, which take turns.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLICE: Final = 0.005
"""Seconds after which the loop has its turn again."""


class Slices:
    """Runs steps, in the order in which they were put, a slice of them in each turn of the loop.

    ``soon`` calls a function in a later turn of the loop; ``monotonic`` is the clock of the slices.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object], monotonic: Callable[[], float]) -> None:
        self._soon = soon
        self._monotonic = monotonic
        self._steps: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def put(self, step: Callable[[], None]) -> None:
        """Run a step in one of the next slices; it may put the one that follows it."""
        self._steps.append(step)
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._slice)

    def start(self, work: Iterator[object]) -> None:
        """Run work whose first slice is now: what is short ends at once."""
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
        finally:  # a defect in one step must not end all of them
            self._scheduled = bool(self._steps)
            if self._scheduled:
                self._soon(self._slice)
