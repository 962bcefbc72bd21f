"""The logs of jobs on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.postgres.rows import LARGEST_ID
from mainspring.engines.postgres.statements import load
from mainspring.job_logs.model import Chunk
from mainspring.job_logs.store import AppendLogs, ReadLogs, SweepLogs
from mainspring.storage.query import in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Meter, Page, Query

SQL: Final = load("logs.sql")


async def append(tx: Transaction, operations: Sequence[AppendLogs]) -> list[None]:
    """Write and delete chunks."""
    chunks = [chunk for operation in operations for chunk in operation.chunks]
    dropped = [pair for operation in operations for pair in operation.dropped]
    if chunks:
        await tx.connection.execute(SQL["append_logs"], *zip(*chunks, strict=True))
    if dropped:
        await tx.connection.execute(SQL["drop_logs"], *zip(*dropped, strict=True))
    return [None] * len(operations)


async def sweep(tx: Transaction, operations: Sequence[SweepLogs]) -> list[int]:
    """Delete old chunks."""
    return [await tx.connection.fetchval(SQL["sweep_logs"], one.before, one.rows) for one in operations]


async def read(tx: Transaction, query: ReadLogs, meter: Meter) -> Page[Chunk]:
    """Read a page of chunks."""
    statement = SQL["read_logs_backward" if query.backward else "read_logs"]
    outside = LARGEST_ID if query.backward else -1

    async def behind(after: int | None, most: int) -> list[tuple[int, Chunk]]:
        place = outside if after is None else after
        found = await tx.connection.fetch(
            statement, query.job, query.namespace, place, query.attempt, query.levels, most
        )
        return [(row[0], Chunk._make(row)) for row in found]

    return await in_parts(query, meter, behind)


HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]]] = {
    AppendLogs: append,
    SweepLogs: sweep,
}
READERS: Final[dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]] = {ReadLogs: read}
