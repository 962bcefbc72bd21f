"""The clock of the machine."""

from __future__ import annotations

import time


class SystemClock:
    """Both kinds of time, from the operating system: see `mainspring.clock.Clock`."""

    def wall(self) -> float:
        """Return seconds since 1970-01-01 UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""
        return time.monotonic()
