"""Records about jobs in memory: the lines that they log, and the series of their functions."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from mainspring.job_logs.store import AppendLogs, ReadLogs, SweepLogs
from mainspring.series.store import SWEEP_ROWS, ReadNamespaceSeries, ReadSeries, SaveSeries
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.engines.memory.tables import Tables
    from mainspring.job_logs.model import Chunk
    from mainspring.series.model import Row
    from mainspring.storage.engine import Meter, Operation, Page, Query


def append_logs(tables: Tables, operation: AppendLogs) -> None:
    """Write and delete chunks."""
    for chunk in operation.chunks:
        tables.logs.setdefault(chunk.job, {})[chunk.id] = chunk
    for job_id, chunk_id in operation.dropped:
        _delete_logs(tables, job_id, chunk_id)


def _delete_logs(tables: Tables, job_id: int, chunk_id: int) -> None:
    chunks = tables.logs.get(job_id, {})
    chunks.pop(chunk_id, None)
    if not chunks:
        tables.logs.pop(job_id, None)


def sweep_logs(tables: Tables, operation: SweepLogs) -> int:
    """Delete old chunks."""
    old = sorted(
        (chunk_id, job) for job, chunks in tables.logs.items() for chunk_id in chunks if chunk_id < operation.before
    )
    for chunk_id, job_id in old[: operation.rows]:
        _delete_logs(tables, job_id, chunk_id)
    return len(old[: operation.rows])


async def read_logs(tables: Tables, query: ReadLogs, meter: Meter) -> Page[Chunk]:
    """Read a page of chunks."""
    kept = tables.logs.get(query.job, {})

    async def behind(after: int | None, most: int) -> list[tuple[int, Chunk]]:
        found = [
            (chunk_id, chunk)
            for chunk_id, chunk in sorted(kept.items(), reverse=query.backward)
            if (after is None or (chunk_id < after if query.backward else chunk_id > after))
            and chunk.namespace == query.namespace
            and query.attempt in {None, chunk.attempt}
            and chunk.levels & query.levels
        ]
        return found[:most]

    return await in_parts(query, meter, behind)


LOG_HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {
    AppendLogs: append_logs,
    SweepLogs: sweep_logs,
}
LOG_READERS: Final[dict[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
    ReadLogs: read_logs
}


def save_series(tables: Tables, operation: SaveSeries) -> None:
    """Write buckets, and delete old ones."""
    for row in operation.series:
        key = (row.namespace, row.function, row.step)
        tables.series.setdefault(key, {})[row.at, row.term] = deepcopy(row)
    old = [
        (key, place)
        for key, rows in tables.series.items()
        if (oldest := operation.oldest.get(key[2])) is not None
        for place in rows
        if place[0] < oldest
    ]
    for key, place in old[:SWEEP_ROWS]:
        del tables.series[key][place]


async def read_series(tables: Tables, query: ReadSeries, meter: Meter) -> Page[Row]:
    """Read a page of buckets."""
    rows = tables.series.get((query.namespace, query.function, query.step), {})

    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Row]]:
        places = sorted(place for place in rows if place > (after or (query.since, -1)))
        return [(place, deepcopy(rows[place])) for place in places[:most]]

    return await in_parts(query, meter, behind)


async def read_namespace_series(tables: Tables, query: ReadNamespaceSeries, meter: Meter) -> Page[Row]:
    """Read a page of the buckets of a namespace."""
    rows = {
        (row.at, row.function, row.term): row
        for (namespace, _, step), buckets in tables.series.items()
        if (namespace, step) == (query.namespace, query.step)
        for row in buckets.values()
        if row.at >= query.since
    }

    async def behind(after: tuple[int, bytes, int] | None, most: int) -> list[tuple[tuple[int, bytes, int], Row]]:
        places = sorted(place for place in rows if after is None or place > after)
        return [(place, deepcopy(rows[place])) for place in places[:most]]

    return await in_parts(query, meter, behind)


SERIES_HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {SaveSeries: save_series}
SERIES_READERS: Final[dict[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
    ReadSeries: read_series,
    ReadNamespaceSeries: read_namespace_series,
}
