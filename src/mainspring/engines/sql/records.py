"""Records about jobs: the lines that they log, and the series of their functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.engines.sql.statements import LARGEST
from mainspring.job_logs.model import Chunk
from mainspring.job_logs.service import AppendLogs, ReadLogs, SweepLogs
from mainspring.series import (
    SWEEP_ROWS,
    ReadNamespaceSeries,
    ReadSeries,
    Row,
    SaveSeries,
    decode_bucket,
    encode_bucket,
)
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.sql.statements import Handlers, Readers, Transaction
    from mainspring.storage.engine import Meter, Page

# ---- logs ----


async def _append(tx: Transaction, operations: Sequence[AppendLogs]) -> list[None]:
    await tx.sql.many("append_logs", [chunk for operation in operations for chunk in operation.chunks])
    await tx.sql.many("drop_logs", [pair for operation in operations for pair in operation.dropped])
    return [None] * len(operations)


async def _sweep(tx: Transaction, operations: Sequence[SweepLogs]) -> list[int]:
    return [await tx.sql.execute("sweep_logs", one.before, one.rows) for one in operations]


async def _read_logs(tx: Transaction, query: ReadLogs, meter: Meter) -> Page[Chunk]:
    statement, outside = ("read_logs_backward", LARGEST) if query.backward else ("read_logs", -1)

    async def behind(after: int | None, most: int) -> list[tuple[int, Chunk]]:
        place = outside if after is None else after
        found = await tx.sql.fetch(statement, query.job, query.namespace, place, query.attempt, query.levels, most)
        return [(row[0], Chunk._make(row)) for row in found]

    return await in_parts(query, meter, behind)


# ---- series ----


async def _save(tx: Transaction, operations: Sequence[SaveSeries]) -> list[None]:
    """Write buckets, and delete old ones. A group may write the same bucket twice: the later one counts."""
    rows = {row[:-1]: row.bucket for operation in operations for row in operation.series}
    await tx.sql.many("save_series", [(*key, encode_bucket(bucket)) for key, bucket in rows.items()])
    for step, at in {step: at for one in operations for step, at in one.oldest.items()}.items():
        await tx.sql.execute("sweep_series", step, at, SWEEP_ROWS)
    return [None] * len(operations)


async def _read(tx: Transaction, query: ReadSeries, meter: Meter) -> Page[Row]:
    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Row]]:
        place = after or (query.since, -1)
        found = await tx.sql.fetch("read_series", query.namespace, query.function, query.step, *place, most)
        return [
            ((at, term), Row(query.namespace, query.function, query.step, at, term, decode_bucket(bucket)))
            for at, term, bucket in found
        ]

    return await _with_nodes(tx, await in_parts(query, meter, behind))


async def _read_all(tx: Transaction, query: ReadNamespaceSeries, meter: Meter) -> Page[Row]:
    async def behind(after: tuple[int, bytes, int] | None, most: int) -> list[tuple[tuple[int, bytes, int], Row]]:
        place = after or (query.since, b"", -1)
        found = await tx.sql.fetch("read_namespace_series", query.namespace, query.step, *place, most)
        return [
            ((at, function, term), Row(query.namespace, function, query.step, at, term, decode_bucket(bucket)))
            for at, function, term, bucket in found
        ]

    return await _with_nodes(tx, await in_parts(query, meter, behind))


async def _with_nodes(tx: Transaction, page: Page[Row]) -> Page[Row]:
    await tx.load_nodes(group.job for row in page.items for group in row.bucket.errors.values())
    return page


HANDLERS: Final[Handlers] = {AppendLogs: _append, SweepLogs: _sweep, SaveSeries: _save}
READERS: Final[Readers] = {ReadLogs: _read_logs, ReadSeries: _read, ReadNamespaceSeries: _read_all}
