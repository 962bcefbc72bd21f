"""Every engine passes the same suite."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from tests.conformance.suite import EngineSuite, Make, SharedEngineSuite
from tests.conformance.suite.driver import NOW
from tests.conformance.suite.fixtures import StoreFixtures
from tests.conformance.suite.holding import Holding
from tests.conformance.suite.lifetime import Lifetime
from tests.conformance.suite.replying import Replying
from tests.postgres.server import name_of
from tests.shared_memory import SharedMemoryEngine, SharedTables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mainspring.storage.engine import Engine
    from tests.postgres.server import PostgresServer


class TestMemory(EngineSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = MemoryEngine()
        return lambda: engine


class TestSharedMemory(SharedEngineSuite):
    @pytest.fixture
    def make(self) -> Make:
        content = SharedTables(lambda: NOW / 1_000_000)
        return lambda: SharedMemoryEngine(content)


@contextmanager
def out_of_pages(engine: Engine) -> Iterator[None]:
    """A file that may not grow: as good as a full disk, for this file only."""
    assert isinstance(engine, SqliteEngine)
    connection = engine._connection
    assert connection is not None
    ((pages,),) = connection.execute("PRAGMA page_count")
    connection.execute(f"PRAGMA max_page_count={pages + 100}").fetchall()
    try:
        yield
    finally:
        connection.execute("PRAGMA max_page_count=1000000000").fetchall()


class TestSqlite(EngineSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteEngine(tmp_path / "jobs.db")

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return out_of_pages(engine)


class TestSqliteThread(Lifetime, Holding, Replying, StoreFixtures):
    """The end of a group in the engine's thread, which is all that the setting changes."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteEngine(tmp_path / "jobs.db", thread_rows=0)

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return out_of_pages(engine)


@contextmanager
def failing_commits(server: PostgresServer, database: str) -> Iterator[None]:
    """The last step of each group fails."""
    change, name = "ALTER TABLE mainspring.journal", name_of(database)
    server.sql(f"{change} ADD CONSTRAINT spoiled CHECK (number < 0) NOT VALID", name)
    try:
        yield
    finally:
        server.sql(f"{change} DROP CONSTRAINT spoiled", name)


class TestPostgres(SharedEngineSuite):
    @pytest.fixture
    def make(self, postgres: PostgresServer, database: str) -> Make:
        self.server, self.database = postgres, database
        return lambda: PostgresEngine(database)

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return failing_commits(self.server, self.database)
