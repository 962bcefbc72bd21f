"""The resources slice in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.resources import rules
from mainspring.resources import store as ops
from mainspring.resources.model import FunctionLimits, pool_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.memory.tables import Tables
    from mainspring.storage.operation import Operation


def save_limits(tables: Tables, operation: ops.SaveLimits) -> FunctionLimits:
    """Write the limits of a function; see ``SaveLimits``."""
    limits = operation.limits
    stored = tables.limits.get(limits.function, FunctionLimits(limits.function))
    if stored.version == limits.version:
        stored = tables.limits[limits.function] = msgspec.structs.replace(limits, version=limits.version + 1)
    return stored


def acquire(tables: Tables, operation: ops.Acquire) -> list[ops.Grant]:
    """Grant tokens and starts; see ``Acquire``."""
    return [_acquire(tables, operation.term, ask, operation.now_us) for ask in operation.asks]


def _acquire(tables: Tables, term: int, ask: ops.TokenRequest, now_us: int) -> ops.Grant:
    grant = ops.Grant()
    pool = (ask.function, ask.pool)
    if ask.limit:
        holdings = tables.tokens.setdefault(pool, {})
        before = holdings.pop(term, rules.Holding(0, 0, 0)).tokens
        own, claimants, short = rules.divide(
            holdings.values(), ask.limit, before, ask.tokens, now_us, ask.demand, waits=ask.waits
        )
        if own.wanted:
            holdings[term] = own
        grant = ops.Grant(own.tokens, claimants, short)
    if ask.rate is not None:
        rate, bucket = tables.buckets.get(pool, (ask.rate, rules.full(ask.rate, now_us)))
        if rate != ask.rate:
            bucket = rules.converted(rate, ask.rate, rules.refilled(rate, bucket, now_us))
        starts, bucket = rules.consume(ask.rate, bucket, now_us, ask.starts)
        tables.buckets[pool] = ask.rate, bucket
        grant = grant._replace(starts=starts, next_us=rules.next_us(ask.rate, bucket))
    return grant


def freed_functions(tables: Tables, group: Sequence[Operation]) -> set[bytes]:
    """Return the functions of which a group is about to return tokens that other nodes lack."""
    freed = set()
    for operation in group:
        if not isinstance(operation, ops.Acquire):
            continue
        for ask in operation.asks:
            holdings = tables.tokens.get((ask.function, ask.pool), {})
            own = holdings.get(operation.term)
            others = [holding for term, holding in holdings.items() if term != operation.term]
            if own is not None and rules.returns(own.tokens, ask.tokens, others, announced=ask.announced):
                freed.add(ask.function)
    return freed


def exhausted(tables: Tables, function: bytes, key: bytes, term: int, limit: int) -> bool:
    """Return whether other nodes than that of a term hold all tokens of a key."""
    holdings = tables.tokens.get((function, pool_of(key)), {})
    return sum(holding.tokens for holder, holding in holdings.items() if holder != term) >= limit


def end(tables: Tables, term: int) -> None:
    """Free the tokens of a term that has ended."""
    for holdings in tables.tokens.values():
        holdings.pop(term, None)


HANDLERS: dict[type[Operation], Callable[[Tables, Any], object]] = {
    ops.SaveLimits: save_limits,
    ops.Acquire: acquire,
}
