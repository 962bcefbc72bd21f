"""Every engine with workflows passes the same suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.testing.conformance import Make, WorkflowSuite
from tests.engines import memory_engine, sqlite_engine

from .test_engines import out_of_pages

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mainspring.storage.engine import Engine


class TestMemory(WorkflowSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = memory_engine()
        return lambda: engine


class TestSqlite(WorkflowSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db")

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return out_of_pages(engine)


class TestSqliteThread(TestSqlite):
    """The same with every group in the engine's thread."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: sqlite_engine(tmp_path / "jobs.db", thread_rows=0)
