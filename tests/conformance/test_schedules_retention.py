"""Every engine with schedules forgets their histories in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite import Make, RetentionSuite
from tests.conformance.suite.driver import NOW
from tests.engines import memory_engine, postgres_engine, sqlite_engine
from tests.shared_memory import SharedMemoryEngine, SharedTables

if TYPE_CHECKING:
    from pathlib import Path


class TestMemory(RetentionSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine


class TestSharedMemory(RetentionSuite):
    @pytest.fixture
    def make(self) -> Make:
        content = SharedTables(lambda: NOW / 1_000_000)
        return lambda: SharedMemoryEngine(content)


class TestSqlite(RetentionSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")


class TestPostgres(RetentionSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: postgres_engine(database)
