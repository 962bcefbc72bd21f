"""Engines with workflows keep histories whole, whatever happens to their groups and processes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.workflows import MemoryWorkflowSlice
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.workflows import SqliteWorkflowSlice
from mainspring.workflows import outbox, tables
from mainspring.workflows.reading import RunCache
from tests.conformance.suite.flow_machine import FlowMachine
from tests.postgres.server import memory_directory

from .test_engines import out_of_pages

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mainspring.storage.engine import Engine
    from mainspring.workflows.reading import Run

pytestmark = pytest.mark.timeout(900)
"""Hypothesis shrinks a failing example before it reports it: an alarm during that would be reported in its place."""
SHORT = settings(
    max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
LONG = settings(SHORT, max_examples=600, stateful_step_count=50)
CACHE_BYTES = 12_000
"""A few runs: the others are read back."""


class MemoryMachine(FlowMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = RunCache(CACHE_BYTES)
        self.engine = MemoryEngine([MemoryWorkflowSlice(cache=self.cache)])

    def make(self) -> MemoryEngine:
        return self.engine

    def cached(self, run: int) -> Run | None:
        return self.cache.peek(run)


class SqliteMachine(FlowMachine):
    def __init__(self) -> None:
        super().__init__()
        self._directory = Path(tempfile.mkdtemp(prefix="mainspring-", dir=memory_directory()))
        self._path = self._directory / "0.db"

    def make(self) -> SqliteEngine:
        self.cache = RunCache(CACHE_BYTES)
        return SqliteEngine(self._path, slices=[SqliteWorkflowSlice(cache=self.cache)])

    def cached(self, run: int) -> Run | None:
        return self.cache.peek(run)

    def spoiled(self, engine: Engine) -> AbstractContextManager[None]:
        return out_of_pages(engine)

    def crash(self) -> None:
        """Go on with copies of the files as they are now; what the closing does to the old ones does not count."""
        successor = self._directory / f"{int(self._path.stem) + 1}.db"
        for ending in ("", "-wal"):
            shutil.copyfile(f"{self._path}{ending}", f"{successor}{ending}")
        self.store.close()
        self._path = successor

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self._directory)


@pytest.fixture(autouse=True)
def early_snapshots_and_stored_errands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MIN_BYTES", 300)
    monkeypatch.setattr(outbox, "MOST", 3)


@pytest.mark.parametrize("machine", [MemoryMachine, SqliteMachine])
def test_histories_stay_whole(machine: type[FlowMachine]) -> None:
    run_state_machine_as_test(machine, settings=SHORT)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [MemoryMachine, SqliteMachine])
def test_histories_stay_whole_for_long(machine: type[FlowMachine]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
