"""The transaction of SQLite as slices use it: with root jobs, jobs that they withdraw or change, and the tables of schedules."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.bulk.store import BulkUnit
from mainspring.conflicts.store import Successor
from mainspring.conflicts.unit import ConflictUnit
from mainspring.engines.sql.bulk import BulkRows, BulkSlice
from mainspring.engines.sql.conflicts import ConflictSlice, SuccessorRows
from mainspring.engines.sql.external import WorkRows, WorkSlice
from mainspring.engines.sql.schedules import ScheduleRows, ScheduleSlice
from mainspring.engines.sql.statements import SqlGround
from mainspring.engines.sql.subscriptions import SubscriptionRows, SubscriptionSlice
from mainspring.engines.sqlite import jobs
from mainspring.engines.sqlite.queries import near
from mainspring.engines.sqlite.statements import SQL, synchronous
from mainspring.engines.sqlite.transaction import stored_jobs
from mainspring.external.unit import WorkUnit
from mainspring.jobs import rules
from mainspring.jobs.model import RUNS, UNREADABLE_OPTIONS, decode_options, read_options
from mainspring.jobs.owners import Ended, note
from mainspring.jobs.rules import Event
from mainspring.jobs.store import RequestStop, Submit, Withdrawn
from mainspring.queries import QueryJobs
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.reconcile import decode_schedule, decode_stored, encode
from mainspring.schedules.unit import ScheduleUnit
from mainspring.subscriptions.unit import SubscriptionUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from mainspring.engines.sqlite.transaction import Row, Transaction
    from mainspring.jobs.model import Job, Options, StopRequest
    from mainspring.jobs.store import Cancel, Cancelled, Found, Reschedule, Rescheduled
    from mainspring.queries import JobFilter
    from mainspring.schedules import store as ops
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.rules import Backfill, Backfilled
    from mainspring.storage.engine import Page


_RUNNING = int(rules.target(Event.BEGIN))


class SqliteGround(SqlGround):
    """``jobs.slices.RunTransaction``."""

    _tx: Transaction

    async def submit(self, new: list[Job]) -> dict[int, Found]:
        return jobs.submit(self._tx, [Submit(new)])[0]

    async def begin_roots(self, new: list[Job]) -> dict[int, Found]:
        roots = [replace(job, state=_RUNNING, term=RUNS, payload=b"") for job in new]
        joined = jobs.submit(self._tx, [Submit(roots)])[0]
        begun = [(job.started_us, job.id) for job in new if job.id not in joined]
        self._tx.cursor.executemany(SQL["begun"], begun)
        return joined

    async def take_pending(self, function: bytes, limit: int, now_us: int) -> list[Job]:
        number = self._tx.functions.find(function)
        if number is None:
            return []
        return self._take(sorted(self._readable(number, limit), key=lambda job: (job.priority, job.id)), now_us)

    def _readable(self, function: int, limit: int) -> list[Job]:
        """Return the first pending jobs whose options this version can read: the others wait, and keep none behind them."""
        asked = limit
        while True:
            found = self._stored("pending", (function, asked), read_options)
            readable = [job for job in found if job.options is not UNREADABLE_OPTIONS]
            if len(readable) >= limit or len(found) < asked:
                return readable[:limit]
            asked *= 2

    async def take_waiting(self, ids: Iterable[int], now_us: int) -> list[Job]:
        return self._take([job for job_id in ids for job in self._stored("waiting", (job_id,))], now_us)

    def _take(self, taken: list[Job], now_us: int) -> list[Job]:
        self._tx.cursor.executemany(SQL["take"], [(now_us, job.id) for job in taken])
        for job in taken:
            self._count(job, job.state, _RUNNING)
        return taken

    async def end_roots(self, ended: Iterable[Job]) -> list[Job]:
        roots: list[Job] = []
        for job in ended:
            values = (job.state, job.ended_us, len(job.result), job.result or None, job.error or None, job.id)
            roots += self._end("end_root", values, job.result)
        await self.forget_roots([job.id for job in roots if job.options is not None and job.options.forget])
        return roots

    async def reject_roots(self, rejected: Iterable[Job]) -> list[Job]:
        roots: list[Job] = []
        for job in rejected:
            roots += self._end("reject_root", (job.state, job.ended_us, job.error or None, job.payload, job.id))
        return roots

    def _end(self, statement: str, values: Row, result: bytes = b"") -> list[Job]:
        """Run a statement that ends a root job; count the job, and notify its owner."""
        ended = self._stored(statement, values)
        for job in ended:
            job.result = result
            self._count(job, _RUNNING, job.state)
            note(self._tx.notices, Ended.of(job))
        return ended

    async def forget_roots(self, ids: Iterable[int]) -> int:
        number = 0
        for job_id in ids:
            for function, state, priority in list(self._tx.cursor.execute(SQL["forget_root"], (job_id,))):
                self._tx.count(function, state, priority, -1)
                number += 1
        return number

    async def withdraw(self, ids: Iterable[int]) -> list[Withdrawn]:
        tx, withdrawn = self._tx, list[Withdrawn]()
        for job_id in ids:
            deleted: Sequence[Row] = list(tx.cursor.execute(SQL["withdraw"], (job_id,)))
            for _, term, state, function, priority in deleted:
                tx.count(function, state, priority, -1)
                withdrawn.append(Withdrawn(job_id, term, state, tx.functions.key(function), priority))
        if tx.stopping:
            tx.no_longer_stopping([gone.id for gone in withdrawn])
        return withdrawn

    async def request_stop(self, held: Sequence[tuple[int, int | None]], request: StopRequest) -> set[int]:
        return jobs.request_stop(self._tx, [RequestStop(held, request)])[0]

    async def is_held(self, job_id: int, term: int) -> bool:
        return bool(list(self._tx.cursor.execute(SQL["is_held"], (job_id, term))))

    def _stored(self, statement: str, values: Row, decode: Callable[[bytes], Options] = decode_options) -> list[Job]:
        rows = list(self._tx.cursor.execute(SQL[statement], values))
        return stored_jobs(rows, self._tx.functions, decode)

    def _count(self, job: Job, before: int, after: int) -> None:
        function = self._tx.functions.number(job.function)
        self._tx.count(function, before, job.priority, -1)
        self._tx.count(function, after, job.priority, 1)


class SqliteSchedules(SqliteGround, ScheduleRows):
    """The tables of schedules. A row of `schedules` has its specification, too."""

    async def catalogue(self, *, lock: bool = False) -> Catalogue:
        del lock
        if self._tx.catalogue is None:
            decoded = {name: decode_schedule(name, row) for name, row in await self._sql.fetch("specifications")}
            unread = {name: why for name, (_, why) in decoded.items() if why}
            self._tx.catalogue = Catalogue({name: schedule for name, (schedule, _) in decoded.items()}, unread)
        return self._tx.catalogue

    async def schedules(self, names: Collection[str]) -> dict[str, Stored]:
        found = await self._sql.each("schedule", [(name,) for name in names])
        return {name: decode_stored(name, schedule, state) for name, schedule, state in found}

    async def save(self, schedules: Mapping[str, Stored | None], *, respecified: bool) -> None:
        saved = [_row(name, stored) for name, stored in schedules.items() if stored is not None]
        await self._sql.many("save_schedules", saved)
        await self._sql.many("remove_schedules", [(name,) for name, stored in schedules.items() if stored is None])
        if respecified and self._tx.catalogue is not None:
            self._tx.catalogue = self._tx.catalogue.changed(
                {name: None if stored is None else stored.schedule for name, stored in schedules.items()}
            )

    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        return _jobs(self._tx, ids)


def _row(name: str, stored: Stored) -> tuple[Any, ...]:
    state = stored.state
    return (name, state.next_us, state.queued, state.version, encode(stored.schedule), encode(state))


def _jobs(tx: Transaction, ids: Iterable[int]) -> dict[int, Job]:
    found = (jobs.find_job(tx, job_id) for job_id in ids)
    return {job.id: job for job in found if job is not None}


class SqliteScheduleSlice(ScheduleSlice):
    """The slice of schedules."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(monotonic)
        self.handlers = {kind: synchronous(handler) for kind, handler in self.handlers.items()}

    async def read_due(self, tx: Transaction, operation: ops.FindDue) -> tuple[Sequence[Row], int | None]:
        found = await tx.sql.fetch("due_schedules", operation.until_us, operation.rows)
        if len(found) == operation.rows:
            return found, None
        later = await tx.sql.first("next_schedule", operation.until_us + 1, "")
        return found, None if later is None else later[0]

    def unit(self, tx: Transaction) -> ScheduleUnit:
        return ScheduleUnit(SqliteSchedules(tx), self._monotonic)


