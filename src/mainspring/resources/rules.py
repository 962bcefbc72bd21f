"""Token buckets, shares of tokens, and which of several words about a function counts.

Everything here is pure, and in whole numbers: nothing is lost or won by rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mainspring.errors import UsageError
from mainspring.quantities import format_duration
from mainspring.resources.model import UNLIMITED, Declaration, Limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.resources.model import FunctionLimits, Rate

# ---- token buckets ----


class Bucket(NamedTuple):
    """What a bucket held at a moment. The level is in parts: a token has as many as its rate's ``per_us``.

    So a microsecond adds ``number`` parts, whatever the rate, and nothing has to be rounded.
    """

    level: int
    updated_us: int


EMPTY: Final = Bucket(0, 0)


def full(rate: Rate, now_us: int) -> Bucket:
    """Return a bucket that nobody has taken from yet."""
    return Bucket(rate.burst * rate.per_us, now_us)


def refilled(rate: Rate, bucket: Bucket, now_us: int) -> Bucket:
    """Return a bucket as it is now. A clock that went back adds nothing, and counts on from where it is."""
    level = bucket.level + max(now_us - bucket.updated_us, 0) * rate.number
    return Bucket(min(level, rate.burst * rate.per_us), now_us)


def tokens(rate: Rate, bucket: Bucket, now_us: int) -> int:
    """Return how many tokens can be taken now."""
    return refilled(rate, bucket, now_us).level // rate.per_us


def take(rate: Rate, bucket: Bucket, now_us: int, wanted: int) -> tuple[int, Bucket]:
    """Take up to so many tokens; returns how many, and what is left.

    In any time T, at most ``rate * T + burst`` are taken in all.
    """
    bucket = refilled(rate, bucket, now_us)
    taken = max(min(wanted, bucket.level // rate.per_us), 0)
    return taken, Bucket(bucket.level - taken * rate.per_us, now_us)


def next_us(rate: Rate, bucket: Bucket) -> int:
    """Return from when on a token can be taken, if nobody takes any before."""
    missing = max(rate.per_us - bucket.level, 0)
    return bucket.updated_us + -(-missing // rate.number)


def poured(before: Rate, after: Rate, bucket: Bucket) -> Bucket:
    """Return a bucket whose rate was changed: what was in it stays in it, as far as it fits."""
    level = bucket.level * after.per_us // before.per_us
    return Bucket(min(level, after.burst * after.per_us), bucket.updated_us)


LAPSE_US: Final = 250_000
"""A start that a store has granted to a node lapses when it was not used for so long."""


def leased(rate: Rate) -> Rate:
    """Return the rate at which a store grants starts to nodes, so that the starts themselves keep to ``rate``.

    A start may come up to ``LAPSE_US`` after its grant, so the starts of a time T were granted in a time T + LAPSE. With a burst
    smaller by what a bucket gains in that time, the bound ``rate * T + burst`` holds for the starts too; a burst that is smaller
    than that anyhow becomes 1.
    """
    gained = -(-LAPSE_US * rate.number // rate.per_us)
    return msgspec.structs.replace(rate, burst=max(rate.burst - gained, 1))


# ---- tokens for jobs that run at the same time, shared by nodes ----


def granted(limit: int, others: int, held: int, wanted: int) -> int:
    """Return how many of ``limit`` tokens a node has that has ``held`` and wants ``wanted``, while others have ``others``.

    The sum never passes the limit by a grant; where the limit was lowered, nobody has his taken away, and nobody gets more.
    """
    return min(wanted, max(limit - others, held, 0))


class Holding(NamedTuple):
    """What a node has of a pool's tokens, and what it wanted when it asked last."""

    tokens: int
    wanted: int
    asked_us: int


WANTED_FOR_US: Final = 3_000_000
"""For so long it is remembered that a node has asked in vain."""


class Division(NamedTuple):
    """How a pool stands after a node has asked."""

    own: Holding
    claimants: int
    """Nodes that have tokens, or have asked in vain lately; the asking one is among them."""
    short: bool
    """Whether another node has asked in vain lately."""


def divided(others: Iterable[Holding], limit: int, held: int, wanted: int, now_us: int) -> Division:
    """Give a node what it wants of a pool, as far as it is there."""
    taken, claimants, short = 0, 1, False
    for other in others:
        lacks = other.wanted > other.tokens and other.asked_us > now_us - WANTED_FOR_US
        taken += other.tokens
        claimants += other.tokens > 0 or lacks
        short = short or lacks
    return Division(Holding(granted(limit, taken, held, wanted), wanted, now_us), claimants, short)


def fair_share(limit: int, claimants: int) -> int:
    """Return how many tokens a node may keep while others want more than they have: an even share, rounded down.

    Where there are more nodes than tokens that is 0: then tokens go round.
    """
    return limit // max(claimants, 1)


# ---- which word counts ----

FORGOTTEN_US: Final = 5 * 60 * 1_000_000
"""What no worker has said for so long is said no more."""


def effective(said: FunctionLimits, now_us: int) -> Limits:
    """Return the limits that hold.

    What was said by command counts more than what workers declare. Of several declarations, as workers of two versions make them
    while one follows the other, the one that was first made last counts; so a new version's limits hold from its first worker on,
    and nothing changes when an older worker connects again. After a rollback the older one counts again once no worker has made
    the newer one for five minutes.
    """
    if said.commanded is not None:
        return said.commanded
    valid = [one for one in said.declared if one.last_us > now_us - FORGOTTEN_US]
    return max(valid, key=lambda one: one.first_us).limits if valid else UNLIMITED


def declared(said: FunctionLimits, limits: Limits, now_us: int) -> FunctionLimits:
    """Return what is said of a function once a worker has declared limits for it, or is still there that has."""
    others = [one for one in said.declared if one.last_us > now_us - FORGOTTEN_US and one.limits != limits]
    known = next((one for one in said.declared if one.limits == limits), None)
    first_us = known.first_us if known is not None and known.last_us > now_us - FORGOTTEN_US else now_us
    own = Declaration(limits, first_us, now_us)
    return msgspec.structs.replace(said, declared=tuple(sorted([*others, own], key=lambda one: one.first_us)))


def is_stale(said: FunctionLimits, limits: Limits, now_us: int) -> bool:
    """Return whether a declaration has to be written again, because it is new or nearly forgotten."""
    return not any(one.limits == limits and one.last_us > now_us - FORGOTTEN_US // 5 for one in said.declared)


LARGEST: Final = 1_000_000_000
"""A limit that nobody reaches; and the product of two of them, in microseconds, still fits into a store's 64 bits."""


def check(limits: Limits) -> None:
    """Raise UsageError, with the name of the limit, where one cannot be right."""
    for name in ("concurrency", "concurrency_per_key"):
        number = getattr(limits, name)
        if number is not None and not 1 <= number <= LARGEST:
            raise UsageError(
                f"{name} must be from 1 to {LARGEST:,}; it is {number}; to let nothing run, pause the function"
            )
    for name in ("rate", "rate_per_key"):
        rate = getattr(limits, name)
        if rate is None:
            continue
        if not 1 <= rate.number <= 1_000_000:
            raise UsageError(f"{name} must let from 1 to 1,000,000 jobs start in its time; it is {rate.number}")
        if not 1_000 <= rate.per_us <= 366 * 86_400 * 1_000_000:
            raise UsageError(
                f"{name} must be for a time from 1 ms to 366 days; it is {format_duration(rate.per_us / 1e6)}"
            )
        if not 1 <= rate.burst <= 100_000:
            raise UsageError(f"{name} must let a burst of 1 to 100,000 jobs start at once; it is {rate.burst}")
