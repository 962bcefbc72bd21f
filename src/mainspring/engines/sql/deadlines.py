"""The rows of deadlines, and the options that have the times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.deadlines.store import FindDeadlines, Item, RingDeadlines, Upcoming, items_of, ring
from mainspring.jobs.lateness import DueRow
from mainspring.workflows.history import DecisionTaskStarted, decode_events

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.deadlines.store import DeadlineTables
    from mainspring.engines.sql.statements import Handlers, Statements, Transaction
    from mainspring.jobs.lateness import Redated
    from mainspring.jobs.model import Job
    from mainspring.jobs.slices import JobLifecycle

FIRST_BLOCKS = 50
"""Blocks of a history without a decision that are looked at; a longer one counts as begun."""


async def put(tx: Any, rows: Sequence[DueRow]) -> None:
    """Write rows, in place of earlier ones; the node learns of them after the commit."""
    sql: Statements = tx.sql
    await sql.many("put_deadlines", rows)
    lifecycle: JobLifecycle | None = tx.lifecycle
    if lifecycle is not None and rows:
        tx.commits.append(lambda: lifecycle.dated(rows))


async def redate(tx: Any, job: Job, change: Redated | None, encode: Callable[[Job], bytes | None]) -> None:
    """Write new times of a job, if there is a change; ``encode`` returns its options as they are stored."""
    if change is None:
        return
    sql: Statements = tx.sql
    job.options = change.options
    await sql.execute("set_options", job.id, encode(job))
    await put(tx, change.rows)
    await sql.many("remove_deadlines", [(job.id, kind) for kind in change.dropped])


class DeadlineRows:
    """``DeadlineTables`` but for the jobs."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self._sql: Statements = tx.sql

    async def take(self, jobs: Collection[int], until_us: int) -> Sequence[DueRow]:
        return [DueRow(*row) for row in await self._sql.fetch("take_deadlines", self._sql.among(jobs), until_us)]

    async def decided(self, roots: Collection[int]) -> Collection[int]:
        return {root for root in roots if await self._has_decided(root)}

    async def _has_decided(self, root: int) -> bool:
        row = await self._sql.first("is_open_run", root)
        if row is None or row[0]:
            return row is not None  # a closed run is followed by another one; without a run, the root job waits
        blocks = [block for (block,) in await self._sql.fetch("blocks", root, 1, FIRST_BLOCKS)]
        events = (event for block in blocks for event in decode_events(block))
        return len(blocks) == FIRST_BLOCKS or any(isinstance(event, DecisionTaskStarted) for event in events)

    async def remove(self, rows: Sequence[DueRow]) -> None:
        await self._sql.many("remove_deadlines", [(row.job, row.kind) for row in rows])


async def find_deadlines(tx: Transaction, operations: Sequence[FindDeadlines]) -> list[Upcoming]:
    """Return the rows that are due soon."""
    return [await _find(tx.sql, one) for one in operations]


async def _find(sql: Statements, operation: FindDeadlines) -> Upcoming:
    due = items_of(await sql.fetch("due_deadlines", operation.until_us, operation.rows))
    last, last_us = due[-1] if due else (Item(0, 0), operation.until_us)
    if len(due) < operation.rows:
        last, last_us = Item(2**63 - 1, 0), operation.until_us
    row = await sql.first("next_deadline", last_us, *last)
    return Upcoming(due, None if row is None else row[0])


def handlers(tables: Callable[[Any], DeadlineTables]) -> Handlers:
    """Return the handlers of an engine with these tables."""

    async def ring_deadlines(tx: Any, operations: Sequence[RingDeadlines]) -> list[list[Item]]:
        return [await ring(tables(tx), tx.events, one) for one in operations]

    return {FindDeadlines: find_deadlines, RingDeadlines: ring_deadlines}
