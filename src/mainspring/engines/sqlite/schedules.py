"""The schedules slice on SQLite, and what operations on many jobs need of it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.sql.bulk import BulkRows, BulkSlice
from mainspring.engines.sqlite import jobs as sqlite_jobs
from mainspring.engines.sqlite.queries import near
from mainspring.engines.sqlite.slice_transaction import SqliteGround
from mainspring.engines.sqlite.statements import SQL
from mainspring.engines.sqlite.transaction import LARGEST_ID
from mainspring.jobs.owners import Ended
from mainspring.queries.lists import AMONG, LastOutcomes, ListFires, NewestFires, QueryJobs, newest_fires
from mainspring.schedules import store as ops
from mainspring.schedules import unit
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.codecs import decode_fire, decode_fires, decode_schedule, decode_stored, encode
from mainspring.schedules.parents import Join
from mainspring.schedules.reconcile import Deployment, Stored
from mainspring.schedules.unit import MIN_ROWS, NAMES_PER_STEP, ScheduleUnit
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.queries.filters import JobFilter
    from mainspring.queries.lists import Stretch
    from mainspring.schedules.model import Fire
    from mainspring.storage.engine import Meter, Operation, Page, Query

LAST_NAME = "\U0010ffff"
"""A text that sorts after all names."""


class SqliteSchedules(SqliteGround):
    """``ScheduleTables`` inside the open transaction."""

    def _rows(self, name: str, *values: Any) -> Iterable[Sequence[Any]]:
        return self._tx.cursor.execute(SQL[name], values)

    async def catalogue(self, *, lock: bool = False) -> Catalogue:
        """Return all specifications."""
        del lock
        if self._tx.catalogue is None:
            decoded = {name: decode_schedule(name, row) for name, row in self._rows("specifications")}
            unread = {name: why for name, (_, why) in decoded.items() if why}
            self._tx.catalogue = Catalogue({name: schedule for name, (schedule, _) in decoded.items()}, unread)
        return self._tx.catalogue

    async def schedules(self, names: Collection[str]) -> dict[str, Stored]:
        """Read schedules."""
        return {name: decode_stored(name, *row) for name in names for row in self._rows("schedule", name)}

    async def fires(self, keys: Collection[ops.Key]) -> dict[ops.Key, Fire]:
        """Read fire times."""
        return {key: decode_fire(*key, row) for key in keys for (row,) in self._rows("fire", *key)}

    async def unfinished(self, names: Collection[str]) -> list[Fire]:
        """Read the fire times that are not finished."""
        return decode_fires(row for name in names for (row,) in self._rows("unfinished", name))

    async def of_jobs(self, ids: Collection[int]) -> list[Fire]:
        """Read the fire times of jobs."""
        return decode_fires(row for job_id in ids for (row,) in self._rows("fires_of_job", job_id))

    async def joins(self, keys: Collection[ops.Key]) -> dict[ops.Key, Join]:
        """Read joins."""
        return {key: Join(*key, left, bool(stopped)) for key in keys for left, stopped in self._rows("join_of", *key)}

    async def write(self, writes: ops.Writes) -> None:
        """Write the changes."""
        tx = self._tx
        saved = [(name, stored) for name, stored in writes.schedules.items() if stored is not None]
        removed = [(name,) for name, stored in writes.schedules.items() if stored is None]
        tx.cursor.executemany(SQL["save_schedule"], [_row(name, stored) for name, stored in saved])
        tx.cursor.executemany(SQL["remove_schedule"], removed)
        if writes.respecified and tx.catalogue is not None:
            tx.catalogue = tx.catalogue.changed(
                {name: None if stored is None else stored.schedule for name, stored in writes.schedules.items()}
            )
        tx.cursor.executemany(SQL["remove_fire"], writes.removed)
        tx.cursor.executemany(SQL["new_fire"], [_columns(row) for row in writes.new])
        tx.cursor.executemany(SQL["save_fire"], [_columns(row) for row in writes.changed])
        left = [(one.child, one.fire_us, one.left, one.stopped) for one in writes.joins if one.left]
        tx.cursor.executemany(SQL["save_join"], left)
        tx.cursor.executemany(SQL["remove_join"], [(one.child, one.fire_us) for one in writes.joins if not one.left])

    async def joined(self, limit: int) -> list[tuple[Fire, Ended | None]]:
        """Find fire times that joined a job which has ended."""
        return [
            (
                fire,
                Ended(job_id, state, term, attempt, "", started, ended, error or b"") if job_id is not None else None,
            )
            for row, job_id, state, term, attempt, started, ended, error in self._rows("joined", limit)
            for fire in decode_fires([row])
        ]

    async def queued(self, limit: int) -> list[str]:
        """Find schedules with queued fire times."""
        return [name for (name,) in self._rows("queued_schedules", limit)]

    async def stuck(self, limit: int) -> list[Fire]:
        """Find fire times that wait for children."""
        return decode_fires(row for (row,) in self._rows("stuck", limit))

    async def oldest(self, after: str, before_us: int, limit: int) -> tuple[list[str], list[Fire]]:
        """Find the oldest fire times of some schedules."""
        names = [name for (name,) in self._rows("names_of_fires", after, NAMES_PER_STEP)]
        old: list[Fire] = []
        for name in names:
            if len(old) < limit:
                rows = self._rows("oldest_fires", name, MIN_ROWS - 1, before_us, limit - len(old))
                old += decode_fires(row for (row,) in rows)
        return names, old

    async def forget(self, until: Mapping[str, int]) -> None:
        """Delete fire times."""
        self._tx.cursor.executemany(SQL["forget_fires"], until.items())
        self._tx.cursor.executemany(SQL["note_forgotten"], until.items())

    async def forgotten(self, names: Collection[str]) -> dict[str, int]:
        """Return the fire time of each schedule up to which rows were deleted."""
        return {name: until_us for name in names for (until_us,) in self._rows("forgotten", name)}

    async def declare(self, app: str, digest: bytes, now_us: int) -> None:
        """Record a declaration."""
        self._rows("declare", app, digest, now_us)

    async def declarations(self, app: str) -> list[ops.Declared]:
        """Return the declarations of an App."""
        return [
            ops.Declared(Deployment(name, declared, first), last)
            for name, declared, first, last in self._rows("declarations", app)
        ]


def _row(name: str, stored: Stored) -> tuple[Any, ...]:
    state = stored.state
    return (name, state.next_us, state.queued, state.version, encode(stored.schedule), encode(state))


def _columns(row: Fire) -> tuple[Any, ...]:
    return (ops.standing(row), row.job or None, encode(row), row.schedule, row.fire_us)


# ---- reading ----


def find_due(tx: Transaction, operations: Sequence[ops.FindDue]) -> list[ops.Upcoming]:
    """Return the schedules that are due soon."""
    return [_find_due(tx, operation) for operation in operations]


def _find_due(tx: Transaction, operation: ops.FindDue) -> ops.Upcoming:
    due = list(tx.cursor.execute(SQL["due_schedules"], (operation.until_us, operation.rows)))
    full = len(due) == operation.rows
    after = (due[-1][2], due[-1][0]) if full else (operation.until_us, LAST_NAME)
    following = [next_us for (next_us,) in tx.cursor.execute(SQL["next_schedule"], after)]
    found = [(ops.Due(name, version), next_us) for name, version, next_us in due]
    if full and following and following[0] <= operation.until_us:
        crowding, limit = json.dumps(ops.crowding(found)), max(operation.rows // 4, 1)
        others = tx.cursor.execute(SQL["others_due"], (*after, operation.until_us, crowding, limit))
        found += [(ops.Due(name, version), next_us) for name, version, next_us in others]
    return ops.Upcoming(found, following[0] if following else None)


async def list_schedules(tx: Transaction, query: ops.ListSchedules, meter: Meter) -> Page[Stored]:
    """List schedules by their names."""

    async def behind(after: str | None, most: int) -> list[tuple[str, Stored]]:
        return [_listed(row) for row in tx.cursor.execute(SQL["schedules"], (after or "", most, query.namespace))]

    async def named(after: str | None, most: int) -> list[tuple[str, Stored]]:
        names = sorted(name for name in set(query.names or ()) if name > (after or ""))
        found = (_listed((name, *row)) for name in names for row in tx.cursor.execute(SQL["schedule"], (name,)))
        return [one for one, _ in zip(found, range(most), strict=False)]

    return await in_parts(query, meter, behind if query.names is None else named)


def _listed(row: Sequence[Any]) -> tuple[str, Stored]:
    name, schedule, state = row
    return name, decode_stored(name, schedule, state)


async def list_fires(tx: Transaction, query: ListFires, meter: Meter) -> Page[Fire]:
    """List fire times, newest first."""

    async def behind(after: int | None, most: int) -> list[tuple[int, Fire]]:
        found = tx.cursor.execute(SQL["history"], (query.name, LARGEST_ID if after is None else after, most))
        return [(fire_us, decode_fire(query.name, fire_us, row)) for fire_us, row in found]

    return await in_parts(query, meter, behind)


async def read_newest_fires(tx: Transaction, query: NewestFires, meter: Meter) -> Page[Fire]:
    """Read the newest fire times of some schedules."""

    async def read(wanted: Sequence[Stretch], most: int) -> list[Fire]:
        found = tx.cursor.execute(SQL["newest_fires"], (json.dumps(wanted), query.each - 1, most))
        return decode_fires(row for (row,) in found)

    return await newest_fires(query, meter, read)


async def last_outcomes(tx: Transaction, query: LastOutcomes, meter: Meter) -> list[Fire]:
    """Read the last outcomes of some schedules."""
    del meter  # all their rows are fewer than a read may examine
    found = tx.cursor.execute(SQL["last_outcomes"], (json.dumps(query.names), AMONG))
    return decode_fires(row for (row,) in found if row is not None)


class SqliteScheduleSlice:
    """The slice on this engine: ``jobs.slices.Slice``. ``monotonic`` measures fires."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]]] = {
        ops.FindDue: find_due
    }
    readers: Final[Mapping[type[Query[Any]], Callable[[Transaction, Any, Meter], Coroutine[Any, Any, Any]]]] = {
        ops.ListSchedules: list_schedules,
        ListFires: list_fires,
        NewestFires: read_newest_fires,
        LastOutcomes: last_outcomes,
    }

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic

    def unit(self, tx: Transaction) -> ScheduleUnit:
        """Begin a unit of work."""
        return ScheduleUnit(SqliteSchedules(tx), self._monotonic)


