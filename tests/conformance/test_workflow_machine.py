"""Engines with workflows keep histories whole, whatever happens to their groups and processes."""

from __future__ import annotations

import shutil
import tempfile
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from msgspec.structs import replace

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.memory.workflows import MemoryRuns, MemoryWorkflowSlice
from mainspring.engines.postgres.connections import SCHEMA
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.postgres.workflows import PostgresWorkflowSlice
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.workflows import SqliteWorkflowSlice
from mainspring.jobs import store as job_ops
from mainspring.workflows import outbox, tables
from mainspring.workflows.reading import RunCache
from tests.conformance.suite.driver import NOW
from tests.conformance.suite.flow_machine import FlowMachine
from tests.postgres.server import memory_directory
from tests.shared_memory import SharedMemoryEngine, SharedTables
from tests.shared_runs import SharedRuns, SharedWorkflowSlice

from .test_engines import out_of_pages

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mainspring.storage.engine import Engine
    from mainspring.workflows.reading import Run
    from tests.postgres.server import PostgresServer

pytestmark = pytest.mark.timeout(900)
"""Hypothesis shrinks a failing example before it reports it: an alarm during that would be reported in its place."""
SHORT = settings(
    max_examples=20, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
LONG = settings(SHORT, max_examples=600, stateful_step_count=50)
FEW = settings(SHORT, max_examples=4)
"""For an engine that needs a server."""
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


class TwoNodes(FlowMachine):
    """Two nodes take turns. Each has runs in its memory that the other one has changed meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._caches: list[RunCache] = []

    def new_cache(self) -> RunCache:
        """Return the memory of a new process."""
        self._caches.append(RunCache(CACHE_BYTES))
        return self._caches[-1]

    @initialize()
    def open(self) -> None:
        super().open()
        self._other, self._cache, self._other_cache = self.store.beside("n2"), *self._caches

    @rule()
    def take_turns(self) -> None:
        """Let the other node go on."""
        self.store, self._other = self._other, self.store
        self._cache, self._other_cache = self._other_cache, self._cache
        self.flows.store = self.store

    def written(self, run: int) -> int:
        """Return the number of the last write of an open run."""
        raise NotImplementedError

    def cached(self, run: int) -> Run | None:
        """Return a run in the node's memory, if the node would use it."""
        found = self._cache.peek(run)
        if found is None or found.row.written != self.written(run):
            return None
        shown = copy(found)
        shown.row = replace(found.row, written=self.flows.row(run).written)  # not all readers have it
        return shown

    def replace_process(self, *, killed: bool) -> None:
        """Replace the process of the node whose turn it is; the other node notices the end, if it was killed."""
        engine: Any = self.store.engine
        term = self.store.term
        if killed:
            engine._term = 0  # so that it does not end its term
        self.store.reopen(self.store.opened.nodes[term])
        self._cache = self._caches[-1]
        if killed:
            self._other.end_term(term)
        self._other.group(job_ops.Recover(self._other.term, [term]))

    def teardown(self) -> None:
        if hasattr(self, "_other"):
            first = self.store if self.store._others else self._other
            first.close()


class SharedMachine(TwoNodes):
    def __init__(self) -> None:
        super().__init__()
        self._content = SharedTables(lambda: NOW / 1e6)

    def make(self) -> SharedMemoryEngine:
        return SharedMemoryEngine(self._content, SharedWorkflowSlice(cache=self.new_cache()))

    def written(self, run: int) -> int:
        return self._content.tables.workflows[run].written


class PostgresMachine(TwoNodes):
    server: PostgresServer
    schema: str

    def __init__(self) -> None:
        super().__init__()
        self._dsn = self.server.create_database(self.schema)

    def make(self) -> PostgresEngine:
        return PostgresEngine(self._dsn, slices=[PostgresWorkflowSlice(cache=self.new_cache())])

    @initialize()
    def open(self) -> None:
        super().open()
        self._session = self.store.run(asyncpg.connect(self._dsn, server_settings={"search_path": SCHEMA}))

    def written(self, run: int) -> int:
        number = self.store.run(self._session.fetchval("SELECT xmin::text::bigint FROM runs_open WHERE id = $1", run))
        return number or 0

    def teardown(self) -> None:
        if hasattr(self, "_session"):
            self._session.terminate()
        super().teardown()
        self.server.drop_database(self._dsn)


@pytest.fixture(autouse=True)
def early_snapshots_and_stored_errands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MIN_BYTES", 300)
    monkeypatch.setattr(outbox, "MOST", 3)


@pytest.mark.parametrize("machine", [MemoryMachine, SqliteMachine, SharedMachine])
def test_histories_stay_whole(machine: type[FlowMachine]) -> None:
    run_state_machine_as_test(machine, settings=SHORT)


async def _keep_errands(tables: SharedRuns, done: Any, new: Any) -> None:
    """Leave errands in the store that are done."""
    del done
    await MemoryRuns.change_errands(tables, (), new)


FAULTS: dict[str, tuple[str, Any]] = {
    "is_current": ("the number of events guards a run|each job of a run does something for it", lambda *_: True),
    "change_errands": ("begins once|is there once", _keep_errands),
}


@pytest.mark.parametrize("method", FAULTS)
def test_a_planted_fault_is_detected(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    by, fault = FAULTS[method]
    monkeypatch.setattr(SharedRuns, method, fault)
    found = settings(SHORT, phases=[Phase.generate], derandomize=True, database=None, max_examples=100)
    with pytest.raises(AssertionError, match=by):
        run_state_machine_as_test(SharedMachine, settings=found)


def on(postgres: PostgresServer, template: str) -> type[PostgresMachine]:
    class Machine(PostgresMachine):
        server = postgres
        schema = template

    return Machine


def test_histories_stay_whole_on_two_nodes(postgres: PostgresServer, schema: str) -> None:
    run_state_machine_as_test(on(postgres, schema), settings=FEW)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_histories_stay_whole_on_two_nodes_for_long(postgres: PostgresServer, schema: str) -> None:
    run_state_machine_as_test(on(postgres, schema), settings=settings(LONG, max_examples=100))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [MemoryMachine, SqliteMachine, SharedMachine])
def test_histories_stay_whole_for_long(machine: type[FlowMachine]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
