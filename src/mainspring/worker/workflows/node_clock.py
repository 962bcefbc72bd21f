"""The wall clock of a worker's nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.clock import to_us

if TYPE_CHECKING:
    from collections.abc import Callable


class NodeClock:
    """Estimates the time of the nodes by this process's ``wall`` clock, seconds since 1970 UTC, and their last decision."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._ahead_us = 0

    def set(self, now_us: int) -> None:
        """Set the time, in microseconds since 1970, by a decision that has just come."""
        self._ahead_us = now_us - to_us(self._wall())

    def now_us(self) -> int:
        """Return the time in microseconds since 1970."""
        return to_us(self._wall()) + self._ahead_us
