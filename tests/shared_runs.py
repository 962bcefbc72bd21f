"""Runs of workflows in tables that several nodes share: each node has runs in its memory, which others may have changed since."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mainspring.engines.memory.workflows import MemoryRuns, MemoryWorkflowSlice
from mainspring.workflows.store import FindSentSignals, HasErrands, RunRow, SentSignals
from mainspring.workflows.unit import WorkflowUnit

if TYPE_CHECKING:
    from mainspring.engines.memory.engine import Transaction
    from mainspring.engines.memory.tables import Tables
    from mainspring.storage.engine import Meter
    from mainspring.workflows.tables import Writes


class SharedRuns(MemoryRuns):
    """``RunTables`` as on PostgreSQL, where groups do not overlap: the errands of a group are left to later ones."""

    stores_errands = True

    def is_current(self, row: RunRow) -> bool:
        stored = self._tables.workflows.get(row.id)
        return stored is not None and stored.written == row.written

    async def write(self, writes: Writes) -> None:
        rows = [*writes.new]
        for changes in (writes.appended, writes.rescheduled, writes.changed):
            rows += [change.row for change in changes]
        for row in rows:
            stored = self._tables.workflows.get(row.id)
            row.written = 1 if stored is None else stored.written + 1
        await super().write(writes)

    async def last_run(self, namespace: str, workflow_id: str) -> int:
        """Return the run that was closed last: ids are in the order of nodes."""
        rows = (self._tables.workflows[run] for run in self._tables.workflow_ids.get((namespace, workflow_id), ()))
        last = max(rows, key=lambda row: (row.status.open, row.closed_us, row.started_us), default=None)
        return 0 if last is None else last.id


async def has_errands(tables: Tables, query: HasErrands, _: Meter) -> bool:
    """Return whether there are stored errands behind one."""
    return any(number > query.after for number in tables.errands)


async def no_sent_signals(tables: Tables, query: FindSentSignals, _: Meter) -> SentSignals:
    """Return none: only users with SQL send signals in their transactions."""
    del tables, query
    return SentSignals([], 0, 0, "")


READERS: dict[Any, Any] = {HasErrands: has_errands, FindSentSignals: no_sent_signals}


class SharedWorkflowSlice(MemoryWorkflowSlice):
    """The slice of one node."""

    readers = MappingProxyType({**MemoryWorkflowSlice.readers, **READERS})  # type: ignore[misc] # of a shared store

    def unit(self, tx: Transaction) -> WorkflowUnit:
        return WorkflowUnit(SharedRuns(tx), self.cache, self._limits, self._observers, self._errands_aside)
