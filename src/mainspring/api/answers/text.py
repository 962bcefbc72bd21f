"""How answers write what is stored: times, names and failures as text."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from mainspring.jobs.failures import JobFailure

failure_of = msgspec.json.Decoder(JobFailure).decode
"""Return a stored failure."""


def text(data: bytes) -> str:
    """Write a name; bytes that are no text are shown as escapes."""
    return data.decode("utf-8", "backslashreplace")


def rfc3339(time_us: int) -> str | None:
    """Write a stored time; None where there is none."""
    if not time_us:
        return None
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def line(error: bytes) -> str | None:
    """Write a stored failure as one line; None where there is none."""
    if not error:
        return None
    failure = failure_of(error)
    return f"{failure.type}: {failure.message}"
