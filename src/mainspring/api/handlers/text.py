"""Stored values in answers: times, names and failures as text, and large values in rows."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.jobs.model import decode_failure, line_of
from mainspring.sizes import ROW_VALUE

if TYPE_CHECKING:
    from collections.abc import Iterable

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


_encode = msgspec.json.Encoder().encode


def names_in_row(names: Iterable[str]) -> list[str]:
    """Return the first names that have at most `ROW_VALUE` bytes together, for a row whose names have no limit of their own."""
    found: list[str] = []
    left = ROW_VALUE.most
    for name in names:
        left -= len(_encode(name)) + 1
        if left < 0:
            break
        found.append(name)
    return found


def value_in_row(value: Any) -> Any:
    """Return a value of any form as a row has it: a large one is a mark with its size."""
    if value is None or isinstance(value, bool | int):
        return value
    try:
        size = len(_encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        return f"[… cannot be shown: {error} …]"
    return value if size <= ROW_VALUE.most else f"[… {size} bytes …]"
