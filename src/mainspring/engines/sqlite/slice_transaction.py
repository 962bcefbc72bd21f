"""The transaction of SQLite as slices use it: with root jobs, jobs that they withdraw or change, and the tables of schedules."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.bulk.store import BulkUnit
from mainspring.engines.sql.bulk import BulkRows, BulkSlice
from mainspring.engines.sql.schedules import ScheduleRows, ScheduleSlice
from mainspring.engines.sqlite import jobs, transaction
from mainspring.engines.sqlite import jobs as sqlite_jobs
from mainspring.engines.sqlite.queries import near
from mainspring.engines.sqlite.statements import SQL, synchronous
from mainspring.jobs import rules
from mainspring.jobs.model import RUNS, UNREADABLE_OPTIONS, read_options
from mainspring.jobs.owners import Ended, note
from mainspring.jobs.rules import Event
from mainspring.jobs.store import RequestStop, Submit, Withdrawn
from mainspring.queries import QueryJobs
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.codecs import decode_schedule, decode_stored, encode
from mainspring.schedules.unit import ScheduleUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job, StopRequest
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.jobs.store import Found
    from mainspring.queries import JobFilter
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.rules import Backfill, Backfilled
    from mainspring.storage.engine import Page


class SqliteGround:
    """``jobs.slices.RunGround``."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    @property
    def lifecycle(self) -> JobLifecycle:
        """The node's job lifecycle."""
        assert self._tx.lifecycle is not None, "a node with slices provides the ids of its jobs"
        return self._tx.lifecycle

    @property
    def term(self) -> int:
        """The node's own term."""
        return self._tx.term

    def node(self, term: int) -> str:
        """Return the node of a term."""
        return self._tx.nodes.get(term, "")

    def after_commit(self, function: Callable[[], object]) -> None:
        """Call a function after the commit."""
        self._tx.commits.append(function)

    def after_rollback(self, function: Callable[[], object]) -> None:
        """Call a function if the transaction is rolled back."""
        self._tx.rollbacks.append(function)

    async def submit(self, new: list[Job]) -> dict[int, Found]:
        """Store jobs."""
        return jobs.submit(self._tx, [Submit(new)])[0]

    async def begin_roots(self, new: list[Job]) -> dict[int, Found]:
        """Store root jobs."""
        return begin_roots(self._tx, new)

    async def take_pending(self, function: bytes, limit: int, now_us: int) -> list[Job]:
        """Turn pending jobs into root jobs."""
        return take_pending(self._tx, function, limit, now_us)

    async def take_waiting(self, ids: Iterable[int], now_us: int) -> list[Job]:
        """Turn waiting jobs into root jobs."""
        return take_waiting(self._tx, ids, now_us)

    async def end_roots(self, ended: Iterable[Job]) -> list[Job]:
        """End root jobs."""
        return end_roots(self._tx, ended)

    async def reject_roots(self, rejected: Iterable[Job]) -> list[Job]:
        """End root jobs whose runs do not begin."""
        return reject_roots(self._tx, rejected)

    async def forget_roots(self, ids: Iterable[int]) -> int:
        """Delete ended root jobs."""
        return forget_roots(self._tx, ids)

    async def withdraw(self, ids: Iterable[int]) -> list[Withdrawn]:
        """Delete live jobs."""
        return withdraw(self._tx, ids)

    async def request_stop(self, held: Sequence[tuple[int, int | None]], request: StopRequest) -> set[int]:
        """Store a request to cancel held jobs."""
        return jobs.request_stop(self._tx, [RequestStop(held, request)])[0]

    async def is_held(self, job_id: int, term: int) -> bool:
        """Return whether a job is held under a term."""
        return is_held(self._tx, job_id, term)


_RUNNING = int(rules.target(Event.BEGIN))


def begin_roots(tx: Transaction, jobs: list[Job]) -> dict[int, Found]:
    """Store new root jobs; see ``RunGround.begin_roots``."""
    roots = [replace(job, state=_RUNNING, term=RUNS, payload=b"") for job in jobs]
    joined = sqlite_jobs.submit(tx, [Submit(roots)])[0]
    tx.cursor.executemany(SQL["begun"], [(job.started_us, job.id) for job in jobs if job.id not in joined])
    return joined


def take_pending(tx: Transaction, function: bytes, limit: int, now_us: int) -> list[Job]:
    """Turn pending jobs into root jobs; see ``RunGround.take_pending``."""
    number = tx.functions.find(function)
    if number is None:
        return []
    jobs = _readable(tx, number, limit)
    jobs.sort(key=lambda job: (job.priority, job.id))
    return _take(tx, jobs, now_us)


