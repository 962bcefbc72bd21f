"""Time as an argument: the clocks' protocol and the words for the kinds of time.

*Wall* time says when something is due or has happened; people read it, and it can be stepped.
*Monotonic* time measures how long something lasts: leases, timeouts, rates. It never goes back, and means nothing
outside its process.
Both are floats of seconds here, and integers of microseconds (``…_us``) in stores.
"""

from __future__ import annotations

from typing import Protocol

MICROSECONDS = 1_000_000


class Clock(Protocol):
    """Tells both kinds of time."""

    def wall(self) -> float:
        """Return seconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""


def to_us(seconds: float) -> int:
    """Turn seconds into the stores' whole microseconds."""
    return round(seconds * MICROSECONDS)


def from_us(microseconds: int) -> float:
    """Turn the stores' microseconds into seconds."""
    return microseconds / MICROSECONDS
