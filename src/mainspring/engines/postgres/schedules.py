"""The schedules slice on PostgreSQL.

What a fire time leads to is decided in the transaction of the group, by ``mainspring.schedules.work``, on rows that are locked:
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

from mainspring.engines.postgres.catalogue import Known
from mainspring.engines.postgres.floors import Floors
from mainspring.engines.postgres.schedule_tables import SQL, DueFloor, PostgresSchedules
from mainspring.jobs import store as job_ops
from mainspring.schedules import store as ops
from mainspring.schedules import work
from mainspring.schedules.retention import forget, ripe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.store import Ended
    from mainspring.storage.operation import Operation
    from mainspring.storage.plan import Plan

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


def _ends(plan: Plan) -> set[str]:
    """Return the schedules whose runs a group says to have ended."""
    return {
        options.schedule
        for _, operation in plan.get(job_ops.Settle, ())
        for settlement in operation.settlements
        if (options := settlement.job.options) is not None and options.schedule is not None
    }


def _named(plan: Plan) -> set[str]:
    """Return the schedules that a group's operations name, apart from those that it fires."""
    names = {operation.name for _, operation in plan.get(ops.TriggerSchedule, ())}
    names.update(change.name for _, operation in plan.get(ops.SaveSchedules, ()) for change in operation.changes)
    return names


async def foresee(tx: Transaction, plan: Plan) -> None:
    """Begin the schedules' side of a group: take the locks that it will need, as far as its operations tell."""
    tables = tx.part(PostgresSchedules)
    ends, names = _ends(plan), _named(plan)
    for _, operation in plan.get(ops.MendSchedules, ()):
        found = await tx.connection.fetch(SQL["to_mend"], operation.limit)
        names.update(row[0] for row in found)
        tables.mends = tables.mends or bool(found)
    for _, operation in plan.get(ops.ForgetFires, ()):
        _, old = await tables.oldest(operation.after, operation.before_us, operation.rows)
        names.update(ripe(old, operation.before_us))
    fired = {one.name for _, operation in plan.get(ops.FireSchedules, ()) for one in operation.due}
    if ends or names or fired or ops.SaveSchedules in plan:
        await tables.enter(alone=ops.SaveSchedules in plan)
        known, busy = tx.memory(Known), tx.memory(Busy)
        if fired:
            tx.after_rollback(busy.note)
        names.update(filter(known.minds_ends, ends))
        alone = {name for name in fired - names if not known.minds_ends(name)} if busy else set[str]()
        await tables.lock((names | fired) - alone)
        await tables.lock_free(alone)


async def follow(tx: Transaction, ended: Sequence[Ended]) -> None:
    """Do what follows for schedules from the ends of jobs."""
    await tx.part(PostgresSchedules).meet({one.term for one in ended})
    await work.follow(tx.part(PostgresSchedules), ended)


async def write(tx: Transaction, operations: Sequence[Operation]) -> list[Any]:
    """Run operations that write, one after the other."""
    return [await work.run(tx.part(PostgresSchedules), operation) for operation in operations]


async def mend(tx: Transaction, operations: Sequence[ops.MendSchedules]) -> list[int]:
    """Put right what no transaction could see, unless another node does so at the moment; see ``MendSchedules``."""
    return await write(tx, operations) if tx.part(PostgresSchedules).mends else [0] * len(operations)


async def forget_fires(tx: Transaction, operations: Sequence[ops.ForgetFires]) -> list[ops.Forgotten]:
    """Drop old rows; see ``ForgetFires``."""
    return [await forget(tx.part(PostgresSchedules), operation) for operation in operations]


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


HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]]] = {
    ops.SaveSchedules: write,
    ops.Declare: write,
    ops.MendSchedules: mend,
    ops.FireSchedules: write,
    ops.TriggerSchedule: write,
    ops.ForgetFires: forget_fires,
    ops.FindDue: find_due,
}
