"""Engines that keep series of functions pass the suite for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from tests.conformance.suite import Make, SeriesSuite

if TYPE_CHECKING:
    from pathlib import Path


class TestMemorySeries(SeriesSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = MemoryEngine()
        return lambda: engine


class TestSqliteSeries(SeriesSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteEngine(tmp_path / "jobs.db")


class TestPostgresSeries(SeriesSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: PostgresEngine(database)
