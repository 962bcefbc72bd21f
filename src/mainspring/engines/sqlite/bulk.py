"""The slice of operations on many jobs on SQLite."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from mainspring.bulk import store
from mainspring.bulk import store as ops
from mainspring.bulk.rules import BulkOperation, Touched, decode_touched, operations_of, row_of
from mainspring.bulk.store import BulkUnit
from mainspring.engines.sqlite import jobs
from mainspring.engines.sqlite.jobs import find_job
from mainspring.engines.sqlite.queries import near
from mainspring.engines.sqlite.schedules import SqliteSchedules
from mainspring.engines.sqlite.statements import SQL
from mainspring.engines.sqlite.transaction import LARGEST_ID
from mainspring.queries.lists import QueryJobs
from mainspring.schedules.unit import ScheduleUnit
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.queries.filters import JobFilter
    from mainspring.schedules.rules import Backfill, Backfilled
    from mainspring.storage.engine import Meter, Operation, Page, Query


class SqliteBulk:
    """`bulk.store.BulkTables` inside the open transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._jobs: dict[int, Job] = {}
        """The jobs of the step."""

    @property
    def term(self) -> int:
        """The node's own term."""
        return self._tx.term

    async def load(self, bulk_id: int) -> BulkOperation | None:
        """Read an operation."""
        return _one(self._tx, bulk_id)

    async def save(self, bulk: BulkOperation, touched: bytes | None = None) -> None:
        """Write an operation."""
        self._tx.cursor.execute(SQL["save_operation"], row_of(bulk))
        if touched is not None:
            self._tx.cursor.execute(SQL["save_operation_step"], (bulk.id, bulk.revision, touched))

    async def is_over(self, term: int) -> bool:
        """Return whether it is another term: only one node has the file open."""
        return term != self._tx.term

    async def jobs(self, ids: Sequence[int]) -> Mapping[int, Job]:
        """Read jobs."""
        found = (find_job(self._tx, job_id) for job_id in ids)
        self._jobs = {job.id: job for job in found if job is not None}
        return self._jobs

    async def perform(self, operations: Sequence[Any]) -> Sequence[Any]:
        """Run operations on jobs."""
        change = jobs.CHANGES[type(operations[0])]
        return [change(self._tx, self._jobs.get(operation.id), operation) for operation in operations]

    async def near(self, where: JobFilter, after: int, limit: int) -> Page[Job] | None:
        """Read the next jobs by a filter, if they are near."""
        return near(self._tx, QueryJobs(where=where, after=after, limit=limit))

    async def backfill(self, step: Backfill) -> Backfilled:
        """Fire past fire times of a schedule."""
        return await ScheduleUnit(SqliteSchedules(self._tx)).backfill(step)

    async def sweep(self, before_us: int, limit: int) -> int:
        """Delete old operations."""
        connection = self._tx.cursor.connection
        before = connection.total_changes()
        self._tx.cursor.execute(SQL["sweep_operation_steps"], (before_us, limit))
        left = limit - (connection.total_changes() - before)
        if left:
            self._tx.cursor.execute(SQL["sweep_operations"], (before_us, left))
        return connection.total_changes() - before


def _one(tx: Transaction, bulk_id: int) -> BulkOperation | None:
    if bulk_id > LARGEST_ID:
        return None
    found = operations_of(tx.cursor.execute(SQL["operation"], (bulk_id,)))
    return found[0] if found else None


async def show(tx: Transaction, query: ops.ShowBulk, _: Meter) -> BulkOperation | None:
    """Read an operation; see ``ShowBulk``."""
    bulk = _one(tx, query.id)
    return bulk if bulk is not None and bulk.namespace == query.namespace else None


async def list_bulk(tx: Transaction, query: ops.ListBulk, meter: Meter) -> Page[BulkOperation]:
    """List operations; see ``ListBulk``."""

    async def before(after: int | None, most: int) -> list[tuple[int, BulkOperation]]:
        last = LARGEST_ID if after is None else min(after, LARGEST_ID)
        found = operations_of(tx.cursor.execute(SQL["operations"], (query.namespace, last, most)))
        return [(bulk.id, bulk) for bulk in found]

    return await in_parts(query, meter, before)


async def find(tx: Transaction, query: ops.FindBulk, _: Meter) -> list[BulkOperation]:
    """Read the running operations; see ``FindBulk``."""
    del query
    return operations_of(tx.cursor.execute(SQL["running_operations"]))


async def list_touched(tx: Transaction, query: ops.ListTouched, meter: Meter) -> Page[Touched]:
    """List the jobs of an operation; see ``ListTouched``."""

    async def behind(after: int | None, most: int) -> list[tuple[int, Touched]]:
        found = tx.cursor.execute(SQL["operation_steps"], (query.id, after or 0, most))
        return [(revision, decode_touched(touched)) for revision, touched in found]

    return await in_parts(query, meter, behind)


class SqliteBulkSlice:
    """The slice on this engine: ``jobs.slices.Slice``. ``monotonic`` measures steps."""

    kind = store.KIND
    follows: Final = frozenset[Any]()
    writes = store.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]]] = {}
    readers: Final[Mapping[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]]] = {
        ops.ShowBulk: show,
        ops.ListBulk: list_bulk,
        ops.FindBulk: find,
        ops.ListTouched: list_touched,
    }

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic

    def unit(self, tx: Transaction) -> BulkUnit:
        """Begin a unit of work."""
        return BulkUnit(SqliteBulk(tx), self._monotonic)
