"""The clock of the machine."""

from __future__ import annotations

import time


class SystemClock:
    """Both kinds of time, from the operating system: see `mainspring.clock.Clock`."""

    # The functions themselves, without a method around them: they are called for every job.
    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
