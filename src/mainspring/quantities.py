"""Durations, sizes and times in text: ``250ms 30s 5m 2h 3d``, ``64M`` and ``2030-01-31T12:00:00Z``."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from mainspring.errors import SettingsError

_UNIT_SECONDS = {
    "w": Decimal(604800),
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
}
"""Seconds in each unit, as decimals, so that 1h0.1s becomes the float 3600.1."""
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)", re.ASCII)
_SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SIZE_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_RATE_PATTERN = re.compile(r"(\d+)/([^,]+)(?:,(\d+))?")


def parse_duration(text: str) -> float:
    """Return seconds for ``250ms``, ``30s``, ``5m``, ``2h``, ``3d``, ``1h30m`` or ``0``.

    Raises SettingsError for other text. A number without a unit is refused, because 30 could be meant as minutes.
    """
    compact = text.strip()
    if compact == "0":
        return 0.0
    total = Decimal(0)
    position = 0
    for part in _DURATION_PART.finditer(compact):
        if part.start() != position:
            break
        total += Decimal(part[1]) * _UNIT_SECONDS[part[2]]
        position = part.end()
    if position == 0 or position != len(compact) or not isfinite(seconds := float(total)):
        raise SettingsError(f"{text!r} is not a duration: write a number and a unit, such as 250ms, 30s, 5m, 2h or 3d")
    return seconds


def format_duration(seconds: float) -> str:
    """Return seconds, 0 or more, in the form of `parse_duration`, to the microsecond: ``250ms``, ``1.5s``, ``1h30m``."""
    microseconds = round(seconds * 1_000_000)
    if microseconds < 1_000:
        return f"{microseconds}us" if microseconds else "0s"
    if microseconds < 1_000_000:
        return _amount(microseconds, 1_000, "ms")
    minutes, rest = divmod(microseconds, 60_000_000)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{count}{unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if count]
    return "".join([*parts, _amount(rest, 1_000_000, "s") if rest else ""])


def _amount(microseconds: int, factor: int, unit: str) -> str:
    """Return a number of units, with a fraction if necessary."""
    whole, fraction = divmod(microseconds, factor)
    digits = f"{fraction:0{len(str(factor)) - 1}}".rstrip("0")
    return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"


def spell_duration(seconds: float) -> str:
    """Return a duration for a sentence: ``30 s``, ``1 min 30 s``, ``500 ms``."""
    parts = _DURATION_PART.findall(format_duration(seconds))
    return " ".join(f"{number} {'min' if unit == 'm' else unit}" for number, unit in parts)


def parse_size(text: str) -> int:
    """Return bytes for ``4096``, ``512K``, ``64M`` or ``1.5G`` (powers of 1024).

    Raises SettingsError for other text.
    """
    match = _SIZE_PATTERN.fullmatch(text.strip())
    if match is None:
        raise SettingsError(f"{text!r} is not a size: write bytes, or a number with K, M or G, such as 64M")
    return int(float(match[1]) * _SIZE_FACTORS[match[2].upper()])


def format_size(size: int) -> str:
    """Return a size for people: whole bytes below 1 KiB, one decimal above."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{int(amount)} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def parse_time(text: str) -> float:
    """Return seconds since 1970 for ``2030-01-31T12:00:00Z``; a time without a zone is in the machine's own zone.

    Raises SettingsError.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise SettingsError(f"{text!r} is not a time: write it as 2030-01-31T12:00:00Z") from None


def parse_rate(text: str) -> dict[str, Any] | None:
    """Return a rate in the form of the wire, or None for ``none``. Raises SettingsError for other text.

    ``100/1m`` is 100 starts in a minute; ``100/1m,20`` also limits the burst to 20 starts at once.
    """
    if text == "none":
        return None
    match = _RATE_PATTERN.fullmatch(text.strip())
    if match is None or len(match[1]) > 9 or len(match[3] or "") > 9:
        raise SettingsError(
            f"{text!r} is not a rate: write jobs and a time, such as 100/1m, or also a burst, such as 100/1m,20"
        )
    burst = None if match[3] is None else int(match[3])
    return {"number": int(match[1]), "per": parse_duration(match[2]), "burst": burst}


def format_rate(rate: dict[str, Any] | None) -> str | None:
    """Write a rate as `parse_rate` reads it."""
    if rate is None:
        return None
    burst = "" if rate["burst"] == rate["number"] else f",{rate['burst']}"
    return f"{rate['number']}/{format_duration(rate['per'])}{burst}"
