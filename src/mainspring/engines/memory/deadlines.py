"""The rows of deadlines in memory, and the options that have the times."""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

from mainspring.deadlines.store import FindDeadlines, Item, RingDeadlines, Upcoming, ring
from mainspring.jobs.lateness import DueRow
from mainspring.jobs.model import State
from mainspring.storage.engine import run_synchronously
from mainspring.workflows.history import DecisionTaskStarted, decode_events

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.lateness import Redated
    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Operation


def put(tables: Tables, rows: Iterable[DueRow]) -> None:
    """Write rows, in place of earlier ones; the node learns of them after the group."""
    for row in rows:
        tables.deadlines[Item(row.job, row.kind, row.schedule)] = row.due_us
        tables.dated.append(row)


def redate(tables: Tables, job: Job, change: Redated | None) -> None:
    """Write new times of a job, if there is a change."""
    if change is None:
        return
    job.options = change.options
    put(tables, change.rows)
    for kind in change.dropped:
        tables.deadlines.pop(Item(job.id, kind), None)


class MemoryDeadlines:
    """``DeadlineTables`` in dictionaries."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def take(self, jobs: Collection[int], until_us: int) -> Sequence[DueRow]:
        found = self._tables.deadlines
        items = (Item(job, kind) for job in sorted(jobs) for kind in (1, 2))
        return [DueRow(one.job, one.kind, found[one]) for one in items if found.get(one, until_us + 1) <= until_us]

    async def live_jobs(self, ids: Collection[int]) -> tuple[Mapping[int, Job], Collection[int]]:
        jobs = self._tables.jobs
        return {one: jobs[one] for one in ids if one in jobs and not State(jobs[one].state).ended}, ()

    async def decided(self, roots: Collection[int]) -> Collection[int]:
        return {root for root in roots if self._has_decided(root)}

    def _has_decided(self, root: int) -> bool:
        row = self._tables.workflows.get(root)
        if row is None or not row.status.open:
            return row is not None
        _, blocks = self._tables.histories[root]
        return any(isinstance(event, DecisionTaskStarted) for block in blocks for event in decode_events(block))

    async def remove(self, rows: Sequence[DueRow]) -> None:
        for row in rows:
            del self._tables.deadlines[Item(row.job, row.kind)]


def _find(tables: Tables, operation: FindDeadlines) -> Upcoming:
    times = ((due_us, item) for item, due_us in tables.deadlines.items())
    first = nsmallest(operation.rows + 1, times)
    due = [(item, due_us) for due_us, item in first[: operation.rows] if due_us <= operation.until_us]
    rest = first[len(due) :]
    return Upcoming(due, rest[0][0] if rest else None)


def _ring(tables: Tables, operation: RingDeadlines) -> list[Item]:
    return run_synchronously(ring(MemoryDeadlines(tables), tables.new_events, operation))


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {FindDeadlines: _find, RingDeadlines: _ring}
