"""The jobs of runs, on every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.zookeeper.engine import ZookeeperEngine
from tests.conformance.suite import RunJobSuite

from .test_engines import failing_commits, out_of_pages

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mainspring.storage.engine import Engine
    from tests.conformance.suite import Make
    from tests.postgres.server import PostgresServer


class TestMemory(RunJobSuite):
    engine = MemoryEngine

    @pytest.fixture
    def make(self) -> Make:
        engine = MemoryEngine()
        return lambda: engine


class TestSqlite(RunJobSuite):
    engine = SqliteEngine

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteEngine(tmp_path / "jobs.db")

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return out_of_pages(engine)


class TestPostgres(RunJobSuite):
    engine = PostgresEngine

    @pytest.fixture(autouse=True)
    def _keeps_runs(self) -> None:
        """It keeps the jobs of runs already."""

    @pytest.fixture
    def make(self, postgres: PostgresServer, database: str) -> Make:
        self.server, self.database = postgres, database
        return lambda: PostgresEngine(database)

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return failing_commits(self.server, self.database)


class TestZookeeper(RunJobSuite):
    engine = ZookeeperEngine
