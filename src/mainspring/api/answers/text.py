"""Stored values as text in answers: times, names and failures."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from mainspring.jobs.failures import JobFailure

failure_of = msgspec.json.Decoder(JobFailure).decode
"""Return a stored failure."""


def rfc3339(time_us: int) -> str | None:
    """Return a stored time as text; None for 0."""
    if not time_us:
        return None
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def line(error: bytes) -> str | None:
    """Return a stored failure as one line; None for no failure."""
    if not error:
        return None
    failure = failure_of(error)
    return f"{failure.type}: {failure.message}"
