"""Durations and sizes as people write them: ``250ms 30s 5m 2h 3d`` and ``64M``."""

from __future__ import annotations

import re

from mainspring.errors import SettingsError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SIZE_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_duration(text: str) -> float:
    """Return seconds for ``250ms``, ``30s``, ``5m``, ``2h``, ``3d``, ``1h30m`` or ``0``.

    Raises SettingsError for anything else; a bare number has no unit and is refused, so that nobody's 30 minutes
    become 30 seconds.
    """
    compact = text.strip()
    if compact == "0":
        return 0.0
    total = 0.0
    position = 0
    for part in _DURATION_PART.finditer(compact):
        if part.start() != position:
            break
        total += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    if position == 0 or position != len(compact):
        raise SettingsError(f"{text!r} is no duration: write a number and a unit, such as 250ms, 30s, 5m, 2h or 3d")
    return total


def format_duration(seconds: float) -> str:
    """Write seconds as `parse_duration` reads them, in the largest unit that needs no fraction; to the millisecond."""
    if seconds == 0:
        return "0s"
    for unit in ("d", "h", "m", "s", "ms"):
        count = seconds / _SECONDS[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    if seconds >= 1:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{seconds * 1000:g}ms"


def parse_size(text: str) -> int:
    """Return bytes for ``4096``, ``512K``, ``64M`` or ``1.5G`` (powers of 1024).

    Raises SettingsError for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SettingsError(f"{text!r} is no size: write bytes, or a number with K, M or G, such as 64M")
    return int(float(match[1]) * _SIZE_FACTORS[match[2].upper()])


def format_size(size: int) -> str:
    """Write bytes for people: whole below 1 KiB, one decimal above."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{int(amount)} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
