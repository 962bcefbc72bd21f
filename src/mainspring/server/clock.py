"""The machine's clock, and the store's clock, which all its nodes share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.clock import Clock


class SystemClock:
    """Wall and monotonic time from the operating system: see `mainspring.clock.Clock`."""

    # The functions themselves without a wrapper: the node calls them for every job.
    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class StoreClock:
    """The store's wall time, computed from the node's monotonic clock: all nodes agree when something is due.

    A step of the machine's wall clock has no effect. ``offset`` is the store's wall time minus the monotonic time, in
    seconds, as measured last; before the first measurement it uses this machine's wall clock.
    """

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.monotonic
        self.offset = clock.wall() - clock.monotonic()

    def move(self, seconds: float) -> None:
        """Set this clock forward by the seconds by which the store's clock is ahead of it."""
        self.offset += seconds

    def wall(self) -> float:
        """Return the store's time in seconds since 1970-01-01 UTC."""
        return self.monotonic() + self.offset
