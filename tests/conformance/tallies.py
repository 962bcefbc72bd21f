"""A slice in a few dozen lines: nothing else had to change for it.

A tally counts what happens to the jobs of a key, and creates the next job after each end until there are enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from mainspring.engines.memory.engine import MemoryGround
from mainspring.engines.postgres.run_transaction import PostgresGround
from mainspring.engines.sqlite.slice_transaction import SqliteGround
from mainspring.engines.zookeeper.transaction import ZookeeperGround, transact
from mainspring.jobs.model import Job, Options
from mainspring.jobs.owners import AttemptEnded, Ended, Started, owner
from mainspring.jobs.slices import SliceTransaction, run_alone, settled_keys
from mainspring.storage.engine import Operation, Phase, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.memory.engine import Transaction as MemoryTransaction
    from mainspring.engines.memory.tables import Tables as MemoryTables
    from mainspring.engines.postgres.transaction import Transaction as PostgresTransaction
    from mainspring.engines.sqlite.transaction import Transaction as SqliteTransaction
    from mainspring.engines.zookeeper.sessions import Session
    from mainspring.jobs.owners import Notice
    from mainspring.storage.engine import Meter, Plan

KIND = "tallies"


class Tally(msgspec.Struct):
    wanted: int = 0
    created: int = 0
    ended: int = 0
    attempts: int = 0
    started: int = 0
    last: bytes = b""
    """The result of the last job."""


class Want(Operation):
    """Have more jobs of a key run, one after the other. Outcome: ``Tally``, once it is written."""

    phase = Phase.SLICES
    key: str
    number: int


class ShowTally(Query[Tally], frozen=True):
    """Read a tally."""

    key: str


def tally_of(data: bytes | None) -> Tally:
    return Tally() if data is None else msgspec.msgpack.decode(data, type=Tally)


class Tables(SliceTransaction, Protocol):
    async def load(self, key: str) -> bytes | None:
        """Read a tally."""

    async def save(self, key: str, data: bytes) -> None:
        """Write a tally."""


class TallyUnit:
    """All that a group does to tallies, written once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._tallies: dict[str, Tally] = {}

    async def _tally(self, key: str) -> Tally:
        if key not in self._tallies:
            self._tallies[key] = tally_of(await self._tables.load(key))
        return self._tallies[key]

    async def lock(self, plan: Plan) -> None:
        for key in sorted({*settled_keys(plan, KIND), *(one.key for _, one in plan.get(Want, ()))}):
            await self._tally(key)

    async def follow(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            whose = owner(notice.options)
            assert whose is not None
            tally = await self._tally(whose.key)
            match notice:
                case Ended():
                    tally.ended += 1
                    tally.last = notice.result
                case AttemptEnded():
                    tally.attempts += 1
                case Started():
                    tally.started += 1

    async def run(self, operation: Operation) -> Callable[[], Tally]:
        assert isinstance(operation, Want)
        tally = await self._tally(operation.key)
        tally.wanted += operation.number
        return lambda: tally

    async def flush(self) -> None:
        for key, tally in sorted(self._tallies.items()):
            if tally.created == tally.ended < tally.wanted:
                await self._make(key, tally)
            await self._tables.save(key, msgspec.msgpack.encode(tally))
        self._tallies.clear()

    async def _make(self, key: str, tally: Tally) -> None:
        lifecycle = self._tables.lifecycle
        job = Job(lifecycle.next_id(), b"f", b"p", options=Options(owner=(KIND, key)), input_size=1)
        if not lifecycle.reserve(job, self._tables.term):
            return
        tally.created += 1
        self._tables.after_rollback(lambda: lifecycle.dropped([job]))
        assert await self._tables.submit([job]) == {}
        self._tables.after_commit(lambda: lifecycle.stored([job]))


class TallySlice:
    kind = KIND
    follows = frozenset({Ended, AttemptEnded, Started})
    writes = frozenset({Want})
    handlers: dict[type[Operation], Any] = {}  # noqa: RUF012 - none

    def __init__(self) -> None:
        self.readers: dict[type[Query[Any]], Any] = {ShowTally: self._show}

    async def _show(self, reads: Any, query: ShowTally, meter: Meter) -> Tally:
        del meter
        return tally_of(await self.read(reads, query.key))

    async def read(self, reads: Any, key: str) -> bytes | None:
        """Read a tally with what the engine gives readers."""
        raise NotImplementedError


# ---- in memory ----


class InMemory(TallySlice):
    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[str, bytes] = {}

    async def read(self, reads: MemoryTables, key: str) -> bytes | None:
        del reads
        return self._rows.get(key)

    def unit(self, tx: MemoryTransaction) -> TallyUnit:
        rows = self._rows

        class Rows(MemoryGround):
            async def load(self, key: str) -> bytes | None:
                return rows.get(key)

            async def save(self, key: str, data: bytes) -> None:
                rows[key] = data

        return TallyUnit(Rows(tx))


# ---- SQLite ----


class SqliteRows(SqliteGround):
    async def load(self, key: str) -> bytes | None:
        self._tx.cursor.execute("CREATE TABLE IF NOT EXISTS tallies (key TEXT PRIMARY KEY, data BLOB)")
        return next(
            (data for (data,) in self._tx.cursor.execute("SELECT data FROM tallies WHERE key = ?", (key,))), None
        )

    async def save(self, key: str, data: bytes) -> None:
        self._tx.cursor.execute("REPLACE INTO tallies VALUES (?, ?)", (key, data))


class InSqlite(TallySlice):
    async def read(self, reads: SqliteTransaction, key: str) -> bytes | None:
        return next((data for (data,) in reads.cursor.execute("SELECT data FROM tallies WHERE key = ?", (key,))), None)

    def unit(self, tx: SqliteTransaction) -> TallyUnit:
        return TallyUnit(SqliteRows(tx))


# ---- PostgreSQL ----


class PostgresRows(PostgresGround):
    async def load(self, key: str) -> bytes | None:
        fetch = self._tx.connection
        await fetch.execute("CREATE TABLE IF NOT EXISTS tallies (key text PRIMARY KEY, data bytea)")
        await fetch.execute("INSERT INTO tallies VALUES ($1, NULL) ON CONFLICT DO NOTHING", key)
        data: bytes | None = await fetch.fetchval("SELECT data FROM tallies WHERE key = $1 FOR UPDATE", key)
        return data

    async def save(self, key: str, data: bytes) -> None:
        await self._tx.connection.execute("UPDATE tallies SET data = $2 WHERE key = $1", key, data)


class InPostgres(TallySlice):
    async def read(self, reads: PostgresTransaction, key: str) -> bytes | None:
        data: bytes | None = await reads.connection.fetchval("SELECT data FROM tallies WHERE key = $1", key)
        return data

    def unit(self, tx: PostgresTransaction) -> TallyUnit:
        return TallyUnit(PostgresRows(tx))


# ---- ZooKeeper ----


class Nodes(ZookeeperGround):
    async def load(self, key: str) -> bytes | None:
        node = await self.transaction.get(f"/tally-{key}")
        return None if node is None else node.data

    async def save(self, key: str, data: bytes) -> None:
        self.transaction.write(f"/tally-{key}", data)


class InZookeeper(TallySlice):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {Want: self._want}

    async def read(self, reads: Session, key: str) -> bytes | None:
        await reads.tree.sync()
        node = await reads.tree.get(f"/tally-{key}")
        return None if node is None else node.data

    async def _want(self, session: Session, operations: Sequence[Want]) -> list[Tally]:
        async def work(operation: Want) -> Tally:
            return await transact(session, Nodes, lambda nodes: run_alone(TallyUnit(nodes), operation))

        return [await work(operation) for operation in operations]

    async def turns(self, session: Session, keys: Sequence[str]) -> Sequence[str]:
        del session
        return keys

    def ground(self, session: Session) -> Nodes:
        return Nodes(session)

    def unit(self, ground: Nodes) -> TallyUnit:
        return TallyUnit(ground)
