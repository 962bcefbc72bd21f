"""The schedules slice on PostgreSQL.

What a fire time leads to is decided in the transaction of the group, by ``mainspring.schedules.unit``, on rows that are locked:
whoever comes second reads how the first one left them. A group takes its locks in this order, and each of them before the rows of
any job, so that two nodes' groups do not wait for each other in a circle:

1. the catalogue: shared, or alone by whoever changes specifications. So all groups under way agree about who is whose parent.
2. the rows of the schedules that it is about, by their names. A family, which is schedules that are related by parents, is locked
   by the row of its first member (``catalogue.leaders``): its groups take turns, and need no order among themselves after that.
   The end of a run that nothing follows from, which is most, needs no lock: whoever ends a job has its row.

A node that is frozen in the middle of a group keeps its locks until the server ends its session, for seconds. Others wait for a
moment; then they fire what they can, and leave what only that group was about to fire to a later look.

Ends that show only in the group (a job that expires) lock late. That may end in a deadlock, which PostgreSQL breaks, and the
group is run again.

A fire time costs one update of ``schedules`` and a row in ``fires``, which is written once more at the end of its run and then
stays until it may be forgotten (``mainspring.schedules.retention``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.postgres.catalogue import CatalogueCache
from mainspring.engines.postgres.floors import Floors
from mainspring.engines.postgres.rows import LARGEST_ID
from mainspring.engines.postgres.schedule_tables import SQL, DueFloor, PostgresSchedules
from mainspring.jobs.slices import of_kind, settled_keys
from mainspring.queries.schedules import ListFires
from mainspring.schedules import store as ops
from mainspring.schedules import unit
from mainspring.schedules.codecs import decode_fire, decode_schedule, decode_state
from mainspring.schedules.reconcile import Stored
from mainspring.schedules.retention import ripe
from mainspring.schedules.unit import ScheduleUnit
from mainspring.storage.query import in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.owners import Notice
    from mainspring.schedules.model import Fire
    from mainspring.storage.operation import Operation
    from mainspring.storage.plan import Plan
    from mainspring.storage.query import Meter, Page, Query

FROZEN: Final = 6.0
"""Seconds for which a node that is frozen may keep its locks: after five, the server ends its session."""
SLACK: Final = 10_000_000
"""Microseconds by which new schedules may begin before the first one that is due."""


class Busy:
    """Whether locks were waited for in vain just now: a group that fires schedules was not committed."""

    def __init__(self) -> None:
        self._noted = -FROZEN

    def note(self) -> None:
        """Note that it is so now."""
        self._noted = time.monotonic()

    def __bool__(self) -> bool:
        return time.monotonic() - self._noted < FROZEN


# ---- groups ----


def _named(plan: Plan) -> set[str]:
    """Return the schedules that a group's operations name, apart from those that it fires."""
    names = {operation.name for operation in of_kind(plan, ops.TriggerSchedule)}
    names.update(change.name for operation in of_kind(plan, ops.SaveSchedules) for change in operation.changes)
    return names


class PostgresScheduleUnit(ScheduleUnit):
    """The schedules' side of one attempt to run a group."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._rows = PostgresSchedules(tx)
        super().__init__(self._rows)

    async def lock(self, plan: Plan) -> None:
        """Take the locks that the group will need, as far as its operations tell."""
        tx, tables = self._tx, self._rows
        ends, names = {name for name, _ in settled_keys(plan, unit.KIND)}, _named(plan)
        for mending in of_kind(plan, ops.RepairSchedules):
            found = await tx.connection.fetch(SQL["to_mend"], mending.limit)
            names.update(row[0] for row in found)
            tables.mends = tables.mends or bool(found)
        for forgetting in of_kind(plan, ops.ForgetFires):
            _, old = await tables.oldest(forgetting.after, forgetting.before_us, forgetting.rows)
            names.update(ripe(old, forgetting.before_us))
        fired = {one.name for operation in of_kind(plan, ops.FireSchedules) for one in operation.due}
        if ends or names or fired or ops.SaveSchedules in plan:
            await tables.enter(alone=ops.SaveSchedules in plan)
            known, busy = tx.memory(CatalogueCache), tx.memory(Busy)
            if fired:
                tx.after_rollback(busy.note)
            names.update(filter(known.minds_ends, ends))
            alone = {name for name in fired - names if not known.minds_ends(name)} if busy else set[str]()
            await tables.lock((names | fired) - alone)
            await tables.lock_free(alone)

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Do what follows for schedules from the ends of jobs."""
        await self._rows.meet({one.term for one in notices})
        await super().follow(notices)

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run an operation that writes; nothing is mended where another node does so at the moment."""
        if isinstance(operation, ops.RepairSchedules) and not self._rows.mends:
            return int
        return await super().run(operation)


# ---- reading ----


async def find_due(tx: Transaction, operations: Sequence[ops.FindDue]) -> list[ops.Upcoming]:
    """Find what is due soon; see ``FindDue``."""
    return [await _find_due(tx, operation) for operation in operations]


async def _find_due(tx: Transaction, operation: ops.FindDue) -> ops.Upcoming:
    floor, clock = tx.memory(DueFloor), tx.memory(Floors).clock
    began = clock()
    whole, (place,) = floor.begin(began)
    found = await tx.connection.fetch(SQL["due_soon"], place, operation.until_us, operation.rows)
    if whole:
        floor.scans.took(began, clock() - began)
    due = [(ops.Due(name, version), next_us) for name, version, next_us in found if name is not None]
    if floor.scans.slow:
        floor.rise((due[0][1] if due else operation.until_us) - SLACK)
    if len(due) == operation.rows:
        (last, last_us) = due[-1]
        return ops.Upcoming(due, await tx.connection.fetchval(SQL["due_after"], last_us, last.name))
    return ops.Upcoming(due, found[-1][2] if len(found) > len(due) else None)


async def list_schedules(tx: Transaction, query: ops.ListSchedules, meter: Meter) -> Page[Stored]:
    """List schedules by their names."""
    statement = SQL["schedules" if query.names is None else "schedules_named"]
    named = [] if query.names is None else [list(query.names)]

    async def behind(after: str | None, most: int) -> list[tuple[str, Stored]]:
        found = await tx.connection.fetch(statement, after or "", most, *named)
        return [(name, Stored(decode_schedule(schedule), decode_state(state))) for name, schedule, state in found]

    return await in_parts(query, meter, behind)


async def list_fires(tx: Transaction, query: ListFires, meter: Meter) -> Page[Fire]:
    """List rows, the newest first. The nodes of their jobs are known then: handles are made of both."""

    async def behind(after: int | None, most: int) -> Sequence[tuple[int, Fire]]:
        found = await tx.connection.fetch(SQL["history"], query.name, LARGEST_ID if after is None else after, most)
        return [(fire_us, decode_fire(row)) for fire_us, row in found]

    page = await in_parts(query, meter, behind)
    await tx.nodes.meet(row.job for row in page.items if row.job)
    return page


class PostgresScheduleSlice:
    """The slice on this engine: ``jobs.slices.Slice``."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Mapping[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]]] = {
        ops.FindDue: find_due
    }
    readers: Final[Mapping[type[Query[Any]], Callable[[Transaction, Any, Meter], Awaitable[Any]]]] = {
        ops.ListSchedules: list_schedules,
        ListFires: list_fires,
    }

    def unit(self, tx: Transaction) -> PostgresScheduleUnit:
        """Begin a unit of work."""
        return PostgresScheduleUnit(tx)
