"""The slice of submits by a rule on PostgreSQL.

A submit locks the live job of its unique, then the successor's job, then the successor's row. A look locks jobs of successors
before their rows, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.conflicts.store import Successor
from mainspring.conflicts.unit import ConflictUnit
from mainspring.engines.postgres import changing, settling
from mainspring.engines.postgres.claiming import Floors
from mainspring.engines.postgres.lists import look_up
from mainspring.engines.postgres.run_transaction import PostgresGround
from mainspring.engines.sql.conflicts import ConflictSlice, SuccessorRows
from mainspring.jobs.store import RequestStop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job, StopRequest
    from mainspring.jobs.store import Cancel, Cancelled, Reschedule, Rescheduled


class PostgresConflicts(PostgresGround, SuccessorRows):
    """The table of successors."""

    async def live(self, function: bytes, unique: bytes) -> Job | None:
        await self._tx.functions.load([function])
        number = self._tx.functions.numbers.get(function)
        row = None if number is None else await self._sql.first("lock_unique", number, unique)
        return None if row is None else (await look_up(self._tx, [row[0]])).get(row[0])

    async def look_up(self, ids: Sequence[int]) -> Mapping[int, Job]:
        return await look_up(self._tx, ids)

    async def reschedule(self, operation: Reschedule) -> Rescheduled:
        return (await changing.reschedule(self._tx, [operation]))[0]

    async def cancel(self, operation: Cancel) -> Cancelled:
        return (await changing.cancel(self._tx, [operation]))[0]

    async def stop(self, job: int, request: StopRequest) -> None:
        await settling.request_stop(self._tx, [RequestStop([(job, None)], request)])

    async def ripe(self, limit: int) -> Sequence[Successor]:
        found = await self._sql.fetch("ripe_successors", limit)
        locked = await self._sql.fetch("lock_successors", [job for job, is_gone in found if not is_gone])
        wanted = {job for job, is_gone in found if is_gone} | {job for (job,) in locked}
        # In a new snapshot: a submit may have changed a row before its job was locked.
        return [Successor(*row) for row in await self._sql.fetch("successors_of", sorted(wanted))] if wanted else []

    async def release(self, job: int, unique: bytes, due_us: int) -> bool:
        (released,) = await self._sql.first("release_successor", job, unique, due_us)
        if released:
            self._tx.memory(Floors).due.lower(due_us)
        return bool(released)


class PostgresConflictSlice(ConflictSlice):
    """The slice of submits by a rule."""

    def unit(self, tx: Transaction) -> ConflictUnit:
        return ConflictUnit(PostgresConflicts(tx))
