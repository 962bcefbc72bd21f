"""Engines that keep streams pass the suites for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite.streams import StreamFlows, StreamSuite
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


class TestMemoryStreams(_Memory, StreamSuite):
    pass


class TestMemoryStreamsOfRuns(_Memory, StreamFlows):
    pass


class TestSqliteStreams(_Sqlite, StreamSuite):
    pass


class TestSqliteStreamsOfRuns(_Sqlite, StreamFlows):
    pass


class TestPostgresStreams(_Postgres, StreamSuite):
    pass


class TestPostgresStreamsOfRuns(_Postgres, StreamFlows):
    pass
