"""Engines with rules about live uniques pass the suites for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite.conflicts import ConflictSuite, SharedConflictSuite
from tests.engines import memory_engine, postgres_engine, sqlite_engine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.suite import Make


class TestMemoryConflicts(ConflictSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine


class TestSqliteConflicts(ConflictSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")


class TestPostgresConflicts(ConflictSuite, SharedConflictSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: postgres_engine(database)
