"""Published values in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.jobs.model import State
from mainspring.storage.engine import run_synchronously
from mainspring.values.model import Mark, publish, sweep
from mainspring.values.service import LookValues, PublishValues, ReadValues, Seen, SweepValues

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.engines.memory.queries import Readers
    from mainspring.engines.memory.tables import Tables
    from mainspring.storage.engine import Meter, Operation
    from mainspring.values.model import StoredValue, Swept


class MemoryValues:
    """``values.model.ValueTables``."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._values = tables.values

    async def held(self, jobs: Collection[int], term: int) -> Collection[int]:
        found = (self._tables.jobs.get(job) for job in jobs)
        return [job.id for job in found if job is not None and State(job.state).held and job.term == term]

    async def marks(self, jobs: Collection[int]) -> Sequence[Mark]:
        rows = (row for job in jobs for row in self._values.get(job, {}).values())
        return [Mark(row.job, row.name, row.number, len(row.value)) for row in rows]

    async def put(self, rows: Sequence[StoredValue]) -> None:
        for row in rows:
            self._values.setdefault(row.job, {})[row.name] = row

    async def drop(self, values: Sequence[tuple[int, str]]) -> None:
        for job, name in values:
            del self._values[job][name]

    async def valued(self, after: int, limit: int) -> Sequence[int]:
        return sorted(job for job in self._values if job > after)[:limit]

    async def existing(self, jobs: Collection[int]) -> Collection[int]:
        return [job for job in jobs if job in self._tables.jobs]

    async def forget(self, jobs: Collection[int]) -> None:
        for job in jobs:
            del self._values[job]


def _publish(tables: Tables, operation: PublishValues) -> list[int]:
    return run_synchronously(publish(MemoryValues(tables), operation.values, operation.term))


def _sweep(tables: Tables, operation: SweepValues) -> Swept:
    return run_synchronously(sweep(MemoryValues(tables), operation.after, operation.rows))


async def _read(tables: Tables, query: ReadValues, _: Meter) -> list[StoredValue]:
    rows = tables.values.get(query.job, {})
    return [row for name, row in sorted(rows.items()) if query.name in {None, name}]


async def _look(tables: Tables, query: LookValues, _: Meter) -> Seen:
    numbers = {
        job: max(row.number for row in tables.values[job].values()) for job in query.jobs if job in tables.values
    }
    jobs = (tables.jobs.get(job) for job in query.jobs)
    return Seen(numbers, frozenset(job.id for job in jobs if job is not None and not State(job.state).ended))


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {PublishValues: _publish, SweepValues: _sweep}
READERS: Final[Readers] = {ReadValues: _read, LookValues: _look}
