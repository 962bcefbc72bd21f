"""Long work in slices, which alternate with the other work of a node's loop.

A client's connection, disconnection or request can cause work for very many names. Done at once, it would delay heartbeats,
health checks and all other answers. So it is divided into steps of at most about a millisecond each.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLICE: Final = 0.005
"""Seconds of steps in one turn of the loop."""


class Slices:
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
