"""Records about jobs on PostgreSQL: the lines that they log, and the series of their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.postgres.transaction import LARGEST_ID, load_statements
from mainspring.job_logs.model import Chunk
from mainspring.job_logs.store import AppendLogs, ReadLogs, SweepLogs
from mainspring.series.model import Row, decode_bucket, encode_bucket
from mainspring.series.store import SWEEP_ROWS, ReadNamespaceSeries, ReadSeries, SaveSeries
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.storage.engine import Meter, Operation, Page, Query

LOGS_SQL: Final = load_statements("logs.sql")


async def append_logs(tx: Transaction, operations: Sequence[AppendLogs]) -> list[None]:
    """Write and delete chunks."""
    chunks = [chunk for operation in operations for chunk in operation.chunks]
    dropped = [pair for operation in operations for pair in operation.dropped]
    if chunks:
        await tx.connection.execute(LOGS_SQL["append_logs"], *zip(*chunks, strict=True))
    if dropped:
        await tx.connection.execute(LOGS_SQL["drop_logs"], *zip(*dropped, strict=True))
    return [None] * len(operations)


async def sweep_logs(tx: Transaction, operations: Sequence[SweepLogs]) -> list[int]:
    """Delete old chunks."""
    return [await tx.connection.fetchval(LOGS_SQL["sweep_logs"], one.before, one.rows) for one in operations]


async def read_logs(tx: Transaction, query: ReadLogs, meter: Meter) -> Page[Chunk]:
    """Read a page of chunks."""
    statement = LOGS_SQL["read_logs_backward" if query.backward else "read_logs"]
    outside = LARGEST_ID if query.backward else -1

    async def behind(after: int | None, most: int) -> list[tuple[int, Chunk]]:
        place = outside if after is None else after
        found = await tx.connection.fetch(
            statement, query.job, query.namespace, place, query.attempt, query.levels, most
        )
        return [(row[0], Chunk._make(row)) for row in found]

    return await in_parts(query, meter, behind)


LOG_HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]]] = {
    AppendLogs: append_logs,
    SweepLogs: sweep_logs,
}
LOG_READERS: Final[dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]] = {ReadLogs: read_logs}

SERIES_SQL: Final = load_statements("series.sql")


async def save_series(tx: Transaction, operations: Sequence[SaveSeries]) -> list[None]:
    """Write buckets, and delete old ones. A group may write the same bucket twice: the later one counts."""
    rows = {row[:-1]: row for operation in operations for row in operation.series}
    if rows:
        columns = zip(*((*key, encode_bucket(row.bucket)) for key, row in rows.items()), strict=True)
        await tx.connection.execute(SERIES_SQL["save_series"], *columns)
    oldest = {step: at for operation in operations for step, at in operation.oldest.items()}
    for step, at in oldest.items():
        await tx.connection.execute(SERIES_SQL["sweep_series"], step, at, SWEEP_ROWS)
    return [None] * len(operations)


async def read_series(tx: Transaction, query: ReadSeries, meter: Meter) -> Page[Row]:
    """Read a page of buckets. The nodes of the jobs in them are loaded: handles need both."""

    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Row]]:
        place = after or (query.since, -1)
        found = await tx.connection.fetch(
            SERIES_SQL["read_series"], query.namespace, query.function, query.step, *place, most
        )
        return [
            ((at, term), Row(query.namespace, query.function, query.step, at, term, decode_bucket(bucket)))
            for at, term, bucket in found
        ]

    return await _with_nodes(tx, await in_parts(query, meter, behind))


async def read_namespace_series(tx: Transaction, query: ReadNamespaceSeries, meter: Meter) -> Page[Row]:
    """Read a page of the buckets of a namespace, as `read` does."""

    async def behind(after: tuple[int, bytes, int] | None, most: int) -> list[tuple[tuple[int, bytes, int], Row]]:
        place = after or (query.since, b"", -1)
        found = await tx.connection.fetch(
            SERIES_SQL["read_namespace_series"], query.namespace, query.step, *place, most
        )
        return [
            ((at, function, term), Row(query.namespace, function, query.step, at, term, decode_bucket(bucket)))
            for at, function, term, bucket in found
        ]

    return await _with_nodes(tx, await in_parts(query, meter, behind))


async def _with_nodes(tx: Transaction, page: Page[Row]) -> Page[Row]:
    await tx.nodes.load(group.job for row in page.items for group in row.bucket.errors.values())
    return page


SERIES_HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]]] = {
    SaveSeries: save_series
}
SERIES_READERS: Final[dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]] = {
    ReadSeries: read_series,
    ReadNamespaceSeries: read_namespace_series,
}
