"""Which handler each kind of operation has, in which order a group runs them, and which only read: one table for all slices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from mainspring.engines.postgres import jobs, resources
from mainspring.engines.postgres.transaction import Transaction
from mainspring.jobs import store as ops
from mainspring.jobs.store import PHASES
from mainspring.queries.jobs import ListJobs
from mainspring.resources.store import PHASES as RESOURCES
from mainspring.resources.store import ListLimits
from mainspring.storage.operation import Operation

Handler = Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]
"""Takes all operations of its kind that a group has, in their order, and returns their outcomes."""

HANDLERS: Final[dict[type[Operation], Handler]] = {**jobs.HANDLERS, **resources.HANDLERS}
ORDER: Final[tuple[type[Operation], ...]] = (*PHASES, *RESOURCES, ListJobs)
READING: Final = frozenset({ops.Find, ops.FindUnique, ops.Watchers, ops.Look, ops.Count, ListLimits, ListJobs})
"""Groups of these alone need no transaction, no fence and no journal. An operation that writes must not be among them."""


async def handle(tx: Transaction, plan: Plan, size: int) -> list[Any]:
    """Run the operations of a group, and return their outcomes in the group's order."""
    outcomes: list[Any] = [None] * size
    if not HANDLERS.keys() >= plan.keys():
        raise NotImplementedError(f"no handler for {plan.keys() - HANDLERS.keys()}")
    for kind in plan if len(plan) == 1 else ORDER:
        placed = plan.get(kind)
        if placed:
            answers = await HANDLERS[kind](tx, [operation for _, operation in placed])
            for (index, _), answer in zip(placed, answers, strict=True):
                outcomes[index] = answer
    return outcomes


Plan = dict[type[Operation], list[tuple[int, Operation]]]
"""The operations of a group by their kind, each with its place."""


def plan_of(group: Sequence[Operation]) -> Plan:
    """Return a group by kinds."""
    plan: Plan = {}
    for index, operation in enumerate(group):
        plan.setdefault(type(operation), []).append((index, operation))
    return plan
