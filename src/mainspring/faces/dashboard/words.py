"""Numbers, sizes, durations and times as words for people."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import Final, NamedTuple

_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_SOON: Final = 1.0
"""Seconds around now that are called now."""


def number(value: float) -> str:
    """Return a number with thin spaces between thousands: ``1 234 567``."""
    return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def sentence(text: str) -> str:
    """Return the reason of a refusal as a sentence."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def size(value: int) -> str:
    """Return a number of bytes: ``1.5 KiB``."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def duration(seconds: float) -> str:
    """Return a duration with its two largest units: ``2 h 5 min``, ``1.5 s``, ``12 ms``."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    parts: list[str] = []
    whole = int(seconds)
    for length, unit in _UNITS:
        amount, whole = divmod(whole, int(length))
        if amount or parts:
            parts.append(f"{amount} {unit}")
        if len(parts) == 2:
            break
    if len(parts) < 2:
        parts.append(f"{whole} s")
    return " ".join(part for part in parts if not part.startswith("0 ")) or parts[0]


class Moment(NamedTuple):
    """A time in several forms."""

    iso: str
    """RFC 3339."""
    absolute: str
    """With seconds, in the zone of the viewer."""
    relative: str
    """``5 min ago``, ``in 2 h``."""


def moment(text: str, now: float, zone: dt.tzinfo) -> Moment:
    """Return the forms of a time of the API."""
    seconds, shown = _shown(text, zone)
    return Moment(text, shown, relative(seconds - now))


@lru_cache(maxsize=2048)  # a list has two or three times in each row, often the same, and is loaded again
def _shown(text: str, zone: dt.tzinfo) -> tuple[float, str]:
    """Return the seconds since 1970 of a time of the API, and its absolute form."""
    time = dt.datetime.fromisoformat(text)
    return time.timestamp(), absolute(time, zone)


def absolute(time: dt.datetime, zone: dt.tzinfo) -> str:
    """Return a time in a zone: ``2030-01-31 12:00:00 CET``."""
    return time.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")


def field_time(text: str) -> str:
    """Return a time as browsers write it in a field: in UTC, without its zone. Texts that are no times stay."""
    try:
        time = dt.datetime.fromisoformat(text)
        return (time if time.tzinfo is None else time.astimezone(dt.UTC)).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError):
        return text


def relative(seconds: float) -> str:
    """Return the distance from now; negative: in the past."""
    if abs(seconds) < _SOON:
        return "now"
    return f"in {duration(seconds)}" if seconds > 0 else f"{duration(-seconds)} ago"


def hour(time: float) -> str:
    """Return the begin of an hour, in UTC, as browsers write it in a field."""
    return dt.datetime.fromtimestamp(time, dt.UTC).strftime("%Y-%m-%dT%H:00:00")
