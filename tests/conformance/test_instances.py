"""Engines that keep resources pass the suite for instances of managed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite import InstanceSuite, Make
from tests.engines import memory_engine, postgres_engine, sqlite_engine

if TYPE_CHECKING:
    from pathlib import Path


class TestMemoryInstances(InstanceSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine


class TestSqliteInstances(InstanceSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")


class TestPostgresInstances(InstanceSuite):
    @pytest.fixture
    def make(self, database: str) -> Make:
        return lambda: postgres_engine(database)
