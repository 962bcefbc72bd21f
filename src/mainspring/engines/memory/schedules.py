"""The schedules slice in memory."""

from __future__ import annotations

import time
from copy import copy
from heapq import nlargest, nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from mainspring.deadlines.store import Item
from mainspring.engines.memory.deadlines import put
from mainspring.engines.memory.engine import MemoryGround, Transaction
from mainspring.engines.memory.queries import behind_of
from mainspring.jobs.lateness import DueRow
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended
from mainspring.namespaces import ANY, split_text
from mainspring.queries import AMONG, LastOutcomes, ListFires, NewestFires, newest_fires
from mainspring.schedules import store as ops
from mainspring.schedules import unit
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.model import FireState
from mainspring.schedules.reconcile import Deployment
from mainspring.schedules.unit import MIN_ROWS, NAMES_PER_STEP, ScheduleUnit
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence

    from mainspring.engines.memory.tables import Tables
    from mainspring.queries import Stretch
    from mainspring.schedules.model import Fire
    from mainspring.schedules.parents import Join
    from mainspring.schedules.reconcile import Stored
    from mainspring.storage.engine import Meter, Operation, Page, Query


class MemorySchedules(MemoryGround):
    """``ScheduleTables`` in dictionaries."""

    async def catalogue(self, *, lock: bool = False) -> Catalogue:
        del lock
        tables = self._tables
        if tables.catalogue is None:
            tables.catalogue = Catalogue({name: stored.schedule for name, stored in tables.schedules.items()})
        return tables.catalogue

    async def schedules(self, names: Collection[str]) -> dict[str, Stored]:
        stored = self._tables.schedules
        return {name: stored[name] for name in names if name in stored}

    async def fires(self, keys: Collection[ops.Key]) -> dict[ops.Key, Fire]:
        rows = self._tables.fires
        return {(name, at): rows[name][at] for name, at in keys if at in rows.get(name, ())}

    async def unfinished(self, names: Collection[str]) -> list[Fire]:
        tables = self._tables
        return [tables.fires[name][at] for name in names for at in sorted(tables.unfinished.get(name, ()))]

    async def of_jobs(self, ids: Collection[int]) -> list[Fire]:
        tables = self._tables
        return [tables.fires[name][at] for job_id in ids for name, at in sorted(tables.runs.get(job_id, ()))]

    async def joins(self, keys: Collection[ops.Key]) -> dict[ops.Key, Join]:
        return {key: self._tables.joins[key] for key in keys if key in self._tables.joins}

    async def write(self, writes: ops.Writes) -> None:
        tables = self._tables
        for name, stored in writes.schedules.items():
            if stored is None:
                tables.schedules.pop(name, None)
            else:
                tables.schedules[name] = stored
        if writes.respecified:
            tables.catalogue = None
        for name, at in writes.removed:
            del tables.fires[name][at]
        for row in writes.new:
            assert row.fire_us not in tables.fires.get(row.schedule, ()), "a fire time has one row"
            self._write_row(row)
        for row in writes.changed:
            self._write_row(row)
        for join in writes.joins:
            key = (join.child, join.fire_us)
            if join.left:
                tables.joins[key] = join
            else:
                tables.joins.pop(key, None)

        put(tables, [DueRow(0, 0, late_us, name) for name, late_us in writes.late.items()])

    async def remove_late(self, names: Collection[str], until_us: int) -> None:
        found = self._tables.deadlines
        for name in names:
            if found.get(Item(0, 0, name), until_us + 1) <= until_us:
                del found[Item(0, 0, name)]

    def _write_row(self, row: Fire) -> None:
        tables, key = self._tables, (row.schedule, row.fire_us)
        before = tables.fires.setdefault(row.schedule, {}).get(row.fire_us)
        tables.fires[row.schedule][row.fire_us] = row
        if before is not None and before.job:
            tables.runs.get(before.job, set()).discard(key)
            if not tables.runs.get(before.job):
                tables.runs.pop(before.job, None)
        if row.job and not row.outcome:
            tables.runs.setdefault(row.job, set()).add(key)
        unfinished = tables.unfinished.setdefault(row.schedule, set())
        if row.finished:
            unfinished.discard(row.fire_us)
        else:
            unfinished.add(row.fire_us)

    async def joined(self, limit: int) -> list[tuple[Fire, Ended | None]]:
        tables = self._tables
        found: list[tuple[Fire, Ended | None]] = []
        for job_id, keys in tables.runs.items():
            job = tables.jobs.get(job_id)
            if job is not None and not State(job.state).ended:
                continue
            end = None if job is None else Ended.of(job)
            rows = [tables.fires[name][at] for name, at in sorted(keys)]
            found.extend((row, end) for row in rows if row.state is FireState.JOINED)
            if len(found) >= limit:
                break
        return found

    async def queued(self, limit: int) -> list[str]:
        return [name for name, stored in self._tables.schedules.items() if stored.state.queued][:limit]

    async def stuck(self, limit: int) -> list[Fire]:
        tables = self._tables
        rows = (tables.fires[name][at] for name, times in tables.unfinished.items() for at in sorted(times))
        return [row for row in rows if row.outcome][:limit]

    async def oldest(self, after: str, before_us: int, limit: int) -> tuple[list[str], list[Fire]]:
        fires = self._tables.fires
        names = nsmallest(NAMES_PER_STEP, (name for name, rows in fires.items() if name > after and rows))
        old = (fires[name][at] for name in names for at in sorted(fires[name])[:-MIN_ROWS] if at < before_us)
        return names, list(islice(old, limit))

    async def forget(self, until: Mapping[str, int]) -> None:
        tables = self._tables
        for name, until_us in until.items():
            tables.fires[name] = {at: row for at, row in tables.fires[name].items() if at > until_us}
            tables.forgotten[name] = until_us

    async def forgotten(self, names: Collection[str]) -> dict[str, int]:
        forgotten = self._tables.forgotten
        return {name: forgotten[name] for name in names if name in forgotten}

    async def declare(self, app: str, digest: bytes, now_us: int) -> None:
        declared = self._tables.declared
        if (app, digest) in declared:
            first, _ = declared[app, digest]
        else:  # later than the others, also if the clock was set back
            first = max(now_us, *(times[0] + 1 for (other, _), times in declared.items() if other == app), 0)
        declared[app, digest] = (first, now_us)

    async def declarations(self, app: str) -> list[ops.Declared]:
        return [
            ops.Declared(Deployment(app, stored_digest, times[0]), times[1])
            for (other, stored_digest), times in self._tables.declared.items()
            if other == app
        ]


