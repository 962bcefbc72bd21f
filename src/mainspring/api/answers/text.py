"""Stored values as text in answers: times, names and failures."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from mainspring.jobs.failures import decode_failure, line_of

_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_000_000
"""The years 1 and 9999, between which text can show a time."""


def rfc3339(time_us: int) -> str | None:
    """Return a stored time as text; None for 0. A time that text cannot show is the first or the last one that it can."""
    if not time_us:
        return None
    seconds, fraction = divmod(min(max(time_us, _FIRST_US), _LAST_US), 1_000_000)
    return f"{_second(seconds)}.{fraction:06d}Z"


@lru_cache(maxsize=4096)  # the rows of a list have times of few seconds
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


def line(error: bytes) -> str | None:
    """Return a stored failure as one line, as lists show it; None for no failure."""
    return line_of(error) if error else None


def whole_line(error: bytes) -> str | None:
    """Return a stored failure with its whole message; None for no failure."""
    if not error:
        return None
    failed = decode_failure(error)
    return f"{failed.type}: {failed.message}"
