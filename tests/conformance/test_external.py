"""Engines that keep work that runs elsewhere pass the suite for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite import Make, WorkSuite
from tests.engines import memory_engine, postgres_engine, sqlite_engine

if TYPE_CHECKING:
    from pathlib import Path


class TestMemoryWork(WorkSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine


class TestSqliteWork(WorkSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")


class TestPostgresWork(WorkSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: postgres_engine(database)
