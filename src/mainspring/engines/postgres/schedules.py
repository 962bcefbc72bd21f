"""The schedules slice on PostgreSQL.

``mainspring.schedules.unit`` decides the effects of a fire time in the group's transaction, on locked rows: the second of two
nodes reads the first one's changes. A group takes its locks in this order, and each of them before the rows of any job, so that
two nodes' groups do not deadlock:

1. the catalogue: shared, or exclusive to change specifications. So all groups under way agree on the schedules' parents.
2. the rows of its schedules, by their names. A family is a set of schedules that are related by parents; it is locked by the
   row of its first member (``catalogue.leaders``): its groups run one after the other, and need no further order. Most ends of
   runs have no effect on other rows and need no lock: the group that ends a job has locked its row.

A node that freezes in the middle of a group keeps its locks for seconds, until the server ends its session. Other nodes wait for
a moment; then they fire the other schedules, and leave those that only that group was about to fire to a later attempt.

Ends that show only in the group (a job that expires) are locked late. That may end in a deadlock; PostgreSQL breaks it, and the
group runs again.

A fire time costs one update of ``schedules`` and a row in ``fires``. The end of its run updates that row, which then stays until
its retention ends (``mainspring.schedules.retention``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from mainspring.bulk.store import StepBackfill
from mainspring.engines.postgres.catalogue import CatalogueCache
from mainspring.engines.postgres.floors import Floors
from mainspring.engines.postgres.rows import LARGEST_ID
from mainspring.engines.postgres.schedule_tables import SQL, DueFloor, PostgresSchedules, fires_of
from mainspring.jobs.slices import of_kind, settled_keys
from mainspring.queries.schedules import AMONG, LastOutcomes, ListFires, NewestFires, newest_fires
from mainspring.schedules import store as ops
from mainspring.schedules import unit
from mainspring.schedules.codecs import decode_fire, decode_stored
from mainspring.schedules.retention import ripe
from mainspring.schedules.unit import ScheduleUnit
from mainspring.storage.query import in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.owners import Notice
    from mainspring.queries.schedules import Stretch
    from mainspring.schedules.model import Fire
    from mainspring.schedules.reconcile import Stored
    from mainspring.storage.operation import Operation
    from mainspring.storage.plan import Plan
    from mainspring.storage.query import Meter, Page, Query

FROZEN_FOR: Final = 6.0
"""Seconds for which a frozen node may keep its locks: after five, the server ends its session."""
DUE_SLACK_US: Final = 10_000_000
"""Microseconds by which new schedules may precede the first one that is due."""


class LockContention:
    """Whether a group that fires schedules has just failed to get its locks."""

    def __init__(self) -> None:
        self._noted = -FROZEN_FOR

    def note(self) -> None:
        """Note such a failure."""
        self._noted = time.monotonic()

    def __bool__(self) -> bool:
        return time.monotonic() - self._noted < FROZEN_FOR


# ---- groups ----


def _named(plan: Plan) -> set[str]:
    """Return the schedules that a group's operations name, except those that it fires."""
    names = {operation.name for operation in of_kind(plan, ops.TriggerSchedule)}
    names.update(operation.schedule for operation in of_kind(plan, StepBackfill))
    names.update(change.name for operation in of_kind(plan, ops.SaveSchedules) for change in operation.changes)
    return names


