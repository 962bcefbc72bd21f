"""The slice of operations on many jobs on PostgreSQL.

One node works on an operation, under its term. Its groups are fenced, so the next node may take the operation over as soon as
that term has ended.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from mainspring.bulk import store
from mainspring.bulk import store as ops
from mainspring.bulk.rules import BulkOperation, Touched, decode_touched, operations_of, row_of
from mainspring.bulk.store import BulkUnit
from mainspring.engines.postgres import writer
from mainspring.engines.postgres.lists import look_up
from mainspring.engines.postgres.schedules import PostgresScheduleUnit
from mainspring.engines.postgres.transaction import LARGEST_ID, known_ids, load_statements
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.queries.filters import JobFilter
    from mainspring.schedules.rules import Backfill, Backfilled
    from mainspring.storage.engine import Meter, Operation, Page, Query

SQL: Final = load_statements("bulk.sql")


class PostgresBulk:
    """`bulk.store.BulkTables` inside an attempt to run a group."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._fetch = tx.connection.fetch

    @property
    def term(self) -> int:
        """The node's own term."""
        return self._tx.term

    async def load(self, bulk_id: int) -> BulkOperation | None:
        """Read an operation and lock it."""
        return _one(await self._fetch(SQL["load"], *known_ids([bulk_id])) if known_ids([bulk_id]) else ())

    async def save(self, bulk: BulkOperation, touched: bytes | None = None) -> None:
        """Write an operation."""
        await self._tx.connection.execute(SQL["save"], *row_of(bulk))
        if touched is not None:
            await self._tx.connection.execute(SQL["save_step"], bulk.id, bulk.revision, touched)

    async def is_over(self, term: int) -> bool:
        """Return whether a term has ended."""
        is_over: bool = await self._tx.connection.fetchval(SQL["is_over"], term)
        return is_over

    async def jobs(self, ids: Sequence[int]) -> Mapping[int, Job]:
        """Read jobs and lock them."""
        for statement in ("lock_live", "lock_dead"):
            await self._fetch(SQL[statement], known_ids(ids))
        return await look_up(self._tx, ids)

    async def perform(self, operations: Sequence[Operation]) -> Sequence[Any]:
        """Run operations on jobs."""
        return await writer.JOB_HANDLERS[type(operations[0])](self._tx, operations)

    async def near(self, where: JobFilter, after: int, limit: int) -> None:
        """Read nothing ahead: queries have a connection of their own."""

    async def backfill(self, step: Backfill) -> Backfilled:
        """Fire past fire times of a schedule."""
        return await PostgresScheduleUnit(self._tx).backfill(step)

    async def sweep(self, before_us: int, limit: int) -> int:
        """Delete old operations."""
        deleted: int = await self._tx.connection.fetchval(SQL["sweep_steps"], before_us, limit)
        if deleted < limit:
            deleted += await self._tx.connection.fetchval(SQL["sweep"], before_us, limit - deleted)
        return deleted


def _one(rows: Iterable[Record]) -> BulkOperation | None:
    found = operations_of(rows)
    return found[0] if found else None


async def show(tx: Transaction, query: ops.ShowBulk, _: Meter) -> BulkOperation | None:
    """Read an operation, with the nodes of its failed jobs; see ``ShowBulk``."""
    ids = known_ids([query.id])
    bulk = _one(await tx.connection.fetch(SQL["show"], *ids) if ids else ())
    if bulk is None or bulk.namespace != query.namespace:
        return None
    await _load_nodes(tx, [bulk])
    return bulk


async def _load_nodes(tx: Transaction, bulks: Iterable[BulkOperation]) -> None:
    """Load the nodes of the jobs in the failures: handles need them."""
    await tx.nodes.load(failure.job for bulk in bulks for failure in bulk.progress.failures)


async def list_bulk(tx: Transaction, query: ops.ListBulk, meter: Meter) -> Page[BulkOperation]:
    """List operations; see ``ListBulk``."""

    async def before(after: int | None, most: int) -> list[tuple[int, BulkOperation]]:
        last = LARGEST_ID if after is None else min(after, LARGEST_ID)
        found = operations_of(await tx.connection.fetch(SQL["list"], query.namespace, last, most))
        return [(bulk.id, bulk) for bulk in found]

    page = await in_parts(query, meter, before)
    await _load_nodes(tx, page.items)
    return page


async def find(tx: Transaction, query: ops.FindBulk, _: Meter) -> list[BulkOperation]:
    """Read the running operations that this node works on, or could; see ``FindBulk``."""
    return operations_of(await tx.connection.fetch(SQL["find"], query.term))


async def list_touched(tx: Transaction, query: ops.ListTouched, meter: Meter) -> Page[Touched]:
    """List the jobs of an operation; see ``ListTouched``."""

    async def behind(after: int | None, most: int) -> list[tuple[int, Touched]]:
        found = await tx.connection.fetch(SQL["steps"], query.id, after or 0, most)
        return [(revision, decode_touched(touched)) for revision, touched in found]

    page = await in_parts(query, meter, behind)
    await tx.nodes.load(job_id for touched in page.items for ids in touched.values() for job_id in ids)
    return page


class PostgresBulkSlice:
    """The slice on this engine: ``jobs.slices.Slice``. ``monotonic`` measures steps."""

    kind = store.KIND
    follows: Final = frozenset[Any]()
    writes = store.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]]] = {}
    readers: Final[Mapping[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]] = {
        ops.ShowBulk: show,
        ops.ListBulk: list_bulk,
        ops.FindBulk: find,
        ops.ListTouched: list_touched,
    }

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic

    def unit(self, tx: Transaction) -> BulkUnit:
        """Begin a unit of work."""
        return BulkUnit(PostgresBulk(tx), self._monotonic)
