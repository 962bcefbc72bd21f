"""Steps in transactions of users, at a real node: their workers are killed and stopped at each place."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from tests import commands

from mainspring import App, workflow
from mainspring.engines.postgres.engine import grant_submit
from mainspring.testing import in_memory

from .fleet import Fleet, ForkServer
from .recorded_steps_worker import LIBRARIES, PLACES, Trap, build
from .servers import environment, eventually, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import LiteralString

    from mainspring import Run

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60.0


class Shop:
    """A node on a database with a table of a user, and its workers."""

    def __init__(self, address: str, dsn: str) -> None:
        self._address = address
        self._dsn = dsn
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE effects (number int)")
        self._app = App()
        self._app.connect_to(self._address)
        self._orders = {library: build(self._app, dsn, library, Trap()) for library in LIBRARIES}

    def close(self) -> None:
        self._app.close()

    @contextlib.contextmanager
    def worker(self, library: str, *trap: str, address: str = "", dsn: str = "") -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker process, which may end or stop itself."""
        program = [sys.executable, "-m", "tests.system.recorded_steps_worker"]
        command = [*program, address or self._address, dsn or self._dsn, library, *trap]
        process = commands.start(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(TIMEOUT)

    def start(self, library: str, number: int) -> Run[int]:
        return self._orders[library].options(id=f"{library}-{number}").submit(number)

    def ask(self, query: LiteralString, *values: object) -> tuple[object, ...]:
        with psycopg.connect(self._dsn) as connection:
            return connection.execute(query, values).fetchone() or ()

    def effects(self, number: int) -> object:
        return self.ask("SELECT count(*) FROM effects WHERE number = %s", number)[0]


@pytest.fixture
def shop(tmp_path: Path, database: str) -> Iterator[Shop]:
    with serving(tmp_path, store=database) as server:
        one = Shop(f"127.0.0.1:{server.port}", database)
        try:
            yield one
        finally:
            one.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_worker_that_is_killed_anywhere_leaves_each_effect_once(shop: Shop, library: str) -> None:
    runs: list[Run[int]] = []
    for number, place in enumerate(PLACES, start=1):
        with shop.worker(library, place, str(number), "SIGKILL") as worker:
            if runs:  # the one of the last worker goes on here
                assert runs[-1].result(timeout=TIMEOUT) == 10 * (number - 1)
            runs.append(shop.start(library, number))
            assert worker.wait(TIMEOUT) == -signal.SIGKILL, place
            is_committed = PLACES.index(place) >= PLACES.index("committed")
            eventually(lambda n=number, c=is_committed: shop.effects(n) == c, place)  # type: ignore[misc]
            assert runs[-1].details()["status"] == "open"
    with shop.worker(library):
        assert [run.result(timeout=TIMEOUT) for run in runs] == [10 * number for number in range(1, len(runs) + 1)]
    assert [shop.effects(number) for number in range(1, len(runs) + 1)] == [1] * len(runs)
    assert shop.ask("SELECT count(*), count(DISTINCT run) FROM mainspring.recorded_steps") == (len(runs), len(runs))


def stopped(worker: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has stopped itself."""
    return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_frozen_worker_and_its_successor_commit_a_step_once(shop: Shop) -> None:
    """One has not recorded its step when the other one does; another one has, and has not committed it."""
    with (
        shop.worker("asyncpg", "effect", "1", "SIGSTOP") as early,
        shop.worker("psycopg", "recorded", "2", "SIGSTOP") as late,
    ):
        first, second = shop.start("asyncpg", 1), shop.start("psycopg", 2)
        for worker in (early, late):
            eventually(lambda one=worker: stopped(one), "it stops itself in its step")  # type: ignore[misc]
        with shop.worker("asyncpg"), shop.worker("psycopg"):
            assert first.result(timeout=TIMEOUT) == 10
            assert (shop.effects(1), shop.effects(2)) == (1, 0)
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            eventually(lambda: shop.ask(waits) == (1,), "the successor waits for the transaction of the frozen worker")
            early.send_signal(signal.SIGCONT)
            late.send_signal(signal.SIGCONT)
            assert second.result(timeout=TIMEOUT) == 20
            idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
            eventually(lambda: shop.ask(idle) == (0,), "the late transaction has ended")
    assert (shop.effects(1), shop.effects(2)) == (1, 1)


def test_a_run_that_is_terminated_during_its_step_has_no_effect(shop: Shop) -> None:
    with shop.worker("psycopg", "effect", "1", "SIGSTOP") as worker:
        run = shop.start("psycopg", 1)
        eventually(lambda: stopped(worker), "it stops itself in its step")
        run.terminate("too late")
        worker.send_signal(signal.SIGCONT)
        other = shop.start("psycopg", 2)
        assert other.result(timeout=TIMEOUT) == 20
        assert run.details()["status"] == "terminated"
        assert (shop.effects(1), shop.effects(2)) == (0, 1)
        assert shop.ask("SELECT count(*) FROM mainspring.recorded_steps") == (1,)


def test_a_role_without_the_right_parks_the_run_until_it_has_it(shop: Shop, database: str) -> None:
    role = "billing_" + database.rpartition("/")[2]
    with psycopg.connect(database) as connection:
        connection.execute(SQL("CREATE ROLE {0} LOGIN").format(Identifier(role)))
        connection.execute(SQL("GRANT INSERT ON effects TO {0}").format(Identifier(role)))
        connection.execute(SQL("GRANT USAGE ON SCHEMA mainspring TO {0}").format(Identifier(role)))
    with shop.worker("asyncpg", dsn=database.replace("postgres@", f"{role}@", 1)):
        run = shop.start("asyncpg", 1)
        eventually(lambda: run.details()["parked"] is not None, "the run is parked")
        assert "the role of its connection may not record steps" in run.details()["parked"]["message"]
        assert shop.effects(1) == 0
        asyncio.run(grant_submit(database, role, ["default"]))
        run.unpark()
        assert run.result(timeout=TIMEOUT) == 10
        assert shop.effects(1) == 1


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_node_that_dies_during_a_step_leaves_its_effect_once(database: str, tmp_path: Path, library: str) -> None:
    """The first worker loses the run with its node. A thread goes on with the step, and does not commit it."""
    waiting = "SELECT array_agg(pid) FROM pg_locks WHERE NOT granted AND relation = 'public.effects'::regclass"
    with ForkServer() as fork_server, Fleet(fork_server, tmp_path, database) as fleet:
        first, second = fleet.start_many("n1", "n2")
        with contextlib.closing(Shop(second.address, database)) as shop:

            def waiters() -> set[int]:
                found: Any = shop.ask(waiting)[0]
                return set(found or ())

            with psycopg.connect(database) as holder, shop.worker(library, address=first.address):
                holder.execute("LOCK TABLE effects IN SHARE MODE")
                run = shop.start(library, 1)
                eventually(waiters, "the first worker executes the step")
                (early,) = waiters()
                with shop.worker(library):
                    first.kill()
                    eventually(lambda: waiters() - {early}, "the second worker executes the step")
                    holder.rollback()
                    assert run.result(timeout=TIMEOUT) == 10
                    eventually(lambda: not waiters(), "the first worker waits no more")
            assert (shop.effects(1), shop.ask("SELECT count(*) FROM mainspring.recorded_steps")) == (1, (1,))


# ---- stores that record no steps ----


def never() -> None:
    raise AssertionError("no connection is opened")


async def book(connection: object, number: int) -> int:
    raise AssertionError((connection, number))


def test_a_store_elsewhere_parks_the_run_with_the_reason() -> None:
    app = App()

    @app.workflow
    async def order(number: int) -> int:
        return await workflow.step(book, number, connection=never)

    with in_memory(app) as one:
        run = order.submit(1)
        with pytest.raises(Exception, match="a step with a connection needs a store on PostgreSQL"):
            one.result(run)
        one.mock(book, lambda number: number + 1)
        run = order.submit(2)
        assert one.result(run) == 3, "a test may replace the function, and needs no connection then"


def test_wrong_calls_park_the_run() -> None:
    app = App()

    @app.task
    def task(number: int) -> int:
        return number

    async def nothing() -> None:
        raise AssertionError

    calls: dict[str, Any] = {
        "one": lambda: workflow.step(task, 1, connection=never),
        "two": lambda: workflow.step(nothing, connection=never),
        "three": lambda: workflow.step(book, 1, connection=object()),
        "four": lambda: workflow.step(book, 1, connection=never, schema="a;b"),
    }
    words = (
        "is a task",
        "gets its connection as the first argument",
        r"connection is a builtins\.object",
        "is not the name",
    )

    @app.workflow
    async def order(name: str) -> None:
        await calls[name]()

    with in_memory(app) as one:
        for name, expected in zip(calls, words, strict=True):
            with pytest.raises(Exception, match=expected):
                one.result(order.submit(name))


def test_a_function_without_a_connection_keeps_its_own_arguments() -> None:
    app = App()

    async def plain(*, schema: str) -> str:
        return schema

    @app.workflow
    async def order() -> str:
        return await workflow.step(plain, schema="mine")

    with in_memory(app) as one:
        assert one.result(order.submit()) == "mine"
