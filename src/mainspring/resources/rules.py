"""Limits of functions: their values, token buckets, the division of tokens among nodes, and the precedence of limits.

Declared limits come from workers, commanded ones from operators.

Limits as programs and users write them: times in seconds, and by default a burst equal to the rate's number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from mainspring.clock import from_us, to_us
from mainspring.errors import UsageError
from mainspring.quantities import format_duration
from mainspring.resources.holds import MAX_LINES, Labels, Line, check_lines, check_name
from mainspring.sizes import (
    Seconds,
    Text,
    Whole,
    about,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token bucket: ``number`` starts in ``per_us`` microseconds, and up to ``burst`` at once. All three are at least 1."""

    number: int
    per_us: int
    burst: int


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limits of a function's jobs; None is no limit. Each job has a key, which may be empty."""

    concurrency: int | None = None
    """Jobs that run at the same time."""
    concurrency_per_key: int | None = None
    """Jobs of one key that run at the same time."""
    rate: Rate | None = None
    """Starts in a time."""
    rate_per_key: Rate | None = None
    uses: tuple[Line, ...] = ()
    """The slots of shared resources that each job has while it runs, in the function's namespace."""
    uses_timeout_us: int = 0
    """Microseconds for which a job may wait for them; 0: for any time."""

    @property
    def per_key(self) -> bool:
        """Whether the limits depend on the keys of jobs."""
        return self.concurrency_per_key is not None or self.rate_per_key is not None


UNLIMITED = Limits()

FUNCTION_POOL = b""
"""The pool of the tokens of a whole function."""


def pool_of(key: bytes) -> bytes:
    """Return the pool of the tokens of one key, which may be empty."""
    return b":" + key


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A declaration by the code of workers. Times are microseconds of wall time."""

    first_us: int
    """When the first worker declared it."""
    last_us: int
    """When a worker with this declaration was last connected."""


class Declaration(Declared, frozen=True):
    """Limits of a function."""

    limits: Limits


class Times(msgspec.Struct, frozen=True, omit_defaults=True):
    """The times of a function's jobs, in seconds from their due times, where a job has none of its own."""

    start_within: float | None = None
    """The job should have begun within this time."""
    deadline: float | None = None
    """It should have ended within this time."""


NO_TIMES: Final = Times()


class TimesDeclaration(Declared, frozen=True):
    """Times of a function's jobs."""

    times: Times


class FunctionLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """All declarations and commands about one function, as stored."""

    function: bytes
    declared: tuple[Declaration, ...] = ()
    commanded: Limits | None = None
    """The limits that a user has set by command."""
    paused: bool = False
    version: int = 0
    """The number of writes; 0: not stored yet."""
    pause_reason: str = ""
    paused_us: int = 0
    """When the pause began; 0: unknown, or not paused. Times are microseconds of wall time."""
    until_us: int = 0
    """When the pause ends by itself; 0: it does not. Nodes of earlier versions do not know this, and go on to pause."""
    paused_by: str = ""
    """The caller who paused it last, with this reason; empty if unknown, as after a write by a node of an earlier version."""
    times: tuple[TimesDeclaration, ...] = ()
    """A write by a node of an earlier version loses them, until a worker repeats them."""


class UnreadableLimits(FunctionLimits, frozen=True):
    """Stands for limits that this version cannot read: a pause, because no job may run without its limits. Never stored."""


encode_limits: Final = msgspec.msgpack.Encoder().encode
_decode_limits: Final = msgspec.msgpack.Decoder(FunctionLimits).decode


def decode_limits(data: bytes, function: bytes, version: int) -> FunctionLimits:
    """Return stored limits, or `UnreadableLimits`: the start of a node reads those of all functions, and one must not fail it."""
    try:
        return _decode_limits(data)
    except (ValueError, RecursionError) as error:  # a MsgspecError is a ValueError
        reason = f"this version of Mainspring cannot read the limits of the function: {error}"
        return UnreadableLimits(function, paused=True, version=version, pause_reason=reason)


# ---- token buckets ----


class Bucket(NamedTuple):
    """The content of a bucket at a moment. The level counts parts: one token is ``per_us`` parts of its rate.

    So each microsecond adds ``number`` parts, and nothing has to be rounded.
    """

    level: int
    updated_us: int


EMPTY: Final = Bucket(0, 0)


def full(rate: Rate, now_us: int) -> Bucket:
    """Return a full bucket."""
    return Bucket(rate.burst * rate.per_us, now_us)


