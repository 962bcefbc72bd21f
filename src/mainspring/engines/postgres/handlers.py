"""The handlers by kind of operation, and the runner of groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from mainspring.access.audit import recorded_acts
from mainspring.access.once import KeyedGroup, has_keys
from mainspring.engines.postgres import access, jobs, logs, probing, replies, resources, series
from mainspring.engines.postgres.transaction import Transaction
from mainspring.jobs.slices import Slice, Units
from mainspring.storage.operation import Operation, Probe, unknown
from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from mainspring.storage.plan import Plan

Handler = Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]
"""Runs all operations of its kind in a group, in their order, and returns their outcomes."""

HANDLERS: Final[dict[type[Operation], Handler]] = {
    **jobs.HANDLERS,
    **resources.HANDLERS,
    **logs.HANDLERS,
    **access.HANDLERS,
    **replies.HANDLERS,
    **series.HANDLERS,
    Probe: probing.probe,
}


class Runner:
    """Runs groups, with the handlers of the registered slices."""

    def __init__(self, slices: Sequence[Slice[Transaction]]) -> None:
        self._slices = slices
        self._handlers = dict(HANDLERS)
        for one in slices:
            self._handlers |= one.handlers
        self._kinds = self._handlers.keys() | {kind for one in slices for kind in one.writes}

    async def handle(self, tx: Transaction, plan: Plan, size: int) -> list[Any]:
        """Run the operations of a group, and return their outcomes in the group's order."""
        outcomes: list[Any] = [None] * size
        if not self._kinds >= plan.keys():
            raise unknown("PostgreSQL", plan.keys() - self._kinds)
        keyed = KeyedGroup(plan, replies.ReplyRows(tx), outcomes) if has_keys(plan) else None
        if keyed is not None:
            plan = await keyed.reserve(plan)
        units = Units(self._slices, tx)
        await units.lock(plan)
        for kind, placed in plan.items():
            if kind.phase < Phase.SLICES:
                await self._run(tx, kind, placed, outcomes)
        await units.run(plan, tx.notices, outcomes)
        for kind, placed in plan.items():
            if kind.phase > Phase.SLICES:
                await self._run(tx, kind, placed, outcomes)
        if acts := recorded_acts(plan, outcomes):
            await access.record(tx, acts)
        if keyed is not None:
            await keyed.keep()
        return outcomes

    async def _run(
        self, tx: Transaction, kind: type[Operation], placed: Sequence[tuple[int, Operation]], outcomes: list[Any]
    ) -> None:
        answers = await self._handlers[kind](tx, [operation for _, operation in placed])
        for (place, _), answer in zip(placed, answers, strict=True):
            outcomes[place] = answer
