"""Due times and expiry times: scheduled jobs become pending, late ones expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres.cancelling import ended
from mainspring.engines.postgres.floors import COMMITTED_AFTER, Floors
from mainspring.engines.postgres.rows import SQL
from mainspring.jobs import store as ops
from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.floors import Floor
    from mainspring.engines.postgres.transaction import Transaction

_SCHEDULED, _PENDING = int(State.SCHEDULED), int(State.PENDING)


async def wake(tx: Transaction, operations: Sequence[ops.Wake]) -> list[ops.Woken]:
    """Make due jobs pending and expire late ones; see ``Wake``."""
    return [await _wake(tx, operation) for operation in operations]


async def _wake(tx: Transaction, operation: ops.Wake) -> ops.Woken:
    floors = tx.memory(Floors)
    # A node whose clock is ahead fires nothing early; one whose clock is behind leaves it to the others.
    store_us = await tx.connection.fetchval(SQL["now"])
    now_us = min(operation.now_us, store_us)
    late = await _scan(tx, floors.expiring, "expire", now_us, operation.rows, lambda row: row[7])
    expired = await ended(tx, late)
    woken = await _scan(tx, floors.due, "due", now_us, operation.rows, lambda row: row[3])
    due: dict[tuple[bytes, int], int] = {}
    await tx.functions.load_keys({row[0] for row in woken})
    for function, priority, place, _ in woken:
        name = tx.functions.keys[function]
        due[name, priority] = due.get((name, priority), 0) + 1
        tx.count(function, _SCHEDULED, priority, -1)
        tx.count(function, _PENDING, priority, 1)
        tx.pending(name)
        floors.note_returned(function, priority, place)
    next_us = await next_time(tx)
    if next_us:
        next_us += operation.now_us - now_us  # in the node's time
    return ops.Woken(due, expired, next_us)


async def _scan(
    tx: Transaction, floor: Floor, statement: str, now_us: int, limit: int, time_of: Callable[[Record], int]
) -> list[Record]:
    """Take the rows that are due by now; ``floors`` gives the first place."""
    clock = tx.memory(Floors).clock
    began = clock()
    whole, (place,) = floor.begin(began)
    found = await tx.connection.fetch(SQL[statement], now_us, place, limit)
    if whole:
        floor.scans.note_cost(began, clock() - began)
    if floor.scans.slow:
        after = max(map(time_of, found)) if len(found) == limit else now_us - round(COMMITTED_AFTER * 1_000_000)
        floor.rise(after)
        tx.after_rollback(floor.forget)
    return found


async def next_time(tx: Transaction) -> int:
    """Return the time of the next due or expiring job, 0 if there is none."""
    floors = tx.memory(Floors)
    (times,) = await tx.connection.fetch(SQL["next"], floors.due.place, floors.expiring.place)
    return min((time for time in times if time is not None), default=0)
