"""The time of a worker's nodes. The worker's own wall clock has no part in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.clock import to_us

if TYPE_CHECKING:
    from collections.abc import Callable


class NodeClock:
    """Estimates the time of the nodes: that of their last decision, and the ``monotonic`` seconds since."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ahead_us = 0

    def set(self, now_us: int) -> None:
        """Set the time, in microseconds since 1970, by a decision that has just come."""
        self._ahead_us = now_us - to_us(self._monotonic())

    def now_us(self) -> int:
        """Return the time in microseconds since 1970."""
        return to_us(self._monotonic()) + self._ahead_us
