"""The handlers by kind of operation, and the runner of groups.

A handler is called with all of a group's operations of its kind. The probe checks that the server accepts writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from mainspring.access.audit import recorded_acts
from mainspring.access.idempotency import KeyedGroup, has_keys
from mainspring.engines.postgres import (
    access,
    changing,
    claiming,
    job_records,
    partitions,
    queries,
    settling,
    submitting,
)
from mainspring.engines.postgres.transaction import Transaction, load_statements
from mainspring.jobs import store as ops
from mainspring.jobs.slices import Slice, Units
from mainspring.storage.engine import Operation, Phase, Probe, unknown

if TYPE_CHECKING:
    from mainspring.storage.engine import Plan

_SQL = load_statements("engine.sql")


async def probe(tx: Transaction, operations: Sequence[Probe]) -> list[None]:
    """Check the rights to all tables; the group's row in the journal is the write."""
    withheld = await tx.connection.fetchval(_SQL["withheld"])
    if withheld is not None:
        # The server's own text for a statement that needs the right: one cause has one text.
        raise asyncpg.InsufficientPrivilegeError(f"permission denied for table {withheld}")
    return [None] * len(operations)


if TYPE_CHECKING:
    JobHandler = Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]

JOB_HANDLERS: Final[dict[type[Operation], JobHandler]] = {
    ops.Recover: settling.recover,
    ops.Settle: settling.settle,
    ops.Assign: claiming.assign,
    ops.Cancel: changing.cancel,
    ops.Redrive: changing.redrive,
    ops.Reschedule: changing.reschedule,
    ops.DeleteEnded: changing.delete_ended,
    ops.Sweep: partitions.sweep,
    ops.Wake: changing.wake,
    ops.DrainInbox: submitting.drain_inbox,
    ops.Submit: submitting.submit,
    ops.SubmitOnce: submitting.submit,
    ops.Unsubscribe: settling.leave,
    ops.Claim: claiming.claim,
    ops.ClaimByKey: claiming.claim_by_key,
    ops.Subscribe: settling.wait,
    ops.Find: queries.find,
    ops.FindUnique: queries.find_unique,
    ops.FindSubscribers: settling.find_subscribers,
    ops.ReadBacklog: queries.read_backlog,
    ops.Count: queries.count,
    ops.CountLive: queries.count_live,
}

Handler = Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]
"""Runs all operations of its kind in a group, in their order, and returns their outcomes."""

HANDLERS: Final[dict[type[Operation], Handler]] = {
    **JOB_HANDLERS,
    **claiming.RESOURCE_HANDLERS,
    **job_records.LOG_HANDLERS,
    **access.HANDLERS,
    **access.REPLY_HANDLERS,
    **job_records.SERIES_HANDLERS,
    Probe: probe,
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
        keyed = KeyedGroup(plan, access.ReplyRows(tx), outcomes) if has_keys(plan) else None
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