# ---- reading ----


def find_due(tables: Tables, operation: ops.FindDue) -> ops.Upcoming:
    """Return the schedules that are due soon."""
    times = (
        (stored.state.next_us, name) for name, stored in tables.schedules.items() if stored.state.next_us is not None
    )
    first = nsmallest(operation.rows + 1, times)
    due = [_upcoming(tables, one) for one in first[: operation.rows] if one[0] <= operation.until_us]
    rest = first[len(due) :]
    if rest and rest[0][0] <= operation.until_us:
        crowding = set(ops.crowding(due))
        others = (
            (stored.state.next_us, name)
            for name, stored in tables.schedules.items()
            if stored.state.next_us is not None
            and rest[0] <= (stored.state.next_us, name)
            and stored.state.next_us <= operation.until_us
            and split_text(name)[0] not in crowding
        )
        due += [_upcoming(tables, one) for one in nsmallest(max(operation.rows // 4, 1), others)]
    return ops.Upcoming(due, rest[0][0] if rest else None)


def _upcoming(tables: Tables, one: tuple[int, str]) -> tuple[ops.Due, int]:
    next_us, name = one
    return ops.Due(name, tables.schedules[name].state.version), next_us


async def list_schedules(tables: Tables, query: ops.ListSchedules, meter: Meter) -> Page[Stored]:
    """List schedules by their names."""
    schedules = tables.schedules

    async def behind(after: str | None, most: int) -> list[tuple[str, Stored]]:
        wanted = schedules.keys() if query.names is None else schedules.keys() & set(query.names)
        if query.namespace != ANY:
            wanted = {name for name in wanted if split_text(name)[0] == query.namespace}
        return [(name, schedules[name]) for name in behind_of(wanted, after)[:most]]

    return await in_parts(query, meter, behind)


async def list_fires(tables: Tables, query: ListFires, meter: Meter) -> Page[Fire]:
    """List fire times, newest first."""
    rows = tables.fires.get(query.name, {})

    async def behind(after: int | None, most: int) -> list[tuple[int, Fire]]:
        times = sorted((at for at in rows if after is None or at < after), reverse=True)
        return [(at, copy(rows[at])) for at in times[:most]]

    return await in_parts(query, meter, behind)


async def read_newest_fires(tables: Tables, query: NewestFires, meter: Meter) -> Page[Fire]:
    """Read the newest fire times of some schedules."""

    async def read(wanted: Sequence[Stretch], most: int) -> list[Fire]:
        return list(islice((row for one in wanted for row in _newest(tables, one, query.each)), most))

    return await newest_fires(query, meter, read)


def _newest(tables: Tables, wanted: Stretch, number: int) -> list[Fire]:
    rows = tables.fires.get(wanted.name, {})
    times = sorted(at for at in rows if at < wanted.before_us)[-number:]
    return [copy(rows[at]) for at in times if at >= wanted.since_us]


async def last_outcomes(tables: Tables, query: LastOutcomes, meter: Meter) -> list[Fire]:
    """Read the last outcomes of some schedules."""
    del meter  # all their rows are fewer than a read may examine
    rows = (nlargest(AMONG, tables.fires.get(name, {}).items()) for name in query.names)
    ended = (next((row for _, row in newest if ops.standing(row) >= ops.Standing.ENDED), None) for newest in rows)
    return [copy(row) for row in ended if row is not None]


class MemoryScheduleSlice:
    """The slice on this engine: ``jobs.slices.Slice``. ``monotonic`` measures fires."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Tables, Any], object]]] = {ops.FindDue: find_due}
    readers: Final[Mapping[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]] = {
        ops.ListSchedules: list_schedules,
        ListFires: list_fires,
        NewestFires: read_newest_fires,
        LastOutcomes: last_outcomes,
    }

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic

    def unit(self, tx: Transaction) -> ScheduleUnit:
        return ScheduleUnit(MemorySchedules(tx), self._monotonic)
