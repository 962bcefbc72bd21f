"""Work that runs elsewhere: the table of its submissions, and the slice with its query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.external import unit
from mainspring.external.store import MOST_SHOWN, FindWork, Work

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from mainspring.engines.sql.statements import Handlers, Readers, Statements, Transaction
    from mainspring.external.store import End, Record
    from mainspring.storage.engine import Meter


class WorkRows:
    """``external.store.WorkTables`` but for jobs: a class of each engine adds these."""

    _tx: Any

    @property
    def _sql(self) -> Statements:
        sql: Statements = self._tx.sql
        return sql

    async def works(self, jobs: Collection[int]) -> Sequence[Work]:
        return [Work(*row) for row in await self._sql.fetch("works_of", self._sql.among(jobs))] if jobs else []

    async def add(self, works: Sequence[Work]) -> None:
        await self._sql.many("add_works", works)

    async def record(self, records: Sequence[Record]) -> set[tuple[int, int]]:
        return {(job, number) for job, number in await self._sql.each("record_works", records)}

    async def end(self, ends: Sequence[End]) -> None:
        await self._sql.many("end_works", ends)

    async def ripe(self, limit: int, old_us: int) -> Sequence[Work]:
        return [Work(*row) for row in await self._sql.fetch("ripe_works", old_us, limit)]

    async def is_any(self) -> bool:
        return await self._sql.first("any_work") is not None

    async def change(self, works: Iterable[Work]) -> None:
        rows = [(one.job, one.number, one.status, one.canceller, one.ended_us) for one in works]
        await self._sql.many("change_works", sorted(rows))

    async def delete(self, keys: Sequence[tuple[int, int]]) -> None:
        await self._sql.many("delete_works", sorted(keys))


async def _find(tx: Transaction, query: FindWork, _: Meter) -> list[Work]:
    return [Work(*row) for row in reversed(await tx.sql.fetch("works_shown", query.job, MOST_SHOWN))]


class WorkSlice:
    """The slice: ``jobs.slices.Slice``."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Handlers] = {}
    readers: Final[Readers] = {FindWork: _find}
