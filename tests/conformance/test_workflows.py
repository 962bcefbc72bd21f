"""Every engine with workflows passes the same suite."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import apsw
import asyncpg
import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.workflows import MemoryRuns, MemoryWorkflowSlice
from mainspring.engines.postgres.connections import SCHEMA
from mainspring.engines.sql.workflows import WorkflowSlice
from mainspring.engines.sqlite.leaving_runs import LeavingFile
from mainspring.errors import UsageError
from mainspring.resources.holds import counted
from mainspring.resources.rules import UseSpec
from mainspring.workflows.model import YEAR, Definition, Key, Status
from mainspring.workflows.requests import Signal
from mainspring.workflows.store import FindDefinitions
from tests.conformance.suite import Make, WorkflowSuite
from tests.conformance.suite.holds import define
from tests.conformance.suite.run_hold_flows import asking, holder_of
from tests.conformance.suite.starting_flows import StartingFlows
from tests.conformance.suite.workflows import WorkflowGroups
from tests.engines import memory_engine, postgres_engine, sqlite_engine

from .test_engines import failing_commits, out_of_pages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mainspring.storage.engine import Engine
    from mainspring.workflows.tables import Writes
    from tests.conformance.suite.flows import Flows
    from tests.postgres.server import PostgresServer


class MemoryContent:
    """`set_aside_flows.Content` in dictionaries."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows
        engine = flows.store.engine
        assert isinstance(engine, MemoryEngine)
        self._tables = engine.tables

    def blocks(self, run: int) -> dict[int, bytes]:
        return dict(zip(*self._tables.histories[run], strict=True))

    def set_blocks(self, run: int, blocks: dict[int, bytes]) -> None:
        self._tables.histories[run] = sorted(blocks), [blocks[first] for first in sorted(blocks)]
        forget(self._flows)

    def set_status(self, run: int, status: int) -> None:
        pytest.skip(f"rows are no bytes: {run} cannot have the status {status}")

    def set_snapshot(self, run: int, state: bytes) -> None:
        self._tables.snapshots[run] = self._tables.snapshots[run]._replace(state=state)
        forget(self._flows)

    def errands(self) -> dict[int, bytes]:
        return self._tables.errands

    def set_errand(self, number: int, errand: bytes) -> None:
        self._tables.errands[number] = errand


class SqliteContent:
    """`set_aside_flows.Content` in a file, by a connection of its own."""

    def __init__(self, flows: Flows, path: Path) -> None:
        self._flows = flows
        self._path = path

    def blocks(self, run: int) -> dict[int, bytes]:
        return dict(self._execute("SELECT first, block FROM history WHERE run = ?", (run,)))

    def set_blocks(self, run: int, blocks: dict[int, bytes]) -> None:
        for first, block in blocks.items():
            self._execute("UPDATE history SET block = ? WHERE run = ? AND first = ?", (block, run, first))
        forget(self._flows)

    def set_status(self, run: int, status: int) -> None:
        self._execute("UPDATE runs SET status = ? WHERE id = ?", (status, run))

    def set_snapshot(self, run: int, state: bytes) -> None:
        self._execute("UPDATE snapshots SET state = ? WHERE run = ?", (state, run))
        forget(self._flows)

    def errands(self) -> dict[int, bytes]:
        return dict(self._execute("SELECT number, errand FROM errands", ()))

    def set_errand(self, number: int, errand: bytes) -> None:
        self._execute("UPDATE errands SET errand = ? WHERE number = ?", (errand, number))

    def _execute(self, statement: str, values: Sequence[object]) -> list[Any]:
        connection = apsw.Connection(str(self._path))
        try:
            return list(connection.execute(statement, tuple(values)))
        finally:
            connection.close()


def forget(flows: Flows) -> None:
    """Forget the runs in the memory of a node."""
    engine: Any = flows.store.engine
    for one in engine.slices:
        if isinstance(one, WorkflowSlice | MemoryWorkflowSlice):
            for run in flows.list():
                one.cache.take(run)