class SqliteBulk(BulkRows):
    """The tables of operations on many jobs."""

    _jobs: Mapping[int, Job]

    async def is_over(self, term: int) -> bool:
        """Return whether it is another term: only one node has the file open."""
        return term != self.term

    async def jobs(self, ids: Sequence[int]) -> Mapping[int, Job]:
        """Read jobs."""
        found = (sqlite_jobs.find_job(self._tx, job_id) for job_id in ids)
        self._jobs = {job.id: job for job in found if job is not None}
        return self._jobs

    async def perform(self, operations: Sequence[Any]) -> Sequence[Any]:
        """Run operations on the jobs of the step."""
        change = sqlite_jobs.CHANGES[type(operations[0])]
        return [change(self._tx, self._jobs.get(operation.id), operation) for operation in operations]

    async def near(self, where: JobFilter, after: int, limit: int) -> Page[Job] | None:
        """Read the next jobs by a filter, if they are near."""
        return near(self._tx, QueryJobs(where=where, after=after, limit=limit))

    def schedules(self) -> ScheduleUnit:
        """Return the unit of work of schedules."""
        return ScheduleUnit(SqliteSchedules(self._tx))


class SqliteBulkSlice(BulkSlice):
    """The slice of operations on many jobs."""

    tables = SqliteBulk
