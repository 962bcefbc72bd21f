"""Series on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.engines.sqlite.statements import SQL
from mainspring.series.model import Row, decode_bucket, encode_bucket
from mainspring.series.store import SWEEP_ROWS, ReadNamespaceSeries, ReadSeries, SaveSeries
from mainspring.storage.query import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Meter, Page, Query


def save(tx: Transaction, operations: Sequence[SaveSeries]) -> list[None]:
    """Write buckets, and delete old ones."""
    for operation in operations:
        tx.cursor.executemany(SQL["save_series"], ((*row[:-1], encode_bucket(row.bucket)) for row in operation.series))
        for step, oldest in operation.oldest.items():
            tx.cursor.execute(SQL["sweep_series"], (step, oldest, SWEEP_ROWS))
    return [None] * len(operations)


async def read(tx: Transaction, query: ReadSeries, meter: Meter) -> Page[Row]:
    """Read a page of buckets."""

    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Row]]:
        place = after or (query.since, -1)
        found = tx.cursor.execute(SQL["read_series"], (query.namespace, query.function, query.step, *place, most))
        return [
            ((at, term), Row(query.namespace, query.function, query.step, at, term, decode_bucket(bucket)))
            for at, term, bucket in found
        ]

    return await in_parts(query, meter, behind)


async def read_namespace(tx: Transaction, query: ReadNamespaceSeries, meter: Meter) -> Page[Row]:
    """Read a page of the buckets of a namespace."""

    async def behind(after: tuple[int, bytes, int] | None, most: int) -> list[tuple[tuple[int, bytes, int], Row]]:
        place = after or (query.since, b"", -1)
        found = tx.cursor.execute(SQL["read_namespace_series"], (query.namespace, query.step, *place, most))
        return [
            ((at, function, term), Row(query.namespace, function, query.step, at, term, decode_bucket(bucket)))
            for at, function, term, bucket in found
        ]

    return await in_parts(query, meter, behind)


HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]] = {SaveSeries: save}
READERS: dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]] = {
    ReadSeries: read,
    ReadNamespaceSeries: read_namespace,
}