class TestMemory(WorkflowSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine

    def content_of(self, flows: Flows) -> MemoryContent:
        return MemoryContent(flows)

    def test_snapshots_cost_less_than_events_with_many_open_things(
        self, flows: Flows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run with 900 open activities has a large state: it is not written at each of its events."""
        written: list[int] = []
        write = MemoryRuns.write

        async def counted(tables: MemoryRuns, writes: Writes) -> None:
            written.extend(len(snapshot.state) for _, snapshot in writes.snapshots)
            await write(tables, writes)

        monkeypatch.setattr(MemoryRuns, "write", counted)
        run = flows.start()
        flows.running(run, *(flows.activity() for _ in range(900)))
        for _ in range(500):
            flows.signal(Signal(Key(job=run), "s", b"x" * 500))
        assert written
        assert sum(written) <= flows.row(run).history_bytes
        assert max(written) > 20_000


class PostgresContent:
    """`set_aside_flows.Content` in a database, by a connection of its own."""

    def __init__(self, flows: Flows, url: str) -> None:
        self._flows = flows
        self._url = url

    def blocks(self, run: int) -> dict[int, bytes]:
        return dict(self._fetch("SELECT first, block FROM history WHERE run = $1", run))

    def set_blocks(self, run: int, blocks: dict[int, bytes]) -> None:
        for first, block in blocks.items():
            self._fetch("UPDATE history SET block = $1 WHERE run = $2 AND first = $3", block, run, first)
        forget(self._flows)

    def set_status(self, run: int, status: int) -> None:
        self._fetch("UPDATE runs SET status = $1 WHERE id = $2", status, run)

    def set_snapshot(self, run: int, state: bytes) -> None:
        self._fetch("UPDATE snapshots SET state = $1 WHERE run = $2", state, run)
        forget(self._flows)

    def errands(self) -> dict[int, bytes]:
        return dict(self._fetch("SELECT number, errand FROM errands"))

    def set_errand(self, number: int, errand: bytes) -> None:
        self._fetch("UPDATE errands SET errand = $1 WHERE number = $2", errand, number)

    def _fetch(self, statement: str, *values: object) -> list[Any]:
        async def run() -> list[Any]:
            connection = await asyncpg.connect(self._url, server_settings={"search_path": SCHEMA})
            try:
                return list(await connection.fetch(statement, *values))
            finally:
                await connection.close()

        return asyncio.run(run())


class TestPostgres(WorkflowSuite):
    @pytest.fixture
    def make(self, postgres: PostgresServer, database: str) -> Make:
        self.server, self.database = postgres, database
        return lambda: postgres_engine(database)

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return failing_commits(self.server, self.database)

    @pytest.fixture
    def content(self, flows: Flows, database: str) -> PostgresContent:
        return PostgresContent(flows, database)


class TestSqlite(WorkflowSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")

    @pytest.fixture
    def content(self, flows: Flows, tmp_path: Path) -> SqliteContent:
        return SqliteContent(flows, tmp_path / "jobs.db")

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return out_of_pages(engine)

    def test_a_definition_that_cannot_be_read_stops_no_other(self, flows: Flows, tmp_path: Path) -> None:
        flows.define(Definition("ship", "2", timeout=5.0))
        connection = apsw.Connection(str(tmp_path / "jobs.db"))
        connection.execute("UPDATE definitions SET definition = ? WHERE name = 'ship'", (b"\x93\xc1",))
        connection.close()
        flows.store.reopen()
        found = {(one.name, one.version): one.timeout for one in flows.store.read(FindDefinitions())}
        assert found == {("order", "1"): 86_400.0, ("ship", "2"): YEAR}
        waiting = flows.store.submitted(function=b"order")
        assert flows.signal(Signal(Key(job=waiting.id), "a", b""))[0].verdict == "recorded"
        assert flows.status(flows.start(b"ship")) is Status.OPEN
        flows.define(Definition("ship", "2", timeout=5.0))
        assert {one.timeout for one in flows.store.read(FindDefinitions())} == {86_400.0, 5.0}

    def test_the_signals_of_a_group_are_one_row(self, flows: Flows, tmp_path: Path) -> None:
        run = flows.start()
        flows.running(run)
        before = rows(tmp_path, "history")
        events = flows.row(run).events
        flows.signal(*(Signal(Key(job=run), "s", b"%d" % number) for number in range(500)))
        assert rows(tmp_path, "history") == before + 1
        assert flows.row(run).events == events + 501

    def test_runs_that_hold_resources_do_not_leave_the_file(self, flows: Flows, tmp_path: Path) -> None:
        define(flows.store, "l", counted(1))
        first, second = holder_of(flows), flows.start()
        flows.running(second, asking(1, UseSpec("l")))
        for run in (first, second):
            flows.store.close_engine()
            with pytest.raises(UsageError, match=r"\d open runs in .* hold slots of resources, or wait for them"):
                LeavingFile(tmp_path / "jobs.db")
            flows.store.open("n1")
            flows.store.recover()
            flows.terminate(Key(run=run))
        flows.start()
        flows.store.close_engine()
        LeavingFile(tmp_path / "jobs.db").close()
        flows.store.open("n1")


def rows(directory: Path, table: str) -> int:
    """Return the number of rows in a table."""
    connection = apsw.Connection(str(directory / "jobs.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        ((number,),) = connection.execute(f"SELECT count(*) FROM {table}")
    finally:
        connection.close()
    assert isinstance(number, int)
    return number


class TestSqliteThread(StartingFlows, WorkflowGroups):
    """The end of a group in the engine's thread, which is all that the setting changes."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db", thread_rows=0)

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return out_of_pages(engine)
