"""The clock of the machine, and the one that all nodes of a store have in common."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.clock import Clock


class SystemClock:
    """Both kinds of time, from the operating system: see `mainspring.clock.Clock`."""

    # The functions themselves, without a method around them: they are called for every job.
    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class StoreClock:
    """The store's wall time on a node's own clock: when something is due is the same moment for all nodes.

    It goes on with the monotonic clock, so that a wall clock that is stepped changes nothing. ``offset`` is by how many seconds
    the store's clock is before that, as it was measured last, and before that as this machine's wall clock says.
    """

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self.offset = clock.wall() - clock.monotonic()

    def move(self, seconds: float) -> None:
        """Go on so many seconds later: the store's clock was before this one by them."""
        self.offset += seconds

    def wall(self) -> float:
        """Return seconds since 1970-01-01 UTC, by the store's clock."""
        return self.monotonic() + self.offset
