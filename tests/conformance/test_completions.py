"""Engines that keep completion tokens pass the suite for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite import CompletionSuite, Make, SharedCompletionSuite
from tests.engines import memory_engine, postgres_engine, sqlite_engine

if TYPE_CHECKING:
    from pathlib import Path


class TestMemoryCompletions(CompletionSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine


class TestSqliteCompletions(CompletionSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")


class TestPostgresCompletions(CompletionSuite, SharedCompletionSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: postgres_engine(database)
