"""Submits by a rule: the table of successors, and the slice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.conflicts import unit
from mainspring.conflicts.store import Successor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.sql.statements import Handlers, Readers, Statements


class SuccessorRows:
    """``conflicts.store.ConflictTables`` but for jobs: a class of each engine adds these."""

    _tx: Any

    @property
    def _sql(self) -> Statements:
        sql: Statements = self._tx.sql
        return sql

    async def replace(self, job_id: int, payload: bytes) -> None:
        await self._sql.execute("replace_input", job_id, payload, len(payload))

    async def put(self, successor: Successor) -> None:
        await self._sql.execute("put_successor", *successor)

    async def successor(self, job: int) -> Successor | None:
        row = await self._sql.first("successor", job)
        return None if row is None else Successor(*row)

    async def delete(self, job: int) -> None:
        await self._sql.execute("delete_successor", job)

    async def is_any(self) -> bool:
        return await self._sql.first("any_successor") is not None

    async def stopping(self, limit: int) -> Sequence[int]:
        return [predecessor for (predecessor,) in await self._sql.fetch("stopping_predecessors", limit)]


class ConflictSlice:
    """The slice: ``jobs.slices.Slice``."""

    kind = unit.KIND
    follows = unit.FOLLOWS
    writes = unit.WRITES
    handlers: Final[Handlers] = {}
    readers: Final[Readers] = {}
