"""Schedules: their tables, and the slice with its queries."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.sql import deadlines
from mainspring.engines.sql.statements import LARGEST
from mainspring.jobs.lateness import DueRow
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended
from mainspring.queries import AMONG, LastOutcomes, ListFires, NewestFires, newest_fires
from mainspring.schedules import store as ops
from mainspring.schedules import unit
from mainspring.schedules.parents import Join
from mainspring.schedules.reconcile import Deployment, Stored, decode_fire, decode_fires, decode_stored, encode
from mainspring.schedules.unit import MIN_ROWS, NAMES_PER_STEP
from mainspring.storage.engine import in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from mainspring.engines.sql.statements import Readers, Statements, Transaction
    from mainspring.jobs.model import Job
    from mainspring.queries import Stretch
    from mainspring.schedules.model import Fire
    from mainspring.storage.engine import Meter, Operation, Page

_HAS_JOB: Final = frozenset({ops.Standing.FIRED, ops.Standing.JOINED})


class ScheduleRows(ABC):
    """`schedules.store.HistoryTables` in a group. A class of each engine adds specifications and states."""

    _tx: Any

    @property
    def _sql(self) -> Statements:
        sql: Statements = self._tx.sql
        return sql

    @abstractmethod
    async def save(self, schedules: Mapping[str, Stored | None], *, respecified: bool) -> None:
        """Write schedules; None removes one."""

    @abstractmethod
    async def look_up(self, ids: Iterable[int]) -> Mapping[int, Job]:
        """Return jobs, with the nodes of their terms loaded."""

    async def settled(self, read: Callable[[], Awaitable[Iterable[Sequence[Any]]]]) -> list[Fire]:
        """Return rows that may end."""
        return fires_of(await read())

    async def fires(self, keys: Collection[ops.Key]) -> dict[ops.Key, Fire]:
        """Read fire times; their schedules, or the families of these, are locked."""
        found = await self._sql.each("fires", keys)
        return {(name, fire_us): decode_fire(name, fire_us, fire) for name, fire_us, fire in found}

    async def unfinished(self, names: Collection[str]) -> list[Fire]:
        return fires_of(await self._sql.each("unfinished_fires", [(name,) for name in names]))

    async def of_jobs(self, ids: Collection[int]) -> list[Fire]:
        return await self.settled(lambda: self._sql.each("fires_of_jobs", [(job_id,) for job_id in ids]))

    async def joins(self, keys: Collection[ops.Key]) -> dict[ops.Key, Join]:
        """Read joins; the family is locked."""
        found = await self._sql.each("joins", keys)
        return {(name, fire_us): Join(name, fire_us, left, bool(stopped)) for name, fire_us, left, stopped in found}

    async def write(self, writes: ops.Writes) -> None:
        if writes.schedules:
            await self.save(writes.schedules, respecified=writes.respecified)
        many, joins = self._sql.many, writes.joins
        await many("remove_fires", writes.removed)
        await many("new_fires", map(_row, writes.new))
        await many("save_fires", map(_row, writes.changed))
        await many("save_joins", [(one.child, one.fire_us, one.left, one.stopped) for one in joins if one.left])
        await many("remove_joins", [(one.child, one.fire_us) for one in joins if not one.left])

        if writes.late:
            await deadlines.put(self._tx, [DueRow(0, 0, late_us, name) for name, late_us in writes.late.items()])

    async def remove_late(self, names: Collection[str], until_us: int) -> None:
        await self._sql.execute("remove_absences", self._sql.among(names), until_us)

    async def joined(self, limit: int) -> list[tuple[Fire, Ended | None]]:
        found = await self.settled(lambda: self._sql.fetch("joined_fires", limit))
        jobs = await self.look_up({fire.job for fire in found})
        ends = [(fire, jobs.get(fire.job)) for fire in found]
        return [
            (fire, None if job is None else Ended.of(job))
            for fire, job in ends
            if job is None or State(job.state).ended
        ]

    async def queued(self, limit: int) -> list[str]:
        return [name for (name,) in await self._sql.fetch("queued_schedules", limit)]

    async def stuck(self, limit: int) -> list[Fire]:
        return await self.settled(lambda: self._sql.fetch("stuck_fires", limit))

    async def oldest(self, after: str, before_us: int, limit: int) -> tuple[list[str], list[Fire]]:
        sql = self._sql
        names = [name for (name,) in await sql.fetch("names_of_fires", after, NAMES_PER_STEP)]
        if not names:
            return names, []
        return names, fires_of(await sql.fetch("oldest_fires", sql.among(names), MIN_ROWS - 1, before_us, limit))

    async def forget(self, until: Mapping[str, int]) -> None:
        """Delete fire times; the schedules are locked."""
        await self._sql.many("forget_fires", until.items())
        await self._sql.many("note_forgotten", until.items())

    async def forgotten(self, names: Collection[str]) -> dict[str, int]:
        return dict(await self._sql.each("forgotten", [(name,) for name in names]))

    async def declare(self, app: str, digest: bytes, now_us: int) -> None:
        await self._sql.execute("declare", app, digest, now_us)

    async def declarations(self, app: str) -> list[ops.Declared]:
        found = await self._sql.fetch("declarations", app)
        return [ops.Declared(Deployment(app, declared, first), last) for declared, first, last in found]


def fires_of(rows: Iterable[Sequence[Any]]) -> list[Fire]:
    """Decode the fire times in rows of a statement; some statements have rows without one."""
    return decode_fires(fire for (fire,) in rows if fire is not None)


def _row(fire: Fire) -> Sequence[Any]:
    standing = ops.standing(fire)
    return (fire.schedule, fire.fire_us, int(standing), fire.job if standing in _HAS_JOB else None, encode(fire))


# ---- reading ----


async def _list(tx: Transaction, query: ops.ListSchedules, meter: Meter) -> Page[Stored]:
    statement, among = "schedules", query.namespace
    if query.names is not None:
        statement, among = "named_schedules", tx.sql.among(query.names)

    async def behind(after: str | None, most: int) -> list[tuple[str, Stored]]:
        found = await tx.sql.fetch(statement, after or "", most, among)
        return [(name, decode_stored(name, schedule, state)) for name, schedule, state in found]

    return await in_parts(query, meter, behind)


async def _list_fires(tx: Transaction, query: ListFires, meter: Meter) -> Page[Fire]:
    async def behind(after: int | None, most: int) -> list[tuple[int, Fire]]:
        found = await tx.sql.fetch("history", query.name, LARGEST if after is None else after, most)
        return [(fire_us, decode_fire(query.name, fire_us, row)) for fire_us, row in found]

    page = await in_parts(query, meter, behind)
    await _load_nodes(tx, page.items)
    return page


async def _load_nodes(tx: Transaction, fires: Iterable[Fire]) -> None:
    await tx.load_nodes(fire.job for fire in fires if fire.job)


async def _newest_fires(tx: Transaction, query: NewestFires, meter: Meter) -> Page[Fire]:
    async def read(wanted: Sequence[Stretch], most: int) -> list[Fire]:
        return fires_of(await tx.sql.fetch("newest_fires", json.dumps(wanted), query.each - 1, most))

    page = await newest_fires(query, meter, read)
    await _load_nodes(tx, page.items)
    return page


async def _last_outcomes(tx: Transaction, query: LastOutcomes, _: Meter) -> list[Fire]:
    # All their rows are fewer than a read may examine.
    found = fires_of(await tx.sql.fetch("last_outcomes", tx.sql.among(query.names), AMONG))
    await _load_nodes(tx, found)
    return found


class ScheduleSlice(ABC):
    """The slice: ``jobs.slices.Slice``. ``monotonic`` measures fires."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    readers: Final[Readers] = {
        ops.ListSchedules: _list,
        ListFires: _list_fires,
        NewestFires: _newest_fires,
        LastOutcomes: _last_outcomes,
    }

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.handlers: Mapping[type[Operation], Callable[..., Any]] = {ops.FindDue: self.find_due}

    @abstractmethod
    async def read_due(self, tx: Any, operation: ops.FindDue) -> tuple[Sequence[Sequence[Any]], int | None]:
        """Return the name, version and fire time of schedules in the order of these times.

        If they are fewer than requested, also the first time after them; else None.
        """

    async def find_due(self, tx: Transaction, operations: Sequence[ops.FindDue]) -> list[ops.Upcoming]:
        """Return the schedules that are due soon."""
        return [await self._find_due(tx, operation) for operation in operations]

    async def _find_due(self, tx: Transaction, operation: ops.FindDue) -> ops.Upcoming:
        found, later = await self.read_due(tx, operation)
        due = _due(found)
        if len(due) < operation.rows:
            return ops.Upcoming(due, later)
        (last, last_us) = due[-1]
        following = await tx.sql.first("next_schedule", last_us, last.name)
        if following is None:
            return ops.Upcoming(due, None)
        if following[0] <= operation.until_us:
            crowding, limit = tx.sql.among(ops.crowding(due)), max(operation.rows // 4, 1)
            due += _due(await tx.sql.fetch("others_due", last_us, last.name, operation.until_us, crowding, limit))
        return ops.Upcoming(due, following[0])


def _due(rows: Iterable[Sequence[Any]]) -> list[tuple[ops.Due, int]]:
    return [(ops.Due(name, version), next_us) for name, version, next_us in rows]
