"""The slice of operations on many jobs in memory."""

from __future__ import annotations

import time
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from mainspring.bulk import store
from mainspring.bulk import store as ops
from mainspring.bulk.rules import BulkOperation, Status, Touched, decode_touched
from mainspring.bulk.store import BulkUnit
from mainspring.engines.memory import jobs
from mainspring.engines.memory.schedules import MemorySchedules
from mainspring.schedules.unit import ScheduleUnit
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from mainspring.engines.memory.engine import Transaction
    from mainspring.engines.memory.tables import Tables
    from mainspring.event_log.interests import NewEvents
    from mainspring.jobs.model import Job
    from mainspring.queries import JobFilter
    from mainspring.schedules.rules import Backfill, Backfilled
    from mainspring.storage.engine import Meter, Operation, Page, Query


class MemoryBulk:
    """`bulk.store.BulkTables` in dictionaries."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._tables = tx.tables

    @property
    def term(self) -> int:
        return self._tx.term

    @property
    def events(self) -> NewEvents:
        return self._tables.new_events

    async def load(self, bulk_id: int) -> BulkOperation | None:
        return self._tables.operations.get(bulk_id)

    async def save(self, bulk: BulkOperation, touched: bytes | None = None) -> None:
        self._tables.operations[bulk.id] = bulk
        if touched is not None:
            self._tables.operation_steps.setdefault(bulk.id, {})[bulk.revision] = touched

    async def is_over(self, term: int) -> bool:
        """Return whether it is another term: only one node has these tables."""
        return term != self._tx.term

    async def jobs(self, ids: Sequence[int]) -> Mapping[int, Job]:
        return {job_id: copy(self._tables.jobs[job_id]) for job_id in ids if job_id in self._tables.jobs}

    async def perform(self, operations: Sequence[Operation]) -> Sequence[Any]:
        return [jobs.HANDLERS[type(operation)](self._tables, operation) for operation in operations]

    async def near(self, where: JobFilter, after: int, limit: int) -> None:
        """Read nothing ahead: no other thread reads these tables."""

    async def backfill(self, step: Backfill) -> Backfilled:
        return await ScheduleUnit(MemorySchedules(self._tx)).backfill(step)

    async def sweep(self, before_us: int, limit: int) -> int:
        tables = self._tables
        old = [
            bulk.id
            for bulk in tables.operations.values()
            if bulk.status is not Status.RUNNING and bulk.ended_us < before_us
        ]
        for bulk_id in old[:limit]:
            del tables.operations[bulk_id]
            tables.operation_steps.pop(bulk_id, None)
        return min(len(old), limit)


async def show(tables: Tables, query: ops.ShowBulk, _: Meter) -> BulkOperation | None:
    """Read an operation; see ``ShowBulk``."""
    bulk = tables.operations.get(query.id)
    return bulk if bulk is not None and bulk.namespace == query.namespace else None


async def list_bulk(tables: Tables, query: ops.ListBulk, meter: Meter) -> Page[BulkOperation]:
    """List operations; see ``ListBulk``."""

    async def before(after: int | None, most: int) -> list[tuple[int, BulkOperation]]:
        found = [
            (bulk_id, bulk)
            for bulk_id, bulk in tables.operations.items()
            if bulk.namespace == query.namespace and (after is None or bulk_id < after)
        ]
        return sorted(found, reverse=True, key=lambda one: one[0])[:most]

    return await in_parts(query, meter, before)


async def find(tables: Tables, query: ops.FindBulk, _: Meter) -> list[BulkOperation]:
    """Read the running operations; see ``FindBulk``."""
    del query
    return [bulk for bulk in tables.operations.values() if bulk.status is Status.RUNNING]


async def list_touched(tables: Tables, query: ops.ListTouched, meter: Meter) -> Page[Touched]:
    """List the jobs of an operation; see ``ListTouched``."""

    async def behind(after: int | None, most: int) -> list[tuple[int, Touched]]:
        steps = sorted(tables.operation_steps.get(query.id, {}).items())
        return [(revision, decode_touched(touched)) for revision, touched in steps if revision > (after or 0)][:most]

    return await in_parts(query, meter, behind)


class MemoryBulkSlice:
    """The slice on this engine: ``jobs.slices.Slice``. ``monotonic`` measures steps."""

    kind = store.KIND
    follows: Final = frozenset[Any]()
    writes = store.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Tables, Any], object]]] = {}
    readers: Final[Mapping[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
        ops.ShowBulk: show,
        ops.ListBulk: list_bulk,
        ops.FindBulk: find,
        ops.ListTouched: list_touched,
    }

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic

    def unit(self, tx: Transaction) -> BulkUnit:
        return BulkUnit(MemoryBulk(tx), self._monotonic)