class SqliteSubscriptions(SqliteGround, SubscriptionRows):
    """The tables of subscriptions."""

    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        return _jobs(self._tx, ids)


class SqliteSubscriptionSlice(SubscriptionSlice):
    """The slice of subscriptions."""

    def unit(self, tx: Transaction) -> SubscriptionUnit:
        return SubscriptionUnit(SqliteSubscriptions(tx))


class SqliteWorks(SqliteGround, WorkRows):
    """The table of work that runs elsewhere."""

    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        return _jobs(self._tx, ids)


class SqliteWorkSlice(WorkSlice):
    """The slice of work that runs elsewhere."""

    def unit(self, tx: Transaction) -> WorkUnit:
        return WorkUnit(SqliteWorks(tx))


class SqliteConflicts(SqliteGround, SuccessorRows):
    """The table of successors."""

    async def live(self, function: bytes, unique: bytes) -> Job | None:
        number = self._tx.functions.find(function)
        found = None if number is None else jobs.first_found(self._tx, SQL["live"], (number, unique))
        return None if found is None else jobs.find_job(self._tx, found.id)

    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        return _jobs(self._tx, ids)

    async def reschedule(self, operation: Reschedule) -> Rescheduled:
        return jobs.reschedule(self._tx, [operation])[0]

    async def cancel(self, operation: Cancel) -> Cancelled:
        return jobs.cancel(self._tx, [operation])[0]

    async def stop(self, job: int, request: StopRequest) -> None:
        jobs.request_stop(self._tx, [RequestStop([(job, None)], request)])

    async def ripe(self, limit: int) -> Sequence[Successor]:
        return [Successor(*row) for row in await self._sql.fetch("ripe_successors", limit)]

    async def release(self, job: int, unique: bytes, due_us: int) -> bool:
        return await self._sql.first("release_successor", job, unique, due_us) is not None


