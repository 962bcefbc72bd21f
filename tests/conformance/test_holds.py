"""Engines that keep resources pass the suite for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite import HoldSuite, Make, SharedHoldSuite
from tests.engines import memory_engine, postgres_engine, sqlite_engine

if TYPE_CHECKING:
    from pathlib import Path


class TestMemoryHolds(HoldSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine


class TestSqliteHolds(HoldSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")


class TestPostgresHolds(HoldSuite, SharedHoldSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: postgres_engine(database)
