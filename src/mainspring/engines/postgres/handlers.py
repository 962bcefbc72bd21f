"""Which handler each kind of operation has: one table for all slices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.postgres import jobs, probing, resources, schedules
from mainspring.engines.postgres.transaction import Transaction
from mainspring.storage.operation import Operation, Probe, unknown
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from mainspring.jobs.store import Ended
    from mainspring.storage.plan import Plan

Handler = Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]
"""Takes all operations of its kind that a group has, in their order, and returns their outcomes."""

HANDLERS: Final[dict[type[Operation], Handler]] = {
    **jobs.HANDLERS,
    **resources.HANDLERS,
    **schedules.HANDLERS,
    Probe: probing.probe,
}
FOLLOW: Final[dict[str, Callable[[Transaction, Sequence[Ended]], Awaitable[None]]]] = {"schedules": schedules.follow}
"""What follows from the ends of jobs, by their owners."""


async def handle(tx: Transaction, plan: Plan, size: int) -> list[Any]:
    """Run the operations of a group, and return their outcomes in the group's order."""
    outcomes: list[Any] = [None] * size
    if not HANDLERS.keys() >= plan.keys():
        raise unknown("PostgreSQL", plan.keys() - HANDLERS.keys())
    await schedules.foresee(tx, plan)
    for kind, placed in plan.items():
        if kind.phase >= Phase.SLICES:
            await _follow(tx)
        answers = await HANDLERS[kind](tx, [operation for _, operation in placed])
        for (place, _), answer in zip(placed, answers, strict=True):
            outcomes[place] = answer
    await _follow(tx)
    return outcomes


async def _follow(tx: Transaction) -> None:
    while tx.ended:
        owner, ended = tx.ended.popitem()
        await FOLLOW[owner](tx, ended)
