"""The times of a worker's nodes. The worker's own wall clock has no part in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.clock import to_us

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.worker.link import Link


class NodeClocks:
    """Estimates the time of each node: that of its last decision, and the ``monotonic`` seconds since."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ahead_us: dict[Link, int] = {}

    def set(self, link: Link, now_us: int) -> None:
        """Set the time of a node, in microseconds since 1970, by a decision that has just come."""
        self._ahead_us[link] = now_us - to_us(self._monotonic())

    def monotonic_us(self) -> int:
        """Return monotonic microseconds: no node's time has a part in them."""
        return to_us(self._monotonic())

    def now_us(self, link: Link) -> int:
        """Return the time of a node in microseconds since 1970; an early one if it has assigned no decision yet."""
        return to_us(self._monotonic()) + self._ahead_us.get(link, 0)
