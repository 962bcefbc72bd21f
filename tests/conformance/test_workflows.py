"""Every engine with workflows passes the same suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest

from mainspring.engines.memory.workflows import MemoryRuns
from mainspring.testing.conformance import Make, WorkflowSuite
from mainspring.workflows.model import Key
from mainspring.workflows.requests import Signal
from tests.engines import memory_engine, sqlite_engine

from .test_engines import out_of_pages

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mainspring.storage.engine import Engine
    from mainspring.testing.conformance.flows import Flows
    from mainspring.workflows.tables import Writes


class TestMemory(WorkflowSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine

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


class TestSqlite(WorkflowSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return out_of_pages(engine)

    def test_the_signals_of_a_group_are_one_row(self, flows: Flows, tmp_path: Path) -> None:
        run = flows.start()
        flows.running(run)
        before = rows(tmp_path, "history")
        events = flows.row(run).events
        flows.signal(*(Signal(Key(job=run), "s", b"%d" % number) for number in range(500)))
        assert rows(tmp_path, "history") == before + 1
        assert flows.row(run).events == events + 501


def rows(directory: Path, table: str) -> int:
    """Return the number of rows in a table."""
    connection = apsw.Connection(str(directory / "jobs.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        ((number,),) = connection.execute(f"SELECT count(*) FROM {table}")
    finally:
        connection.close()
    assert isinstance(number, int)
    return number


class TestSqliteThread(TestSqlite):
    """The same with every group in the engine's thread."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db", thread_rows=0)
