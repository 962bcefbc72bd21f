"""Records about jobs on SQLite: the lines that they log, and the series of their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.engines.sqlite.statements import SQL
from mainspring.engines.sqlite.transaction import LARGEST_ID
from mainspring.job_logs.model import Chunk
from mainspring.job_logs.store import AppendLogs, ReadLogs, SweepLogs
from mainspring.series.model import Row, decode_bucket, encode_bucket
from mainspring.series.store import SWEEP_ROWS, ReadNamespaceSeries, ReadSeries, SaveSeries
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.storage.engine import Meter, Operation, Page, Query


def append_logs(tx: Transaction, operations: Sequence[AppendLogs]) -> list[None]:
    """Write and delete chunks."""
    for operation in operations:
        tx.cursor.executemany(SQL["append_log"], operation.chunks)
        tx.cursor.executemany(SQL["drop_log"], operation.dropped)
    return [None] * len(operations)


def sweep_logs(tx: Transaction, operations: Sequence[SweepLogs]) -> list[int]:
    """Delete old chunks."""
    deleted = []
    for operation in operations:
        tx.cursor.execute(SQL["sweep_logs"], (operation.before, operation.rows))
        deleted.append(tx.cursor.connection.changes())
    return deleted


async def read_logs(tx: Transaction, query: ReadLogs, meter: Meter) -> Page[Chunk]:
    """Read a page of chunks."""
    statement = SQL["read_logs_backward" if query.backward else "read_logs"]
    outside = LARGEST_ID if query.backward else -1

    async def behind(after: int | None, most: int) -> list[tuple[int, Chunk]]:
        values = (query.job, query.namespace, outside if after is None else after, query.attempt, query.levels, most)
        return [(row[0], Chunk._make(row)) for row in tx.cursor.execute(statement, values)]

    return await in_parts(query, meter, behind)


LOG_HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]] = {
    AppendLogs: append_logs,
    SweepLogs: sweep_logs,
}
LOG_READERS: dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]] = {
    ReadLogs: read_logs
}


def save_series(tx: Transaction, operations: Sequence[SaveSeries]) -> list[None]:
    """Write buckets, and delete old ones."""
    for operation in operations:
        tx.cursor.executemany(SQL["save_series"], ((*row[:-1], encode_bucket(row.bucket)) for row in operation.series))
        for step, oldest in operation.oldest.items():
            tx.cursor.execute(SQL["sweep_series"], (step, oldest, SWEEP_ROWS))
    return [None] * len(operations)


async def read_series(tx: Transaction, query: ReadSeries, meter: Meter) -> Page[Row]:
    """Read a page of buckets."""

    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Row]]:
        place = after or (query.since, -1)
        found = tx.cursor.execute(SQL["read_series"], (query.namespace, query.function, query.step, *place, most))
        return [
            ((at, term), Row(query.namespace, query.function, query.step, at, term, decode_bucket(bucket)))
            for at, term, bucket in found
        ]

    return await in_parts(query, meter, behind)


async def read_namespace_series(tx: Transaction, query: ReadNamespaceSeries, meter: Meter) -> Page[Row]:
    """Read a page of the buckets of a namespace."""

    async def behind(after: tuple[int, bytes, int] | None, most: int) -> list[tuple[tuple[int, bytes, int], Row]]:
        place = after or (query.since, b"", -1)
        found = tx.cursor.execute(SQL["read_namespace_series"], (query.namespace, query.step, *place, most))
        return [
            ((at, function, term), Row(query.namespace, function, query.step, at, term, decode_bucket(bucket)))
            for at, function, term, bucket in found
        ]

    return await in_parts(query, meter, behind)


SERIES_HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]] = {
    SaveSeries: save_series
}
SERIES_READERS: dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]] = {
    ReadSeries: read_series,
    ReadNamespaceSeries: read_namespace_series,
}
