"""The rows of streams, and the operations on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.sql.values import ValueRows
from mainspring.streams.model import Block, Head, Taken, write
from mainspring.streams.service import (
    MOST_BLOCKS,
    AppendItems,
    LookStreams,
    ReadBlocks,
    ReadHeads,
    SweepStreams,
)
from mainspring.values.model import Swept, sweep
from mainspring.values.service import Seen

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mainspring.engines.sql.statements import Handlers, Readers, Statements, Transaction
    from mainspring.storage.engine import Meter


class StreamRows:
    """``streams.model.StreamTables``."""

    def __init__(self, tx: Any) -> None:
        self._sql: Statements = tx.sql
        self._jobs = ValueRows(tx)

    async def held(self, jobs: Collection[int], term: int) -> Collection[int]:
        return await self._jobs.held(jobs, term)

    async def heads(self, jobs: Collection[int]) -> Sequence[Head]:
        return [Head(*row) for row in await self._sql.fetch("stream_heads", self._sql.among(jobs))]

    async def put(self, heads: Sequence[Head], blocks: Sequence[Block]) -> None:
        await self._sql.many("put_stream_heads", heads)
        if blocks:
            await self._sql.many("add_stream_blocks", blocks)

    async def valued(self, after: int, limit: int) -> Sequence[int]:
        return [job for (job,) in await self._sql.fetch("streamed_jobs", after, limit)]

    async def existing(self, jobs: Collection[int]) -> Collection[int]:
        return await self._jobs.existing(jobs)

    async def forget(self, jobs: Collection[int]) -> None:
        await self._sql.execute("forget_stream_blocks", self._sql.among(jobs))
        await self._sql.execute("forget_stream_heads", self._sql.among(jobs))


async def _append(tx: Any, operations: Sequence[AppendItems]) -> list[list[Taken]]:
    """Store the items of all operations of a term together, whatever number of jobs they have."""
    rows, taken = StreamRows(tx), dict[int, list[Taken]]()
    for term in dict.fromkeys(one.term for one in operations):
        mine = [one for one in operations if one.term == term]
        outcomes = await write(rows, [batch for one in mine for batch in one.batches], term)
        for one in mine:
            taken[id(one)], outcomes = outcomes[: len(one.batches)], outcomes[len(one.batches) :]
    return [taken[id(one)] for one in operations]


async def _sweep(tx: Any, operations: Sequence[SweepStreams]) -> list[Swept]:
    return [await sweep(StreamRows(tx), one.after, one.rows) for one in operations]


async def _heads(tx: Transaction, query: ReadHeads, _: Meter) -> list[Head]:
    return [Head(*row) for row in await tx.sql.fetch("stream_heads", tx.sql.among((query.job,)))]


async def _blocks(tx: Transaction, query: ReadBlocks, _: Meter) -> list[Block]:
    rows = await tx.sql.fetch("blocks_of_stream", query.job, query.name, query.offset, MOST_BLOCKS, query.size)
    blocks = sorted(Block(*row) for row in rows)
    return [block for block in blocks if block.first + block.length > query.offset]


async def _look(tx: Transaction, query: LookStreams, _: Meter) -> Seen:
    jobs = tx.sql.among(query.jobs)
    numbers = dict(await tx.sql.fetch("stream_lengths", jobs))
    return Seen(numbers, frozenset(job for (job,) in await tx.sql.fetch("live_jobs", jobs)))


HANDLERS: Final[Handlers] = {AppendItems: _append, SweepStreams: _sweep}
READERS: Final[Readers] = {ReadHeads: _heads, ReadBlocks: _blocks, LookStreams: _look}
