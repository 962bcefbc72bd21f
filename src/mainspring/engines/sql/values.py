"""The rows of published values, and the operations on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.values.model import Mark, StoredValue, Swept, publish, sweep
from mainspring.values.service import LookValues, PublishValues, ReadValues, Seen, SweepValues

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mainspring.engines.sql.statements import Handlers, Readers, Statements, Transaction
    from mainspring.storage.engine import Meter


class ValueRows:
    """``values.model.ValueTables``."""

    def __init__(self, tx: Any) -> None:
        self._sql: Statements = tx.sql

    async def held(self, jobs: Collection[int], term: int) -> Collection[int]:
        return [job for (job,) in await self._sql.fetch("held_under", self._sql.among(jobs), term)]

    async def marks(self, jobs: Collection[int]) -> Sequence[Mark]:
        return [Mark(*row) for row in await self._sql.fetch("value_marks", self._sql.among(jobs))]

    async def put(self, rows: Sequence[StoredValue]) -> None:
        await self._sql.many("put_values", rows)

    async def drop(self, values: Sequence[tuple[int, str]]) -> None:
        await self._sql.many("drop_values", values)

    async def valued(self, after: int, limit: int) -> Sequence[int]:
        return [job for (job,) in await self._sql.fetch("valued_jobs", after, limit)]

    async def existing(self, jobs: Collection[int]) -> Collection[int]:
        return [job for (job,) in await self._sql.fetch("stored_jobs", self._sql.among(jobs))]

    async def forget(self, jobs: Collection[int]) -> None:
        await self._sql.execute("forget_values", self._sql.among(jobs))


async def _publish(tx: Any, operations: Sequence[PublishValues]) -> list[list[int]]:
    """Store the values of all operations of a term together, whatever number of jobs they have."""
    rows, taken = ValueRows(tx), dict[int, set[int]]()
    for term in dict.fromkeys(one.term for one in operations):
        values = [value for one in operations if one.term == term for value in one.values]
        taken[term] = set(await publish(rows, values, term))
    return [sorted(taken[one.term] & {value.job for value in one.values}) for one in operations]


async def _sweep(tx: Any, operations: Sequence[SweepValues]) -> list[Swept]:
    return [await sweep(ValueRows(tx), one.after, one.rows) for one in operations]


async def _read(tx: Transaction, query: ReadValues, _: Meter) -> list[StoredValue]:
    if query.name is None:
        return [StoredValue(*row) for row in await tx.sql.fetch("values_of", query.job)]
    return [StoredValue(*row) for row in await tx.sql.fetch("value_of", query.job, query.name)]


async def _look(tx: Transaction, query: LookValues, _: Meter) -> Seen:
    jobs = tx.sql.among(query.jobs)
    numbers = dict(await tx.sql.fetch("value_numbers", jobs))
    return Seen(numbers, frozenset(job for (job,) in await tx.sql.fetch("live_jobs", jobs)))


HANDLERS: Final[Handlers] = {PublishValues: _publish, SweepValues: _sweep}
READERS: Final[Readers] = {ReadValues: _read, LookValues: _look}
