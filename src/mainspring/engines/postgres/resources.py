"""The resources slice on PostgreSQL.

Groups take turns in a pool: they lock a row for its hash, in the rows' order, until they end. So the sum of the nodes' tokens is
right without a row that all of them would have to update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.engines.postgres.statements import load
from mainspring.resources import rules
from mainspring.resources import store as ops
from mainspring.resources.model import FunctionLimits, Rate, decode_limits, encode_limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.storage.operation import Operation

SQL = load("resources.sql")

Pool = tuple[int, bytes]
"""A function's number, and the name of one of its pools."""


async def save_limits(tx: Transaction, operations: Sequence[ops.SaveLimits]) -> list[FunctionLimits]:
    """Write the limits of functions; see ``SaveLimits``."""
    await tx.functions.ensure({operation.limits.function for operation in operations})
    outcomes: dict[int, FunctionLimits] = {}
    for index in sorted(range(len(operations)), key=lambda at: operations[at].limits.function):
        limits = operations[index].limits
        function = tx.functions.numbers[limits.function]
        wanted = msgspec.structs.replace(limits, version=limits.version + 1)
        row = await tx.connection.fetchrow(SQL["save_limits"], function, wanted.version, encode_limits(wanted))
        row = row or await tx.connection.fetchrow(SQL["limits_of"], function)
        assert row is not None
        outcomes[index] = decode_limits(row[0], limits.function, row[1])
    return [outcomes[index] for index in range(len(operations))]


async def acquire(tx: Transaction, operations: Sequence[ops.Acquire]) -> list[list[ops.Grant]]:
    """Grant tokens and starts; see ``Acquire``. A group needs a handful of statements, whatever the number of its requests."""
    await tx.functions.ensure({ask.function for operation in operations for ask in operation.asks})
    pools = sorted({_pool(tx, ask) for operation in operations for ask in operation.asks})
    if not pools:
        return [[] for _ in operations]
    columns = [pool[0] for pool in pools], [pool[1] for pool in pools]
    division = _Division(await tx.connection.fetchval(SQL["lock_pools"], *columns))
    for function, pool, term, *holding in await tx.connection.fetch(SQL["holdings"], *columns):
        division.holdings.setdefault((function, pool), {})[term] = rules.Holding(*holding)
    for function, pool, number, per_us, burst, *bucket in await tx.connection.fetch(SQL["buckets"], *columns):
        division.buckets[function, pool] = Rate(number, per_us, burst), rules.Bucket(*bucket)
    outcomes = [[division.grant(_pool(tx, ask), op.term, ask) for ask in op.asks] for op in operations]
    await division.write(tx)
    for function in division.freed:
        tx.pending(function)
    return outcomes


def _pool(tx: Transaction, ask: ops.TokenRequest) -> Pool:
    return tx.functions.numbers[ask.function], ask.pool


class _Division:
    """The pools that a group requests tokens of, with the requests so far applied."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self.holdings: dict[Pool, dict[int, rules.Holding]] = {}
        self.buckets: dict[Pool, tuple[Rate, rules.Bucket]] = {}
        self._held: dict[tuple[Pool, int], rules.Holding] = {}
        self._filled: set[Pool] = set()
        self.freed: set[bytes] = set()
        """Functions of which this group returned tokens that other nodes lack."""

    def grant(self, pool: Pool, term: int, ask: ops.TokenRequest) -> ops.Grant:
        """Return the grant for a request."""
        now_us = self._now_us
        grant = ops.Grant()
        if ask.limit:
            holdings = self.holdings.setdefault(pool, {})
            before = holdings.pop(term, rules.Holding(0, 0, 0)).tokens
            if rules.returns(before, ask.tokens, holdings.values(), announced=ask.announced):
                self.freed.add(ask.function)
            own, claimants, short = rules.divide(
                holdings.values(), ask.limit, before, ask.tokens, now_us, ask.demand, waits=ask.waits
            )
            holdings[term] = self._held[pool, term] = own
            grant = ops.Grant(own.tokens, claimants, short)
        if ask.rate is not None:
            rate, bucket = self.buckets.get(pool, (ask.rate, rules.full(ask.rate, now_us)))
            if rate != ask.rate:
                bucket = rules.converted(rate, ask.rate, rules.refilled(rate, bucket, now_us))
            starts, bucket = rules.consume(ask.rate, bucket, now_us, ask.starts)
            self.buckets[pool] = ask.rate, bucket
            self._filled.add(pool)
            grant = grant._replace(starts=starts, next_us=rules.next_us(ask.rate, bucket))
        return grant

    async def write(self, tx: Transaction) -> None:
        """Write the changes."""
        held = sorted(entry for entry, own in self._held.items() if own.wanted)
        returned = sorted(entry for entry, own in self._held.items() if not own.wanted)
        if held:
            own = [self._held[entry] for entry in held]
            await tx.connection.fetch(
                SQL["hold"],
                *_columns(held),
                [one.tokens for one in own],
                [one.wanted for one in own],
                [one.asked_us for one in own],
            )
        if returned:
            await tx.connection.fetch(SQL["let_go"], *_columns(returned))
        if self._filled:
            pools = sorted(self._filled)
            rates = [self.buckets[pool][0] for pool in pools]
            levels = [self.buckets[pool][1] for pool in pools]
            await tx.connection.fetch(
                SQL["fill"],
                [pool[0] for pool in pools],
                [pool[1] for pool in pools],
                [rate.number for rate in rates],
                [rate.per_us for rate in rates],
                [rate.burst for rate in rates],
                [bucket.level for bucket in levels],
                [bucket.updated_us for bucket in levels],
            )


def _columns(entries: list[tuple[Pool, int]]) -> tuple[list[int], list[bytes], list[int]]:
    return [pool[0] for pool, _ in entries], [pool[1] for pool, _ in entries], [term for _, term in entries]


HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]]] = {
    ops.SaveLimits: save_limits,
    ops.Acquire: acquire,
}
