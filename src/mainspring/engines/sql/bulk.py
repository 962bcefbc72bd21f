"""Operations on many jobs: their tables, and the slice with its queries.

One node works on an operation, under its term. On a shared store its groups are fenced, so the next node may take the operation
over as soon as that term has ended.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from mainspring.bulk import store
from mainspring.bulk.rules import BulkOperation, Touched, decode_touched, operations_of, row_of
from mainspring.engines.sql.statements import LARGEST
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.engines.sql.statements import Handlers, Readers, Statements, Transaction
    from mainspring.event_log.interests import NewEvents
    from mainspring.storage.engine import Meter, Page


class BulkRows:
    """`bulk.store.BulkTables` in a group. A class of each engine adds what concerns jobs, terms and schedules."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self._sql: Statements = tx.sql
        self.term: int = tx.term
        """The node's own term."""
        self.events: NewEvents = tx.events

    async def load(self, bulk_id: int) -> BulkOperation | None:
        return await _one(self._sql, "lock_operation", bulk_id)

    async def save(self, bulk: BulkOperation, touched: bytes | None = None) -> None:
        await self._sql.execute("save_operation", *row_of(bulk))
        if touched is not None:
            await self._sql.execute("save_operation_step", bulk.id, bulk.revision, touched)

    async def sweep(self, before_us: int, limit: int) -> int:
        deleted = await self._sql.execute("sweep_operation_steps", before_us, limit)
        if deleted < limit:
            deleted += await self._sql.execute("sweep_operations", before_us, limit - deleted)
        return deleted


async def _one(sql: Statements, name: str, bulk_id: int) -> BulkOperation | None:
    found = operations_of(await sql.fetch(name, bulk_id) if bulk_id <= LARGEST else ())
    return found[0] if found else None


async def _show(tx: Transaction, query: store.ShowBulk, _: Meter) -> BulkOperation | None:
    bulk = await _one(tx.sql, "operation", query.id)
    if bulk is None or bulk.namespace != query.namespace:
        return None
    await _load_nodes(tx, [bulk])
    return bulk


async def _load_nodes(tx: Transaction, bulks: Iterable[BulkOperation]) -> None:
    await tx.load_nodes(failure.job for bulk in bulks for failure in bulk.progress.failures)


async def _list(tx: Transaction, query: store.ListBulk, meter: Meter) -> Page[BulkOperation]:
    async def before(after: int | None, most: int) -> list[tuple[int, BulkOperation]]:
        last = LARGEST if after is None else min(after, LARGEST)
        found = operations_of(await tx.sql.fetch("operations", query.namespace, last, most))
        return [(bulk.id, bulk) for bulk in found]

    page = await in_parts(query, meter, before)
    await _load_nodes(tx, page.items)
    return page


async def _find(tx: Transaction, query: store.FindBulk, _: Meter) -> list[BulkOperation]:
    return operations_of(await tx.sql.fetch("running_operations", query.term))


async def _list_touched(tx: Transaction, query: store.ListTouched, meter: Meter) -> Page[Touched]:
    async def behind(after: int | None, most: int) -> list[tuple[int, Touched]]:
        found = await tx.sql.fetch("operation_steps", query.id, after or 0, most)
        return [(revision, decode_touched(touched)) for revision, touched in found]

    page = await in_parts(query, meter, behind)
    await tx.load_nodes(job_id for touched in page.items for ids in touched.values() for job_id in ids)
    return page


class BulkSlice:
    """The slice: ``jobs.slices.Slice``. ``monotonic`` measures steps."""

    kind = store.KIND
    follows: Final = frozenset[Any]()
    writes = store.WRITES
    handlers: Final[Handlers] = {}
    readers: Final[Readers] = {
        store.ShowBulk: _show,
        store.ListBulk: _list,
        store.FindBulk: _find,
        store.ListTouched: _list_touched,
    }

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
