"""Engines that keep published values pass the suites for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite.values import ValueFlows, ValueSuite
from tests.engines import memory_engine, postgres_engine, sqlite_engine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.suite import Make


class _Memory:
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine


class _Sqlite:
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")


class _Postgres:
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: postgres_engine(database)


class TestMemoryValues(_Memory, ValueSuite):
    pass


class TestMemoryValuesOfRuns(_Memory, ValueFlows):
    pass


class TestSqliteValues(_Sqlite, ValueSuite):
    pass


class TestSqliteValuesOfRuns(_Sqlite, ValueFlows):
    pass


class TestPostgresValues(_Postgres, ValueSuite):
    pass


class TestPostgresValuesOfRuns(_Postgres, ValueFlows):
    pass
