"""Every engine does what the model does, whatever happens to it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.engine import ZookeeperEngine
from mainspring.engines.zookeeper.tree import RefreshedTree
from mainspring.jobs import store as ops
from tests.conformance.suite.machine import EngineMachine
from tests.postgres.server import memory_directory
from tests.zookeeper.driving import in_memory
from tests.zookeeper.memory import MemoryContent, MemoryTree

if TYPE_CHECKING:
    from tests.conformance.suite.driver import Store
    from tests.postgres.server import PostgresServer

pytestmark = pytest.mark.timeout(900)
"""Hypothesis shrinks a failing example before it reports it: an alarm during that would be reported in its place."""
SHORT = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
LONG = settings(SHORT, max_examples=1000, stateful_step_count=50)
FEW = settings(SHORT, max_examples=8)
"""For engines that need a server: a group takes some milliseconds, and a new database a tenth of a second. (On a tree, each look
at everything that is there reads more than a thousand nodes.)"""


class MemoryMachine(EngineMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = MemoryEngine()

    def make(self) -> MemoryEngine:
        return self.engine


class SqliteMachine(EngineMachine):
    def __init__(self) -> None:
        super().__init__()
        self._directory = Path(tempfile.mkdtemp(prefix="mainspring-", dir=memory_directory()))
        self._path = self._directory / "0.db"

    def make(self) -> SqliteEngine:
        return SqliteEngine(self._path)

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


class PostgresMachine(EngineMachine):
    server: PostgresServer
    schema: str

    def __init__(self) -> None:
        super().__init__()
        self._dsn = self.server.create_database(self.schema)

    def make(self) -> PostgresEngine:
        return PostgresEngine(self._dsn)

    def crash(self) -> None:
        """Cut all connections, and let what the engine does end without a word."""
        engine = self.store.engine
        assert isinstance(engine, PostgresEngine)
        assert engine._control is not None
        assert engine._reader is not None
        for part in (engine._writer, engine._control, engine._reader._control):
            connection = part._connection
            assert connection is not None
            connection.terminate()
        end_without_a_word(self.store)

    def teardown(self) -> None:
        super().teardown()
        self.server.drop_database(self._dsn)


class ZookeeperMachine(EngineMachine):
    """On an ensemble in memory: what a real server says, `tests.zookeeper.test_model` compares."""

    # Claims wait for the master where this node is not the only one, or was not before; sweeps are for what is published.
    apart = (ops.Sweep, ops.Claim)

    def __init__(self) -> None:
        super().__init__()
        self.content = MemoryContent(now_us=lambda: 0)

    def make(self) -> ZookeeperEngine:
        return in_memory(self.content)()

    @property
    def tree(self) -> MemoryTree:
        engine = self.store.engine
        assert isinstance(engine, ZookeeperEngine)
        assert isinstance(engine._tree, RefreshedTree)
        assert isinstance(engine._tree._tree, MemoryTree)
        return engine._tree._tree

    def publish(self) -> None:
        self.store._run(self._published())

    async def _published(self) -> None:
        written = asyncio.Event()
        self.tree.after = lambda *_: written.set()
        while any(self.content.names(f"{paths.COMPLETED}/{bucket}") for bucket in paths.BUCKETS):
            written.clear()
            await written.wait()

    def crash(self) -> None:
        """Let what the engine does end without a word, and then its session at the ensemble."""
        tree = self.tree
        end_without_a_word(self.store)
        tree.kill()
        self.content.expire(tree.session)


def end_without_a_word(store: Store) -> None:
    """End everything in a store's loop where it is, and the loop."""
    loop = store._loop
    assert loop is not None
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
    store._loop = None


@pytest.mark.parametrize("machine", [MemoryMachine, SqliteMachine])
def test_an_engine_does_what_the_model_does(machine: type[EngineMachine]) -> None:
    run_state_machine_as_test(machine, settings=SHORT)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [MemoryMachine, SqliteMachine])
def test_an_engine_does_what_the_model_does_for_long(machine: type[EngineMachine]) -> None:
    run_state_machine_as_test(machine, settings=LONG)


def on(postgres: PostgresServer, template: str) -> type[PostgresMachine]:
    class Machine(PostgresMachine):
        server = postgres
        schema = template

    return Machine


def test_postgres_does_what_the_model_does(postgres: PostgresServer, schema: str) -> None:
    run_state_machine_as_test(on(postgres, schema), settings=FEW)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_postgres_does_what_the_model_does_for_long(postgres: PostgresServer, schema: str) -> None:
    run_state_machine_as_test(on(postgres, schema), settings=LONG)


def test_zookeeper_does_what_the_model_does() -> None:
    run_state_machine_as_test(ZookeeperMachine, settings=FEW)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_zookeeper_does_what_the_model_does_for_long() -> None:
    run_state_machine_as_test(ZookeeperMachine, settings=settings(LONG, max_examples=200))
