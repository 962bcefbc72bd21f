"""Series on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.postgres.statements import load
from mainspring.series.model import Row, decode_bucket, encode_bucket
from mainspring.series.store import SWEEP_ROWS, ReadNamespaceSeries, ReadSeries, SaveSeries
from mainspring.storage.query import in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Meter, Page, Query

SQL: Final = load("series.sql")


async def save(tx: Transaction, operations: Sequence[SaveSeries]) -> list[None]:
    """Write buckets, and delete old ones. A group may write the same bucket twice: the later one counts."""
    rows = {row[:-1]: row for operation in operations for row in operation.series}
    if rows:
        columns = zip(*((*key, encode_bucket(row.bucket)) for key, row in rows.items()), strict=True)
        await tx.connection.execute(SQL["save_series"], *columns)
    oldest = {step: at for operation in operations for step, at in operation.oldest.items()}
    for step, at in oldest.items():
        await tx.connection.execute(SQL["sweep_series"], step, at, SWEEP_ROWS)
    return [None] * len(operations)


async def read(tx: Transaction, query: ReadSeries, meter: Meter) -> Page[Row]:
    """Read a page of buckets. The nodes of the jobs in them are loaded: handles need both."""

    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Row]]:
        place = after or (query.since, -1)
        found = await tx.connection.fetch(SQL["read_series"], query.namespace, query.function, query.step, *place, most)
        return [
            ((at, term), Row(query.namespace, query.function, query.step, at, term, decode_bucket(bucket)))
            for at, term, bucket in found
        ]

    return await _with_nodes(tx, await in_parts(query, meter, behind))


async def read_namespace(tx: Transaction, query: ReadNamespaceSeries, meter: Meter) -> Page[Row]:
    """Read a page of the buckets of a namespace, as `read` does."""

    async def behind(after: tuple[int, bytes, int] | None, most: int) -> list[tuple[tuple[int, bytes, int], Row]]:
        place = after or (query.since, b"", -1)
        found = await tx.connection.fetch(SQL["read_namespace_series"], query.namespace, query.step, *place, most)
        return [
            ((at, function, term), Row(query.namespace, function, query.step, at, term, decode_bucket(bucket)))
            for at, function, term, bucket in found
        ]

    return await _with_nodes(tx, await in_parts(query, meter, behind))


async def _with_nodes(tx: Transaction, page: Page[Row]) -> Page[Row]:
    await tx.nodes.load(group.job for row in page.items for group in row.bucket.errors.values())
    return page


HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]]] = {
    SaveSeries: save
}
READERS: Final[dict[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]] = {
    ReadSeries: read,
    ReadNamespaceSeries: read_namespace,
}
