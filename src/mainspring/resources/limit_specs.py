"""Limits as programs and users write them: times in seconds, and by default a burst equal to the rate's number."""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring.clock import from_us, to_us
from mainspring.errors import UsageError
from mainspring.resources import rules
from mainspring.resources.rules import Limits, Rate
from mainspring.sizes import Seconds, Whole  # noqa: TC001 - msgspec reads the annotations


class RateSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A number of starts in ``per`` seconds."""

    number: Whole
    per: Seconds = 1.0
    burst: Whole | None = None


class LimitSpec(msgspec.Struct, forbid_unknown_fields=True):
    """The limits of a function."""

    concurrency: Whole | None = None
    concurrency_per_key: Whole | None = None
    rate: RateSpec | None = None
    rate_per_key: RateSpec | None = None


def rate_of(spec: RateSpec) -> Rate:
    """Return the internal form of a rate; without a burst, it is the rate's number."""
    per = min(max(spec.per, 0.0), 1e9)  # keeps absurd values small enough for `check`, which refuses them
    return Rate(spec.number, to_us(per), spec.number if spec.burst is None else spec.burst)


def limits_of(spec: LimitSpec) -> Limits:
    """Return the internal form of limits. Raises UsageError if one is invalid."""
    limits = Limits(
        spec.concurrency,
        spec.concurrency_per_key,
        None if spec.rate is None else rate_of(spec.rate),
        None if spec.rate_per_key is None else rate_of(spec.rate_per_key),
    )
    rules.check(limits)
    return limits


def spec_of(limits: Limits) -> LimitSpec:
    """Return the external form of limits."""
    return LimitSpec(
        limits.concurrency, limits.concurrency_per_key, _rate_spec(limits.rate), _rate_spec(limits.rate_per_key)
    )


def _rate_spec(rate: Rate | None) -> RateSpec | None:
    return None if rate is None else RateSpec(rate.number, from_us(rate.per_us), rate.burst)


def limits_to_wire(limits: Limits) -> dict[str, Any]:
    """Return the limits that are set, as values for JSON."""
    return {name: limit for name, limit in msgspec.to_builtins(spec_of(limits)).items() if limit is not None}


MAX_CONCURRENCY_KEY_BYTES = 255


def key_of(text: str) -> bytes:
    """Return a key as bytes. Raises UsageError if it is too long."""
    key = text.encode()
    if len(key) > MAX_CONCURRENCY_KEY_BYTES:
        raise UsageError(f"a concurrency_key has at most {MAX_CONCURRENCY_KEY_BYTES} bytes, not {len(key)}")
    return key