class SqliteConflictSlice(ConflictSlice):
    """The slice of submits by a rule."""

    def unit(self, tx: Transaction) -> ConflictUnit:
        return ConflictUnit(SqliteConflicts(tx))


class SqliteBulk(BulkRows):
    """The tables of operations on many jobs."""

    _jobs: Mapping[int, Job]

    async def is_over(self, term: int) -> bool:
        """Return whether it is another term: only one node has the file open."""
        return term != self.term

    async def jobs(self, ids: Sequence[int]) -> Mapping[int, Job]:
        self._jobs = _jobs(self._tx, ids)
        return self._jobs

    async def perform(self, operations: Sequence[Any]) -> Sequence[Any]:
        """Run operations on the jobs of the step."""
        change = jobs.CHANGES[type(operations[0])]
        return [change(self._tx, self._jobs.get(operation.id), operation) for operation in operations]

    async def near(self, where: JobFilter, after: int, limit: int) -> Page[Job] | None:
        return near(self._tx, QueryJobs(where=where, after=after, limit=limit))

    async def backfill(self, step: Backfill) -> Backfilled:
        return await ScheduleUnit(SqliteSchedules(self._tx)).backfill(step)


class SqliteBulkSlice(BulkSlice):
    """The slice of operations on many jobs."""

    def unit(self, tx: Transaction) -> BulkUnit:
        return BulkUnit(SqliteBulk(tx), self._monotonic)
