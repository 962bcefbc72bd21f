"""Every engine with schedules passes the same suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.testing.conformance import Make, ScheduleSuite

from .test_engines import out_of_pages

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mainspring.storage.engine import Engine


class TestMemory(ScheduleSuite):
    @pytest.fixture
    def make(self) -> Make:
        engine = MemoryEngine()
        return lambda: engine


class TestSqlite(ScheduleSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteEngine(tmp_path / "jobs.db")

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return out_of_pages(engine)


class TestSqliteThread(TestSqlite):
    """The same with every group in the engine's thread."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: SqliteEngine(tmp_path / "jobs.db", thread_rows=0)
