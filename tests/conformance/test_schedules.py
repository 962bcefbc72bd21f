"""Every engine with schedules passes the same suite."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite import Make, ScheduleSuite, SharedScheduleSuite
from tests.conformance.suite.driver import NOW
from tests.conformance.suite.schedules import ScheduleGroups
from tests.engines import memory_engine, postgres_engine, sqlite_engine
from tests.postgres.server import name_of
from tests.shared_memory import SharedMemoryEngine, SharedTables

from .test_engines import out_of_pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mainspring.storage.engine import Engine
    from tests.postgres.server import PostgresServer


class TestMemory(ScheduleSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine


class TestSqlite(ScheduleSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return out_of_pages(engine)


class TestSqliteThread(ScheduleGroups):
    """The end of a group in the engine's thread, which is all that the setting changes."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db", thread_rows=0)

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return out_of_pages(engine)


class TestSharedMemory(SharedScheduleSuite):
    @pytest.fixture
    def make(self) -> Make:
        content = SharedTables(lambda: NOW / 1_000_000)
        return lambda: SharedMemoryEngine(content)


class TestPostgres(SharedScheduleSuite):
    @pytest.fixture
    def make(self, postgres: PostgresServer, database: str) -> Make:
        self.server, self.name = postgres, name_of(database)
        return lambda: postgres_engine(database)

    @contextmanager
    def spoiled(self, engine: Engine) -> Iterator[None]:
        """The last step of each group fails."""
        change = "ALTER TABLE mainspring.journal"
        self.server.sql(f"{change} ADD CONSTRAINT spoiled CHECK (number < 0) NOT VALID", self.name)
        try:
            yield
        finally:
            self.server.sql(f"{change} DROP CONSTRAINT spoiled", self.name)
