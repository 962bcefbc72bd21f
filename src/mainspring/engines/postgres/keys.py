"""Claims that take turns between the jobs' keys."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from mainspring.engines.postgres import rows
from mainspring.engines.postgres.claiming import bitmap
from mainspring.engines.postgres.statements import load
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State, read_options
from mainspring.resources.model import pool_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction

_SQL = load("resources.sql")
_PENDING, _LEASED = int(State.PENDING), int(State.LEASED)
_TURN, _PLACE = 20, 21
"""The indexes of these columns in the rows of the claims."""
_PRIORITIES = (0, 1, 2)


async def claim_by_key(tx: Transaction, operations: Sequence[ops.ClaimByKey]) -> list[ops.ClaimedByKey]:
    """Lease due jobs, taking turns between their keys; see ``ClaimByKey``."""
    await tx.functions.load({operation.function for operation in operations})
    return [await _claim(tx, operation) for operation in operations]


async def _claim(tx: Transaction, operation: ops.ClaimByKey) -> ops.ClaimedByKey:
    function = tx.functions.numbers.get(operation.function)
    if function is None or operation.limit <= 0:
        return ops.ClaimedByKey([], operation.after, more=False)
    keyed = tx.memory(rows.Keyed)
    if function not in keyed:
        # Other nodes may claim this function without keys. From now on jobs without a key are stored under the empty key.
        keyed.add(function)
    most = min(operation.limit + len(operation.enough) + 1, ops.KEYS_PER_CLAIM)
    met, more = await _next_keys(tx, function, operation, most)
    exhausted = await _exhausted(tx, function, operation, met)
    if exhausted and any(len(keys) == most < ops.KEYS_PER_CLAIM for keys in met.values()):
        # Keys that others run do not hide those behind them.
        met, more = await _next_keys(tx, function, operation, ops.KEYS_PER_CLAIM)
        exhausted = await _exhausted(tx, function, operation, met)
    without = operation.enough | exhausted
    claimed: list[Job] = []
    after = list(operation.after)
    for priority in _PRIORITIES:
        left = operation.limit - len(claimed)
        if not left:
            more = True
            break
        turns = [key for key in met[priority] if key not in without]
        claimed += (jobs := await _claim_of_keys(tx, function, operation, priority, turns, left))
        if met[priority]:
            after[priority] = jobs[-1].key if len(jobs) == left else met[priority][-1]
        left = min(left - len(jobs), operation.per_key - sum(job.key == b"" for job in jobs))
        if left > 0 and b"" not in without:
            claimed += await _claim_of_none(tx, function, operation, priority, left)
    more = more or len(claimed) >= operation.limit
    skipped = operation.enough.intersection(chain.from_iterable(met.values()))
    return ops.ClaimedByKey(claimed, (after[0], after[1], after[2]), more, skipped)


async def _exhausted(
    tx: Transaction, function: int, operation: ops.ClaimByKey, met: dict[int, list[bytes]]
) -> frozenset[bytes]:
    """Return the keys whose tokens other nodes hold."""
    if operation.concurrency is None:
        return frozenset()
    keys = {b"", *chain.from_iterable(met.values())} - operation.enough
    pools = sorted(pool_of(key) for key in keys)
    found = await tx.connection.fetch(_SQL["exhausted"], function, pools, operation.term, operation.concurrency)
    return frozenset(pool[1:] for (pool,) in found)


async def _next_keys(
    tx: Transaction, function: int, operation: ops.ClaimByKey, most: int
) -> tuple[dict[int, list[bytes]], bool]:
    """Return at most ``most`` keys of each priority in the order of their turns, and whether a claim may visit no more."""
    met: dict[int, list[bytes]] = {priority: [] for priority in _PRIORITIES}
    behind = [b"" if key is None else rows.key_column(key) for key in operation.after]
    await _fill(tx, function, met, list(_PRIORITIES), behind, [None] * 3, most)
    wrapped = [priority for priority in _PRIORITIES if behind[priority] and len(met[priority]) < most]
    if wrapped:
        await _fill(tx, function, met, wrapped, [b""] * len(wrapped), [behind[priority] for priority in wrapped], most)
    return met, any(len(keys) >= ops.KEYS_PER_CLAIM for keys in met.values())


async def _fill(
    tx: Transaction,
    function: int,
    met: dict[int, list[bytes]],
    priorities: list[int],
    after: list[bytes],
    upto: Sequence[bytes | None],
    most: int,
) -> None:
    for priority, key in await tx.connection.fetch(_SQL["keys"], function, priorities, after, upto, most):
        if len(met[priority]) < most:
            met[priority].append(key[1:])


async def _claim_of_keys(
    tx: Transaction, function: int, operation: ops.ClaimByKey, priority: int, keys: list[bytes], most: int
) -> list[Job]:
    if not keys:
        return []
    return await _claimed(
        tx,
        function,
        await tx.connection.fetch(
            _SQL["claim_of_keys"],
            operation.term,
            function,
            [priority] * len(keys),
            [rows.key_column(key) for key in keys],
            operation.per_key,
            most,
            None if operation.slots is None else bitmap(operation.slots),
            operation.overdue_us,
        ),
    )


async def _claim_of_none(
    tx: Transaction, function: int, operation: ops.ClaimByKey, priority: int, most: int
) -> list[Job]:
    return await _claimed(
        tx,
        function,
        await tx.connection.fetch(
            _SQL["claim_of_none"],
            operation.term,
            function,
            priority,
            most,
            None if operation.slots is None else bitmap(operation.slots),
            operation.overdue_us,
        ),
    )


async def _claimed(tx: Transaction, function: int, records: Sequence[Record]) -> list[Job]:
    ordered = sorted(records, key=lambda record: (record[_TURN], record[_PLACE]))
    jobs = await rows.stored(tx, ordered, read_options)
    for job in jobs:
        tx.count(function, _PENDING, job.priority, -1)
        tx.count(function, _LEASED, job.priority, 1)
    return jobs
