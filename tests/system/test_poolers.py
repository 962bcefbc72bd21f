"""PgBouncer between PostgreSQL and the applications that submit, where it may be, and the nodes, where it may not.

A node is refused by it as it is usually configured. If it is made to accept a node, a session says nothing about the node any
more, so leases alone decide: no living node is declared dead, and the work of a killed one moves on after its lease.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import psycopg
import pytest
from tests.conftest import find_program
from tests.postgres.pgbouncer import PgBouncer
from tests.postgres.server import PostgresServer, memory_directory, name_of

from mainspring.engines.postgres.connections import SESSION_SETTINGS
from mainspring.nodes.model import LOOK

from . import processes
from .extension import FaultError
from .fleet import Fleet
from .left_in_store import left, migrated
from .pooled_app import app, order, paid
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack

    from .fleet import FleetNode, ForkServer

PROGRAM = Path(__file__).with_name("pooled_app.py")
LEASE = 3.0
"""Long enough for proofs by sessions."""
LONG_LEASE = 120.0
"""Longer than a test waits."""
TIMEOUT = 60.0
RUNS = 8
"""Runs of each client."""
RESTARTS = 2
MARKS = "CREATE TABLE marks (key text PRIMARY KEY)"
MARK = "INSERT INTO marks VALUES ('{}')"


@pytest.fixture(scope="module")
def server(postgres_programs: Path) -> Iterator[PostgresServer]:
    del postgres_programs
    with PostgresServer(parent=memory_directory()) as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    """Return the DSN of an empty store."""
    url = migrated(server)
    yield url
    server.drop_database(url)


def start_worker(stack: ExitStack, directory: Path, node: FleetNode, *options: str) -> None:
    """Start a worker at a node, and wait until it has registered."""
    command = ("worker", str(PROGRAM), "--server", node.address, *options)
    stack.enter_context(processes.node(*command, cwd=directory, faces=()))
    eventually(
        lambda: node.name in [row["node"] for row in node.ask("workflows.workers")["items"]],
        "the worker has registered",
    )


# ---- applications: in transaction mode ----


class Buyer(threading.Thread):
    """Commits transactions with runs and signals. Each has a row of its own, which shows whether it was committed."""

    def __init__(self, name: str, through: str, server: PostgresServer, database: str) -> None:
        super().__init__(name=name, daemon=True)
        self.through = through
        self._server = server
        self._database = database
        self.done = 0
        self.defect: BaseException | None = None

    def run(self) -> None:
        try:
            for number in range(RUNS):
                key = f"{self.name}-{number}"
                for step in (1, 2, 3):
                    while not self._is_committed(f"{key} {step}"):
                        try:
                            self.commit(key, number, step)
                        except (psycopg.Error, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                            continue  # it may be committed
                self.done += 1
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.defect = error

    def _is_committed(self, mark: str) -> bool:
        return self._server.sql(f"SELECT 1 FROM marks WHERE key = '{mark}'", self._database) == "1"

    def commit(self, key: str, number: int, step: int) -> None:
        """Commit the first transaction of a run, which starts and signals it, or a later one, which signals it."""
        raise NotImplementedError


class WithPsycopg(Buyer):
    def commit(self, key: str, number: int, step: int) -> None:
        with psycopg.connect(self.through, prepare_threshold=None) as connection:
            connection.execute(MARK.format(f"{key} {step}").encode())
            if step == 1:
                order.options(id=key, connection=connection).submit(number)
            order.get(key).signal(paid, step, connection=connection)


class WithAsyncpg(Buyer):
    def commit(self, key: str, number: int, step: int) -> None:
        async def commit() -> None:
            connection = await asyncpg.connect(self.through, statement_cache_size=0)
            try:
                async with connection.transaction():
                    await connection.execute(MARK.format(f"{key} {step}"))
                    if step == 1:
                        await order.options(id=key, connection=connection).asubmit(number)
                    await order.get(key).asignal(paid, step, connection=connection)
            finally:
                connection.terminate()

        asyncio.run(commit())


def test_transactions_through_a_pooler_that_restarts_start_and_signal_runs_once(
    fork_server: ForkServer, server: PostgresServer, url: str, tmp_path: Path, stack: ExitStack
) -> None:
    database = name_of(url)
    server.sql(MARKS, database)
    fleet = stack.enter_context(Fleet(fork_server, tmp_path, url))
    nodes = fleet.start_many("n1", "n2")
    start_worker(stack, tmp_path, nodes[0])
    pooler = stack.enter_context(PgBouncer(find_program("pgbouncer"), server, "transaction"))
    through = pooler.through(url)
    buyers = [
        kind(name, through, server, database)
        for name, kind in (("p", WithPsycopg), ("q", WithPsycopg), ("a", WithAsyncpg))
    ]
    for buyer in buyers:
        buyer.start()

    def done() -> int:
        return sum(buyer.done for buyer in buyers)

    for restart in range(1, RESTARTS + 1):
        least = restart * RUNS * len(buyers) // (RESTARTS + 1)
        eventually(lambda least=least: done() >= least, "clients go on", TIMEOUT)  # type: ignore[misc]
        pooler.restart()
    for buyer in buyers:
        buyer.join(TIMEOUT)
        assert buyer.defect is None, buyer.defect
        assert not buyer.is_alive()

    stack.callback(app.connect_to, app.connect_to(nodes[1].address))
    with closing(app):
        for buyer in buyers:
            for number in range(RUNS):
                assert order.get(f"{buyer.name}-{number}").result(timeout=TIMEOUT) == [2 * number, 1, 2, 3]
    listed = nodes[1].ask("workflows.list", limit=1000)["items"]
    assert len(listed) == RUNS * len(buyers)
    eventually(lambda: not left(server, database), "nothing is left in the store")


# ---- nodes: as it is usually configured, and in session mode ----


def test_a_node_is_refused(fork_server: ForkServer, server: PostgresServer, url: str, tmp_path: Path) -> None:
    with (
        PgBouncer(find_program("pgbouncer"), server, "transaction") as pooler,
        Fleet(fork_server, tmp_path, pooler.through(url)) as fleet,
    ):
        node = fleet.launch("n1")
        eventually(lambda: "unsupported startup parameter: jit" in node.log_text(), "it says why it waits")


def tolerant(server: PostgresServer, url: str) -> PgBouncer:
    """Return a pooler that accepts nodes: a session of the server is theirs alone, and the database has the search path."""
    server.sql(f'ALTER DATABASE "{name_of(url)}" SET search_path = mainspring')
    ignored = [*SESSION_SETTINGS, "search_path", "extra_float_digits"]
    return PgBouncer(find_program("pgbouncer"), server, "session", ignored=ignored)


def rows(node: FleetNode) -> dict[str, int]:
    """Return the terms of the nodes that a node lists; empty while it has no store."""
    try:
        return {row["name"]: row["term"] for row in node.ask("nodes.list")["items"]}
    except FaultError:
        return {}


def published(server: PostgresServer, url: str) -> dict[str, str]:
    """Return the sessions that nodes have published."""
    found = server.sql("SELECT about ->> 'name', about ->> 'session' FROM mainspring.nodes", name_of(url))
    return dict(line.split("|") for line in found.splitlines())


def test_a_node_behind_a_pooler_that_is_away_keeps_its_term(
    fork_server: ForkServer, server: PostgresServer, url: str, tmp_path: Path, stack: ExitStack
) -> None:
    pooler = stack.enter_context(tolerant(server, url))
    fleet = stack.enter_context(Fleet(fork_server, tmp_path, url, lease=LONG_LEASE))
    direct, pooled = fleet.start("direct"), fleet.start("pooled", store=pooler.through(url))
    worker = stack.enter_context(pooled.worker(b"f"))
    worker.socket.settimeout(TIMEOUT)
    with pooled.extended() as client:
        client.submit_new(b"f")
    job = worker.job()
    eventually(lambda: rows(direct).keys() == {"direct", "pooled"}, "it lists both")
    terms = rows(direct)
    assert published(server, url)["direct"]
    assert not published(server, url)["pooled"]
    assert "a pooler is between" in pooled.log_text()
    time.sleep(2 * LOOK)
    pooler.stop()  # this ends the sessions of the server, too
    time.sleep(6 * LOOK)
    assert rows(direct) == terms
    pooler.start()
    assert worker.settle_as(job, b"succeeded") == b"recorded"
    eventually(lambda: rows(pooled) == terms, "it has the store again")
    assert rows(direct) == terms


def test_work_of_a_node_that_was_killed_behind_a_pooler_moves_after_its_lease(
    fork_server: ForkServer, server: PostgresServer, url: str, tmp_path: Path, stack: ExitStack
) -> None:
    pooler = stack.enter_context(tolerant(server, url))
    fleet = stack.enter_context(Fleet(fork_server, tmp_path, pooler.through(url), lease=LEASE))
    n1, n2 = fleet.start_many("n1", "n2")
    start_worker(stack, tmp_path, n2, "--functions", "order")
    holder = stack.enter_context(n1.worker(b"double", b"f", places=2))
    client = stack.enter_context(n2.extended())
    successor = stack.enter_context(n2.extended())
    for peer in (holder, client, successor):
        peer.socket.settimeout(TIMEOUT)
    run = n2.ask("workflows.start", function="order", id="order", args=[21])["handle"]
    job = client.submit_new(b"f")
    held = {holder.job().handle, holder.job().handle}
    assert job in held
    for value in (1, 2, 3):
        n2.ask("workflows.signal", key="order", name="paid", value=value)
    assert not any(published(server, url).values())
    n1.kill()
    for function in (b"double", b"f"):
        successor.register(function)
    successor.ready(2)
    jobs = [successor.job(), successor.job()]
    assert {job.handle for job in jobs} == held
    for one in jobs:
        assert successor.settle_as(one, b"succeeded", b"42") == b"recorded"
    assert json.loads(client.outcome(run.encode()).data) == [42, 1, 2, 3]
    assert client.outcome(job).data == b"42"
    eventually(lambda: rows(n2).keys() == {"n2"}, "the dead node's term has ended")
