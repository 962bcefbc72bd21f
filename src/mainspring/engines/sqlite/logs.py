"""The logs of jobs on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.engines.sqlite.rows import LARGEST_ID
from mainspring.engines.sqlite.statements import SQL
from mainspring.job_logs.model import Chunk
from mainspring.job_logs.store import AppendLogs, ReadLogs, SweepLogs
from mainspring.storage.query import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Meter, Page, Query


def append(tx: Transaction, operations: Sequence[AppendLogs]) -> list[None]:
    """Write and delete chunks."""
    for operation in operations:
        tx.cursor.executemany(SQL["append_log"], operation.chunks)
        tx.cursor.executemany(SQL["drop_log"], operation.dropped)
    return [None] * len(operations)


def sweep(tx: Transaction, operations: Sequence[SweepLogs]) -> list[int]:
    """Delete old chunks."""
    deleted = []
    for operation in operations:
        tx.cursor.execute(SQL["sweep_logs"], (operation.before, operation.rows))
        deleted.append(tx.cursor.connection.changes())
    return deleted


async def read(tx: Transaction, query: ReadLogs, meter: Meter) -> Page[Chunk]:
    """Read a page of chunks."""
    statement = SQL["read_logs_backward" if query.backward else "read_logs"]
    outside = LARGEST_ID if query.backward else -1

    async def behind(after: int | None, most: int) -> list[tuple[int, Chunk]]:
        values = (query.job, query.namespace, outside if after is None else after, query.attempt, query.levels, most)
        return [(row[0], Chunk._make(row)) for row in tx.cursor.execute(statement, values)]

    return await in_parts(query, meter, behind)


HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]] = {
    AppendLogs: append,
    SweepLogs: sweep,
}
READERS: dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]] = {ReadLogs: read}