def refilled(rate: Rate, bucket: Bucket, now_us: int) -> Bucket:
    """Return a bucket with the tokens added until now. If the clock was set back, add none and continue from its time."""
    level = bucket.level + max(now_us - bucket.updated_us, 0) * rate.number
    return Bucket(min(level, rate.burst * rate.per_us), now_us)


def tokens(rate: Rate, bucket: Bucket, now_us: int) -> int:
    """Return how many tokens the bucket has now."""
    return refilled(rate, bucket, now_us).level // rate.per_us


def consume(rate: Rate, bucket: Bucket, now_us: int, wanted: int) -> tuple[int, Bucket]:
    """Consume up to ``wanted`` tokens; return how many, and the bucket that is left.

    In any time T, at most ``rate * T + burst`` tokens are consumed.
    """
    bucket = refilled(rate, bucket, now_us)
    consumed = max(min(wanted, bucket.level // rate.per_us), 0)
    return consumed, Bucket(bucket.level - consumed * rate.per_us, now_us)


def next_us(rate: Rate, bucket: Bucket) -> int:
    """Return when the bucket has its next token, if none is consumed before."""
    missing = max(rate.per_us - bucket.level, 0)
    return bucket.updated_us + -(-missing // rate.number)


def converted(before: Rate, after: Rate, bucket: Bucket) -> Bucket:
    """Return a bucket after a change of its rate: it keeps its tokens, up to the new burst."""
    level = bucket.level * after.per_us // before.per_us
    return Bucket(min(level, after.burst * after.per_us), bucket.updated_us)


GRANT_EXPIRY_US: Final = 250_000
"""Microseconds after which an unused start expires that a store has granted to a node."""


def grant_rate(rate: Rate) -> Rate:
    """Return the rate at which a store may grant starts to nodes so that the starts themselves keep to ``rate``.

    A start may follow up to ``GRANT_EXPIRY_US`` after its grant, so the starts of a time T were granted in a time
    T + GRANT_EXPIRY. The burst is therefore smaller by the tokens that the bucket gains in that time. Then the bound
    ``rate * T + burst`` also holds for the starts; a burst that would fall below 1 becomes 1.
    """
    gained = -(-GRANT_EXPIRY_US * rate.number // rate.per_us)
    return msgspec.structs.replace(rate, burst=max(rate.burst - gained, 1))


# ---- tokens for jobs that run at the same time, divided among nodes ----


def grantable(limit: int, others: int, held: int, wanted: int) -> int:
    """Return how many of ``limit`` tokens a node gets that holds ``held`` and wants ``wanted``, while others hold ``others``.

    A grant never raises the sum above the limit. After the limit was lowered, no node loses tokens and none gets more.
    """
    return min(wanted, max(limit - others, held, 0))


class Holding(NamedTuple):
    """The tokens of a pool that a node holds, and the number that it wanted with its last request."""

    tokens: int
    wanted: int
    asked_us: int


DEMAND_EXPIRY_US: Final = 3_000_000
"""Microseconds for which a request that was not granted in full counts as demand."""


class Division(NamedTuple):
    """A pool after a node's request."""

    own: Holding
    claimants: int
    """Nodes with tokens or unmet demand; the requesting one is among them."""
    short: bool
    """Whether another node has unmet demand."""


def divide(
    others: Iterable[Holding],
    limit: int,
    held: int,
    wanted: int,
    now_us: int,
    demand: int | None = None,
    *,
    waits: bool = True,
) -> Division:
    """Grant a node the tokens that it wants, as far as the pool has them. For ``demand`` and ``waits`` see `TokenRequest`."""
    taken, claimants, short = 0, 1, False
    for other in others:
        is_recent = abs(now_us - other.asked_us) < DEMAND_EXPIRY_US
        lacks = other.wanted > other.tokens and is_recent
        taken += other.tokens
        claimants += other.tokens > 0 or lacks
        short = short or lacks
    granted = grantable(limit, taken, held, wanted)
    demand = max(wanted if demand is None else demand, granted) if granted or waits else 0
    return Division(Holding(granted, demand, now_us), claimants, short)


def returns(before: int, wanted: int, others: Iterable[Holding], *, announced: bool) -> bool:
    """Return whether a request returns tokens that other nodes should learn of."""
    return before > wanted and (announced or any(one.wanted > one.tokens for one in others))


def fair_share(limit: int, claimants: int) -> int:
    """Return how many tokens a node may keep while others have unmet demand: an even share, rounded down.

    It is 0 if there are more nodes than tokens: then the nodes use the tokens in turn.
    """
    return limit // max(claimants, 1)


# ---- pauses ----


def paused(function: FunctionLimits, now_us: int, reason: str = "", until_us: int = 0, who: str = "") -> FunctionLimits:
    """Return a function's limits after it was paused. A repeated pause keeps the time at which the first one began."""
    since_us = function.paused_us if function.paused else now_us
    return msgspec.structs.replace(
        function, paused=True, pause_reason=reason, paused_us=since_us, until_us=until_us, paused_by=who
    )


def resumed(function: FunctionLimits) -> FunctionLimits:
    """Return a function's limits after it was resumed."""
    return msgspec.structs.replace(function, paused=False, pause_reason="", paused_us=0, until_us=0, paused_by="")


def without_ended_pause(function: FunctionLimits, now_us: int) -> FunctionLimits:
    """Return a function's limits without a pause whose time is over."""
    return resumed(function) if function.paused and 0 < function.until_us <= now_us else function


# ---- precedence of limits ----

DECLARATION_EXPIRY_US: Final = 5 * 60 * 1_000_000
"""Microseconds without a worker that repeats a declaration after which the declaration expires."""

_CLOCKS_DIFFER_US: Final = 60_000_000
"""A declaration may have been repeated so much later than now, by another node. If it is still later, the clock was ahead."""


def effective(function: FunctionLimits, now_us: int) -> Limits:
    """Return the limits that apply.

    Limits set by command override declarations, but for the use of resources, which the code relies on. If workers of two
    versions declare different limits, as during a rolling deploy, the newer version's apply: the declaration whose first worker
    connected last. They apply from that first worker on, and a reconnecting older worker changes nothing. After a rollback the
    older declaration applies again when no worker has repeated the newer one for five minutes.
    """
    latest = newest(function.declared, now_us)
    declared = UNLIMITED if latest is None else latest.limits
    if function.commanded is None:
        return declared
    return msgspec.structs.replace(function.commanded, uses=declared.uses, uses_timeout_us=declared.uses_timeout_us)


def with_declaration(function: FunctionLimits, limits: Limits, now_us: int) -> FunctionLimits:
    """Return a function's limits after a worker has declared ``limits``, or repeated its declaration."""
    declared = with_newest(
        function.declared,
        lambda one: one.limits == limits,
        lambda first_us: Declaration(limits, first_us=first_us, last_us=now_us),
        now_us,
    )
    return msgspec.structs.replace(function, declared=declared)


def with_times(function: FunctionLimits, times: Times, now_us: int) -> FunctionLimits:
    """Return a function's row after a worker has declared ``times``, or that there are none any more, or has repeated this."""
    declared = with_newest(
        function.times,
        lambda one: one.times == times,
        lambda first_us: TimesDeclaration(times, first_us=first_us, last_us=now_us),
        now_us,
    )
    is_needed = times != NO_TIMES or len(declared) > 1
    return msgspec.structs.replace(function, times=declared if is_needed else ())


D = TypeVar("D", bound=Declared)


def newest(declared: Iterable[D], now_us: int) -> D | None:
    """Return the declaration that applies; None if all have expired."""
    return max(_valid(declared, now_us), key=lambda one: one.first_us, default=None)


def newest_or_last(declared: Iterable[D], now_us: int) -> D | None:
    """Return the declaration that applies, or if all have expired, the last one; None if there is none."""
    declared = list(declared)
    latest = newest(declared, now_us)
    return max(declared, key=lambda one: (one.last_us, one.first_us), default=None) if latest is None else latest


def _valid(declared: Iterable[D], now_us: int) -> list[D]:
    return [one for one in declared if one.last_us > now_us - DECLARATION_EXPIRY_US]


def with_newest(
    declared: Iterable[D], is_same: Callable[[D], bool], declaration: Callable[[int], D], now_us: int
) -> tuple[D, ...]:
    """Return the declarations after one was made or repeated; ``declaration`` returns it with a time of the first one."""
    # One that was repeated while the clock was ahead expires five minutes from now, and a new one is newer than all.
    valid = [msgspec.structs.replace(one, last_us=min(one.last_us, now_us)) for one in _valid(declared, now_us)]
    newest_us = max((one.first_us for one in valid), default=0)
    first_us = next((one.first_us for one in valid if is_same(one)), max(now_us, newest_us + 1))
    others = [one for one in valid if not is_same(one)]
    return tuple(sorted([*others, declaration(first_us)], key=lambda one: one.first_us))


def effective_times(function: FunctionLimits, now_us: int) -> Times:
    """Return the times of new jobs: the newest declaration, as `effective`.

    If no worker has repeated any for five minutes, the last one still applies: jobs that nobody runs are late as well.
    """
    latest = newest_or_last(function.times, now_us)
    return NO_TIMES if latest is None else latest.times


def are_times_stale(function: FunctionLimits, times: Times, now_us: int) -> bool:
    """Return whether a declaration of times has to be written, as `is_stale`. Of a function without any, none is not written."""
    if times == NO_TIMES and not function.times:
        return False
    return is_declaration_stale((one for one in function.times if one.times == times), now_us)


def is_stale(function: FunctionLimits, limits: Limits, now_us: int) -> bool:
    """Return whether a declaration of limits has to be written, because it is new or will expire soon."""
    return is_declaration_stale((one for one in function.declared if one.limits == limits), now_us)


def is_declaration_stale(same: Iterable[Declared], now_us: int) -> bool:
    """Return whether a declaration has to be written, if these are equal to it."""
    return not any(now_us - DECLARATION_EXPIRY_US // 5 < one.last_us <= now_us + _CLOCKS_DIFFER_US for one in same)


LONGEST_WAIT_US: Final = 366 * 86_400 * 1_000_000
MAX_LIMIT: Final = 1_000_000_000
"""High enough for any limit; the product of two such numbers fits into the 64 bits of a store."""


def check(limits: Limits) -> None:
    """Raise UsageError with the name of the limit if one is invalid."""
    for name in ("concurrency", "concurrency_per_key"):
        number = getattr(limits, name)
        if number is not None and not 1 <= number <= MAX_LIMIT:
            raise UsageError(
                f"{name} must be from 1 to {MAX_LIMIT:,}; it is {number}; to let nothing run, pause the function"
            )
    if limits.uses_timeout_us and not limits.uses:
        raise UsageError("uses_timeout is how long a job waits for the resources in uses: give both")
    if not 0 <= limits.uses_timeout_us <= LONGEST_WAIT_US:
        raise UsageError("uses_timeout must be from 1 ms to 366 days")
    if limits.uses:
        check_lines(limits.uses)
        for line in limits.uses:
            check_name("the name of a resource", line.resource)
    for name in ("rate", "rate_per_key"):
        rate = getattr(limits, name)
        if rate is None:
            continue
        if not 1 <= rate.number <= 1_000_000:
            raise UsageError(f"{name} must allow from 1 to 1,000,000 starts in its time; it allows {rate.number}")
        if not 1_000 <= rate.per_us <= 366 * 86_400 * 1_000_000:
            raise UsageError(
                f"{name} must be for a time from 1 ms to 366 days; it is {format_duration(rate.per_us / 1e6)}"
            )
        if not 1 <= rate.burst <= 100_000:
            raise UsageError(f"{name} must allow a burst from 1 to 100,000 starts; it allows {rate.burst}")


class RateSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A number of starts in ``per`` seconds."""

    number: Annotated[Whole, about("The most starts in a period.")]
    per: Annotated[Seconds, about("The length of a period, in seconds.")] = 1.0
    burst: Annotated[Whole | None, about("The most starts at once. By default `number`.")] = None


class UseSpec(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Slots of a shared resource."""

    resource: Annotated[Text, about("The name of the resource.")]
    units: Annotated[Whole, about("The number of slots.")] = 1
    labels: Annotated[Labels, about("The labels that each item must have.")] = []


Uses = Annotated[list[UseSpec], msgspec.Meta(max_length=MAX_LINES)]


class LimitSpec(msgspec.Struct, forbid_unknown_fields=True):
    """The limits of a function."""

    concurrency: Whole | None = None
    concurrency_per_key: Whole | None = None
    rate: RateSpec | None = None
    rate_per_key: RateSpec | None = None
    uses: Uses | None = None
    uses_timeout: Seconds | None = None


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
        tuple(Line(use.resource, use.units, (*sorted({*use.labels}),)) for use in spec.uses or ()),
        0 if spec.uses_timeout is None else to_us(min(max(spec.uses_timeout, 0.001), 1e9)),
    )
    check(limits)
    return limits


def spec_of(limits: Limits) -> LimitSpec:
    """Return the external form of limits."""
    return LimitSpec(
        limits.concurrency,
        limits.concurrency_per_key,
        _rate_spec(limits.rate),
        _rate_spec(limits.rate_per_key),
        [UseSpec(line.resource, line.units, [*line.labels]) for line in limits.uses] or None,
        from_us(limits.uses_timeout_us) if limits.uses_timeout_us else None,
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