class PostgresScheduleUnit(ScheduleUnit):
    """The schedules' part of one attempt to run a group."""

    def __init__(self, tx: Transaction, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tx = tx
        self._rows = tx.tables(PostgresSchedules)
        super().__init__(self._rows, monotonic)

    async def lock(self, plan: Plan) -> None:
        """Take the locks that the group will need, as far as its operations show."""
        tx, tables = self._tx, self._rows
        ends, names = {name for name, _ in settled_keys(plan, unit.KIND)}, _named(plan)
        for repairing in of_kind(plan, ops.RepairSchedules):
            found = await tx.connection.fetch(SQL["to_repair"], repairing.limit)
            names.update(row[0] for row in found)
            tables.repairs = tables.repairs or bool(found)
        for forgetting in of_kind(plan, ops.ForgetFires):
            _, old = await tables.oldest(forgetting.after, forgetting.before_us, forgetting.rows)
            names.update(ripe(old, forgetting.before_us, forgetting.now_us))
        fired = {one.name for operation in of_kind(plan, ops.FireSchedules) for one in operation.due}
        if ends or names or fired or ops.SaveSchedules in plan:
            await tables.enter(exclusive=ops.SaveSchedules in plan)
            cache, contention = tx.memory(CatalogueCache), tx.memory(LockContention)
            if fired:
                tx.after_rollback(contention.note)
            names.update(filter(cache.end_affects_others, ends))
            unrelated = (
                {name for name in fired - names if not cache.end_affects_others(name)} if contention else set[str]()
            )
            await tables.lock((names | fired) - unrelated)
            await tables.lock_free(unrelated)

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Apply the effects of ended jobs on schedules."""
        await self._rows.meet({one.term for one in notices})
        await super().follow(notices)

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run an operation that writes; repair nothing if another node is repairing."""
        if isinstance(operation, ops.RepairSchedules) and not self._rows.repairs:
            return int
        return await super().run(operation)


# ---- reading ----


async def find_due(tx: Transaction, operations: Sequence[ops.FindDue]) -> list[ops.Upcoming]:
    """Return the schedules that are due soon; see ``FindDue``."""
    return [await _find_due(tx, operation) for operation in operations]


async def _find_due(tx: Transaction, operation: ops.FindDue) -> ops.Upcoming:
    floor, clock = tx.memory(DueFloor), tx.memory(Floors).clock
    began = clock()
    whole, (place,) = floor.begin(began)
    found = await tx.connection.fetch(SQL["due_soon"], place, operation.until_us, operation.rows)
    if whole:
        floor.scans.note_cost(began, clock() - began)
    due = [(ops.Due(name, version), next_us) for name, version, next_us in found if name is not None]
    if floor.scans.slow:
        floor.rise((due[0][1] if due else operation.until_us) - DUE_SLACK_US)
    if len(due) == operation.rows:
        (last, last_us) = due[-1]
        following = await tx.connection.fetchval(SQL["due_after"], last_us, last.name)
        if following is not None and following <= operation.until_us:
            values = (last_us, last.name, operation.until_us, ops.crowding(due), max(operation.rows // 4, 1))
            others = await tx.connection.fetch(SQL["others_due"], *values)
            due += [(ops.Due(name, version), next_us) for name, version, next_us in others]
        return ops.Upcoming(due, following)
    return ops.Upcoming(due, found[-1][2] if len(found) > len(due) else None)


async def list_schedules(tx: Transaction, query: ops.ListSchedules, meter: Meter) -> Page[Stored]:
    """List schedules by their names."""
    statement = SQL["schedules" if query.names is None else "schedules_named"]
    values = [query.namespace if query.names is None else list(query.names)]

    async def behind(after: str | None, most: int) -> list[tuple[str, Stored]]:
        found = await tx.connection.fetch(statement, after or "", most, *values)
        return [(name, decode_stored(name, schedule, state)) for name, schedule, state in found]

    return await in_parts(query, meter, behind)


async def list_fires(tx: Transaction, query: ListFires, meter: Meter) -> Page[Fire]:
    """List fire times, newest first. The nodes of their jobs are loaded: handles need both."""

    async def behind(after: int | None, most: int) -> Sequence[tuple[int, Fire]]:
        found = await tx.connection.fetch(SQL["history"], query.name, LARGEST_ID if after is None else after, most)
        return [(fire_us, decode_fire(query.name, fire_us, row)) for fire_us, row in found]

    page = await in_parts(query, meter, behind)
    await tx.nodes.load(row.job for row in page.items if row.job)
    return page


async def read_newest_fires(tx: Transaction, query: NewestFires, meter: Meter) -> Page[Fire]:
    """Read the newest fire times of some schedules, and load the nodes of their jobs."""

    async def read(wanted: Sequence[Stretch], most: int) -> list[Fire]:
        columns = map(list, zip(*wanted, strict=True)) if wanted else ([], [], [])
        return fires_of(await tx.connection.fetch(SQL["newest_fires"], *columns, query.each - 1, most))

    page = await newest_fires(query, meter, read)
    await tx.nodes.load(row.job for row in page.items if row.job)
    return page


async def last_outcomes(tx: Transaction, query: LastOutcomes, meter: Meter) -> list[Fire]:
    """Read the last outcomes of some schedules, and load the nodes of their jobs."""
    del meter  # all their rows are fewer than a read may examine
    found = fires_of(await tx.connection.fetch(SQL["last_outcomes"], list(query.names), AMONG))
    await tx.nodes.load(row.job for row in found if row.job)
    return found


class PostgresScheduleSlice:
    """The slice on this engine: ``jobs.slices.Slice``. ``monotonic`` measures fires."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]]] = {
        ops.FindDue: find_due
    }
    readers: Final[Mapping[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]] = {
        ops.ListSchedules: list_schedules,
        ListFires: list_fires,
        NewestFires: read_newest_fires,
        LastOutcomes: last_outcomes,
    }

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic

    def unit(self, tx: Transaction) -> PostgresScheduleUnit:
        """Begin a unit of work."""
        return PostgresScheduleUnit(tx, self._monotonic)
