"""Limits as the wire and people say them: seconds in place of microseconds, and a burst that is as many as the rate's number."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.clock import from_us, to_us
from mainspring.errors import UsageError
from mainspring.resources import rules
from mainspring.resources.model import Limits, Rate


class RateSpec(msgspec.Struct, forbid_unknown_fields=True):
    """So many starts in so many seconds."""

    number: int
    per: float = 1.0
    burst: int | None = None


class LimitSpec(msgspec.Struct, forbid_unknown_fields=True):
    """What limits a function."""

    concurrency: int | None = None
    concurrency_per_key: int | None = None
    rate: RateSpec | None = None
    rate_per_key: RateSpec | None = None


def rate_of(said: RateSpec) -> Rate:
    """Return a rate as it is kept; a burst of none is as many as its number."""
    per = min(max(said.per, 0.0), 1e9)  # what is out of all bounds is told so by `check`
    return Rate(said.number, to_us(per), said.number if said.burst is None else said.burst)


def limits_of(said: LimitSpec) -> Limits:
    """Return limits as they are kept; raises UsageError where one cannot be right."""
    limits = Limits(
        said.concurrency,
        said.concurrency_per_key,
        None if said.rate is None else rate_of(said.rate),
        None if said.rate_per_key is None else rate_of(said.rate_per_key),
    )
    rules.check(limits)
    return limits


def spec_of(limits: Limits) -> LimitSpec:
    """Return limits as the wire and people say them."""
    return LimitSpec(
        limits.concurrency, limits.concurrency_per_key, _rate_spec(limits.rate), _rate_spec(limits.rate_per_key)
    )


def _rate_spec(rate: Rate | None) -> RateSpec | None:
    return None if rate is None else RateSpec(rate.number, from_us(rate.per_us), rate.burst)


def limits_to_wire(limits: Limits) -> dict[str, Any]:
    """Return the limits that there are, as JSON has them."""
    return {name: limit for name, limit in msgspec.to_builtins(spec_of(limits)).items() if limit is not None}


LONGEST_KEY = 255
"""Bytes of a key."""


def key_of(text: str) -> bytes:
    """Return a key as it is kept; raises UsageError where it is too long."""
    key = text.encode()
    if len(key) > LONGEST_KEY:
        raise UsageError(f"a concurrency_key has at most {LONGEST_KEY} bytes, not {len(key)}")
    return key
