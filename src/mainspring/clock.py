"""The protocol of clocks, and the terms for the kinds of time.

*Wall* time is the time at which something is due or has happened. People read it, and it can be stepped.
*Monotonic* time measures durations: leases, timeouts, rates. It never goes back, and has no meaning outside its process.
Both are floats of seconds here, and integers of microseconds (``…_us``) in stores.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

MICROSECONDS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """A clock for both kinds of time."""

    def wall(self) -> float:
        """Return seconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""


def to_us(seconds: float) -> int:
    """Convert seconds to the stores' whole microseconds."""
    return round(seconds * MICROSECONDS)


def from_us(microseconds: int) -> float:
    """Convert the stores' microseconds to seconds."""
    return microseconds / MICROSECONDS


def us_of(time: datetime) -> int:
    """Convert a time with a time zone to the stores' microseconds."""
    return (time - _EPOCH) // _MICROSECOND


def time_of(microseconds: int) -> datetime:
    """Convert the stores' microseconds, up to the year 9999, to a time in UTC."""
    return _EPOCH + microseconds * _MICROSECOND
