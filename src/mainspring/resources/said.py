"""Limits as the wire and people say them: seconds in place of microseconds, and a burst that is as many as the rate's number."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.clock import from_us, to_us
from mainspring.errors import UsageError
from mainspring.resources import rules
from mainspring.resources.model import Limits, Rate


class SaidRate(msgspec.Struct, forbid_unknown_fields=True):
    """So many starts in so many seconds."""

    number: int
    per: float = 1.0
    burst: int | None = None


class SaidLimits(msgspec.Struct, forbid_unknown_fields=True):
    """What limits a function."""

    concurrency: int | None = None
    concurrency_per_key: int | None = None
    rate: SaidRate | None = None
    rate_per_key: SaidRate | None = None


def rate_of(said: SaidRate) -> Rate:
    """Return a rate as it is kept; a burst of none is as many as its number."""
    per = min(max(said.per, 0.0), 1e9)  # what is out of all bounds is told so by `check`
    return Rate(said.number, to_us(per), said.number if said.burst is None else said.burst)


def limits_of(said: SaidLimits) -> Limits:
    """Return limits as they are kept; raises UsageError where one cannot be right."""
    limits = Limits(
        said.concurrency,
        said.concurrency_per_key,
        None if said.rate is None else rate_of(said.rate),
        None if said.rate_per_key is None else rate_of(said.rate_per_key),
    )
    rules.check(limits)
    return limits


def told(limits: Limits) -> dict[str, Any]:
    """Return limits as the wire tells them: all four keys, with None where there is no such limit."""
    return {
        "concurrency": limits.concurrency,
        "concurrency_per_key": limits.concurrency_per_key,
        "rate": _told_rate(limits.rate),
        "rate_per_key": _told_rate(limits.rate_per_key),
    }


def _told_rate(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else {"number": rate.number, "per": from_us(rate.per_us), "burst": rate.burst}


LONGEST_KEY = 255
"""Bytes of a key."""


def key_of(text: str) -> bytes:
    """Return a key as it is kept; raises UsageError where it is too long."""
    key = text.encode()
    if len(key) > LONGEST_KEY:
        raise UsageError(f"a concurrency_key has at most {LONGEST_KEY} bytes, not {len(key)}")
    return key
