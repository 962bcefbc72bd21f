"""Which handler each kind of operation has, in which order a group runs them, and which only read: one table for all slices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from mainspring.engines.postgres import jobs, probing, resources, schedules
from mainspring.engines.postgres.transaction import Transaction
from mainspring.jobs import store as ops
from mainspring.jobs.store import ENDING, PHASES, Ended
from mainspring.queries.jobs import FirstInLine, ListJobs
from mainspring.queries.schedules import READING as SCHEDULE_QUERIES
from mainspring.resources.store import PHASES as RESOURCES
from mainspring.resources.store import ListLimits
from mainspring.schedules.store import READING as SCHEDULES
from mainspring.schedules.store import WRITING
from mainspring.storage.operation import Operation, Probe, unknown

Handler = Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]
"""Takes all operations of its kind that a group has, in their order, and returns their outcomes."""

HANDLERS: Final[dict[type[Operation], Handler]] = {
    **jobs.HANDLERS,
    **resources.HANDLERS,
    **schedules.HANDLERS,
    Probe: probing.probe,
}
ORDER: Final[tuple[type[Operation], ...]] = (
    *WRITING,
    *PHASES[len(ENDING) :],
    *RESOURCES,
    Probe,
    ListJobs,
    FirstInLine,
    *SCHEDULES,
    *SCHEDULE_QUERIES,
)
"""What comes after the phases that may end jobs, and after what follows from that."""
FOLLOW: Final[dict[str, Callable[[Transaction, Sequence[Ended]], Awaitable[None]]]] = {"schedules": schedules.follow}
"""What follows from the ends of jobs, by their owners."""
READING: Final = frozenset(
    {
        ops.Find,
        ops.FindUnique,
        ops.Watchers,
        ops.Look,
        ops.Count,
        ops.CountLive,
        ListLimits,
        ListJobs,
        FirstInLine,
        *SCHEDULES,
        *SCHEDULE_QUERIES,
    }
)
"""Groups of these alone need no transaction, no fence and no journal. An operation that writes must not be among them."""


async def handle(tx: Transaction, plan: Plan, size: int) -> list[Any]:
    """Run the operations of a group, and return their outcomes in the group's order."""
    outcomes: list[Any] = [None] * size
    if not HANDLERS.keys() >= plan.keys():
        raise unknown("PostgreSQL", plan.keys() - HANDLERS.keys())
    await schedules.foresee(tx, plan)
    await _handle(tx, plan, ENDING, outcomes)
    while tx.ended:
        owner, ended = tx.ended.popitem()
        await FOLLOW[owner](tx, ended)
    await _handle(tx, plan, ORDER, outcomes)
    return outcomes


async def _handle(tx: Transaction, plan: Plan, kinds: Sequence[type[Operation]], outcomes: list[Any]) -> None:
    for kind in kinds:
        placed = plan.get(kind)
        if placed:
            answers = await HANDLERS[kind](tx, [operation for _, operation in placed])
            for (index, _), answer in zip(placed, answers, strict=True):
                outcomes[index] = answer


Plan = dict[type[Operation], list[tuple[int, Operation]]]
"""The operations of a group by their kind, each with its place."""


def plan_of(group: Sequence[Operation]) -> Plan:
    """Return a group by kinds."""
    plan: Plan = {}
    for index, operation in enumerate(group):
        plan.setdefault(type(operation), []).append((index, operation))
    return plan
