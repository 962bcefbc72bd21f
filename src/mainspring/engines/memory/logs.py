"""The logs of jobs in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.job_logs.store import AppendLogs, ReadLogs, SweepLogs
from mainspring.storage.query import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.engines.memory.tables import Tables
    from mainspring.job_logs.model import Chunk
    from mainspring.storage.operation import Operation
    from mainspring.storage.query import Meter, Page, Query


def append(tables: Tables, operation: AppendLogs) -> None:
    """Write and delete chunks."""
    for chunk in operation.chunks:
        tables.logs.setdefault(chunk.job, {})[chunk.id] = chunk
    for job_id, chunk_id in operation.dropped:
        _delete(tables, job_id, chunk_id)


def _delete(tables: Tables, job_id: int, chunk_id: int) -> None:
    chunks = tables.logs.get(job_id, {})
    chunks.pop(chunk_id, None)
    if not chunks:
        tables.logs.pop(job_id, None)


def sweep(tables: Tables, operation: SweepLogs) -> int:
    """Delete old chunks."""
    old = sorted(
        (chunk_id, job) for job, chunks in tables.logs.items() for chunk_id in chunks if chunk_id < operation.before
    )
    for chunk_id, job_id in old[: operation.rows]:
        _delete(tables, job_id, chunk_id)
    return len(old[: operation.rows])


async def read(tables: Tables, query: ReadLogs, meter: Meter) -> Page[Chunk]:
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


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {AppendLogs: append, SweepLogs: sweep}
READERS: Final[dict[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {ReadLogs: read}