def _readable(tx: Transaction, function: int, limit: int) -> list[Job]:
    """Return the first pending jobs whose options this version can read: the others wait, and keep none behind them."""
    asked = limit
    while True:
        found = transaction.stored_jobs(
            tx.cursor.execute(SQL["pending"], (function, asked)), tx.functions, read_options
        )
        jobs = [job for job in found if job.options is not UNREADABLE_OPTIONS]
        if len(jobs) >= limit or len(found) < asked:
            return jobs[:limit]
        asked *= 2


def take_waiting(tx: Transaction, ids: Iterable[int], now_us: int) -> list[Job]:
    """Turn waiting jobs into root jobs; see ``RunGround.take_waiting``."""
    found = (transaction.stored_jobs(tx.cursor.execute(SQL["waiting"], (job_id,)), tx.functions) for job_id in ids)
    return _take(tx, [job for jobs in found for job in jobs], now_us)


def _take(tx: Transaction, jobs: list[Job], now_us: int) -> list[Job]:
    tx.cursor.executemany(SQL["take"], [(now_us, job.id) for job in jobs])
    for job in jobs:
        function = tx.functions.number(job.function)
        tx.count(function, job.state, job.priority, -1)
        tx.count(function, _RUNNING, job.priority, 1)
    return jobs


def end_roots(tx: Transaction, jobs: Iterable[Job]) -> list[Job]:
    """End root jobs; see ``RunGround.end_roots``."""
    ended: list[Job] = []
    for given in jobs:
        result = given.result
        values = (given.state, given.ended_us, len(result), result or None, given.error or None, given.id)
        ended += _ended(tx, "end_root", values, result)
    forget_roots(tx, [job.id for job in ended if job.options is not None and job.options.forget])
    return ended


def reject_roots(tx: Transaction, jobs: Iterable[Job]) -> list[Job]:
    """End root jobs whose runs do not begin; see ``workflows.tables.RunTables.reject_roots``."""
    rejected: list[Job] = []
    for given in jobs:
        values = (given.state, given.ended_us, given.error or None, given.payload, given.id)
        rejected += _ended(tx, "reject_root", values)
    return rejected


def _ended(tx: Transaction, statement: str, values: transaction.Row, result: bytes = b"") -> list[Job]:
    """Run a statement that ends a root job; count the job, and notify its owner."""
    jobs = transaction.stored_jobs(list(tx.cursor.execute(SQL[statement], values)), tx.functions)
    for job in jobs:
        job.result = result
        function = tx.functions.number(job.function)
        tx.count(function, _RUNNING, job.priority, -1)
        tx.count(function, job.state, job.priority, 1)
        note(tx.notices, Ended.of(job))
    return jobs


def forget_roots(tx: Transaction, ids: Iterable[int]) -> int:
    """Delete ended root jobs; see ``RunGround.forget_roots``."""
    number = 0
    for job_id in ids:
        for function, state, priority in list(tx.cursor.execute(SQL["forget_root"], (job_id,))):
            tx.count(function, state, priority, -1)
            number += 1
    return number


def withdraw(tx: Transaction, ids: Iterable[int]) -> list[Withdrawn]:
    """Delete live jobs; see ``RunGround.withdraw``."""
    withdrawn = []
    for job_id in ids:
        deleted: Sequence[transaction.Row] = list(tx.cursor.execute(SQL["withdraw"], (job_id,)))
        for _, term, state, function, priority in deleted:
            tx.count(function, state, priority, -1)
            withdrawn.append(Withdrawn(job_id, term, state, tx.functions.key(function), priority))
    if tx.stopping:
        tx.no_longer_stopping([gone.id for gone in withdrawn])
    return withdrawn


def is_held(tx: Transaction, job_id: int, term: int) -> bool:
    """Return whether a job is held under a term."""
    return bool(list(tx.cursor.execute(SQL["is_held"], (job_id, term))))


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
    found = (sqlite_jobs.find_job(tx, job_id) for job_id in ids)
    return {job.id: job for job in found if job is not None}


class SqliteScheduleSlice(ScheduleSlice):
    """The slice of schedules."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(monotonic)
        self.handlers = {kind: synchronous(handler) for kind, handler in self.handlers.items()}

    def unit(self, tx: Transaction) -> ScheduleUnit:
        return ScheduleUnit(SqliteSchedules(tx), self._monotonic)


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
        change = sqlite_jobs.CHANGES[type(operations[0])]
        return [change(self._tx, self._jobs.get(operation.id), operation) for operation in operations]

    async def near(self, where: JobFilter, after: int, limit: int) -> Page[Job] | None:
        return near(self._tx, QueryJobs(where=where, after=after, limit=limit))

    async def backfill(self, step: Backfill) -> Backfilled:
        return await ScheduleUnit(SqliteSchedules(self._tx)).backfill(step)


class SqliteBulkSlice(BulkSlice):
    """The slice of operations on many jobs."""

    def unit(self, tx: Transaction) -> BulkUnit:
        return BulkUnit(SqliteBulk(tx), self._monotonic)
