"""Streams in memory."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.memory.values import MemoryValues
from mainspring.jobs.model import State
from mainspring.storage.engine import run_synchronously
from mainspring.streams.model import write
from mainspring.streams.service import (
    MOST_BLOCKS,
    AppendItems,
    LookStreams,
    ReadBlocks,
    ReadHeads,
    SweepStreams,
)
from mainspring.values.model import sweep
from mainspring.values.service import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.engines.memory.queries import Readers
    from mainspring.engines.memory.tables import Tables
    from mainspring.storage.engine import Meter, Operation
    from mainspring.streams.model import Block, Head, Taken
    from mainspring.values.model import Swept


class MemoryStreams:
    """``streams.model.StreamTables``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._jobs = MemoryValues(tables)

    async def held(self, jobs: Collection[int], term: int) -> Collection[int]:
        return await self._jobs.held(jobs, term)

    async def heads(self, jobs: Collection[int]) -> Sequence[Head]:
        return [head for job in jobs for _, head in sorted(self._tables.streams.get(job, {}).items())]

    async def put(self, heads: Sequence[Head], blocks: Sequence[Block]) -> None:
        for head in heads:
            self._tables.streams.setdefault(head.job, {})[head.name] = head
        for block in blocks:
            self._tables.blocks.setdefault((block.job, block.name), []).append(block)

    async def valued(self, after: int, limit: int) -> Sequence[int]:
        return sorted(job for job in self._tables.streams if job > after)[:limit]

    async def existing(self, jobs: Collection[int]) -> Collection[int]:
        return await self._jobs.existing(jobs)

    async def forget(self, jobs: Collection[int]) -> None:
        for job in jobs:
            for name in self._tables.streams.pop(job):
                self._tables.blocks.pop((job, name), None)


def _append(tables: Tables, operation: AppendItems) -> list[Taken]:
    return run_synchronously(write(MemoryStreams(tables), operation.batches, operation.term))


def _sweep(tables: Tables, operation: SweepStreams) -> Swept:
    return run_synchronously(sweep(MemoryStreams(tables), operation.after, operation.rows))


async def _heads(tables: Tables, query: ReadHeads, _: Meter) -> list[Head]:
    return [head for _, head in sorted(tables.streams.get(query.job, {}).items())]


async def _blocks(tables: Tables, query: ReadBlocks, _: Meter) -> list[Block]:
    rows = tables.blocks.get((query.job, query.name), [])
    begin = max(bisect_right(rows, query.offset, key=lambda one: one.first) - 1, 0)
    found: list[Block] = []
    size = 0
    for block in rows[begin : begin + MOST_BLOCKS]:
        if size >= query.size:
            break
        size += len(block.items)
        if block.first + block.length > query.offset:
            found.append(block)
    return found


async def _look(tables: Tables, query: LookStreams, _: Meter) -> Seen:
    numbers = {
        job: sum(head.items for head in tables.streams[job].values()) for job in query.jobs if job in tables.streams
    }
    jobs = (tables.jobs.get(job) for job in query.jobs)
    return Seen(numbers, frozenset(job.id for job in jobs if job is not None and not State(job.state).ended))


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {AppendItems: _append, SweepStreams: _sweep}
READERS: Final[Readers] = {ReadHeads: _heads, ReadBlocks: _blocks, LookStreams: _look}
