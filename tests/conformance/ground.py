"""A slice without rules of its own, for the tests of an engine's services for runs of workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.engines.memory.engine import MemoryGround
from mainspring.engines.postgres.run_transaction import PostgresGround
from mainspring.engines.sqlite.slice_transaction import SqliteGround
from mainspring.jobs.owners import AttemptEnded, Ended, Started
from mainspring.storage.engine import Operation, Phase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.access.idempotency import KeyedAct
    from mainspring.engines.memory.engine import Transaction as MemoryTransaction
    from mainspring.engines.postgres.transaction import Transaction as PostgresTransaction
    from mainspring.engines.sqlite.transaction import Transaction as SqliteTransaction
    from mainspring.jobs.owners import Notice
    from mainspring.jobs.slices import RunTransaction
    from mainspring.storage.engine import Plan, Query

    Work = Callable[[RunTransaction], Awaitable[Any]]


class Do(Operation):
    """Call a function with the ground of a transaction. Outcome: what it returns."""

    phase = Phase.SLICES
    keyed = True
    work: Work
    keyed_act: KeyedAct | None = None


class _Unit:
    def __init__(self, ground: RunTransaction, notices: list[Notice]) -> None:
        self._ground = ground
        self._notices = notices

    async def lock(self, plan: Plan) -> None:
        """Lock nothing."""

    async def follow(self, notices: Sequence[Notice]) -> None:
        self._notices += notices

    async def run(self, operation: Operation) -> Callable[[], Any]:
        assert isinstance(operation, Do)
        outcome = await operation.work(self._ground)
        return lambda: outcome

    async def flush(self) -> None:
        """Write nothing."""


class _Slice:
    """Records the notices about jobs of runs."""

    kind = "workflows"
    follows = frozenset({Ended, AttemptEnded, Started})
    writes = frozenset({Do})
    handlers: dict[type[Operation], Any] = {}  # noqa: RUF012 - none
    readers: dict[type[Query[Any]], Any] = {}  # noqa: RUF012 - none

    def __init__(self, notices: list[Notice]) -> None:
        self.notices = notices


class InMemory(_Slice):
    def unit(self, tx: MemoryTransaction) -> _Unit:
        return _Unit(MemoryGround(tx), self.notices)


class InPostgres(_Slice):
    def unit(self, tx: PostgresTransaction) -> _Unit:
        return _Unit(PostgresGround(tx), self.notices)


class InSqlite(_Slice):
    def unit(self, tx: SqliteTransaction) -> _Unit:
        return _Unit(SqliteGround(tx), self.notices)
