"""The servers that other tests depend on: they start, die, come back and leave nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.system.servers import eventually

from . import keeper
from .server import PostgresError, PostgresServer, name_of, several

LOST = (asyncpg.AdminShutdownError, asyncpg.InterfaceError, asyncpg.exceptions.InternalClientError, OSError)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 20.0


@pytest.fixture
def own(postgres_programs: Path) -> Iterator[PostgresServer]:
    """Return a server that a test may disturb."""
    with PostgresServer() as server:
        yield server


@contextlib.asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(dsn, timeout=TIMEOUT)
    try:
        yield connection
    finally:
        connection.terminate()


def segments() -> set[str]:
    """Return the ids of the shared memory segments of the machine."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


@pytest.mark.usefixtures("migrations")
def test_a_database_is_empty_and_of_its_own(postgres: PostgresServer, database: str) -> None:
    other = postgres.create_database()
    postgres.sql("CREATE TABLE t ()", name_of(database))
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert postgres.sql(tables, name_of(database)) == "1"
    assert postgres.sql(tables, name_of(other)) == "0"
    copy = postgres.create_database(template=name_of(database))
    assert postgres.sql(tables, name_of(copy)) == "1"
    for dsn in (other, copy):
        postgres.drop_database(dsn)
    assert name_of(other) not in postgres.sql("SELECT datname FROM pg_database").split()


def test_a_database_is_dropped_under_its_users(postgres: PostgresServer) -> None:
    dsn = postgres.create_database()

    async def test() -> None:
        async with connected(dsn) as connection:
            await asyncio.to_thread(postgres.drop_database, dsn)
            with pytest.raises(LOST):
                await connection.fetchval("SELECT 1")
            with pytest.raises(asyncpg.InvalidCatalogNameError):
                await asyncpg.connect(dsn)

    asyncio.run(test())


def test_it_is_durable_by_default(postgres: PostgresServer) -> None:
    shown = (
        "SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes')"
    )
    assert postgres.sql(shown) == "on|on|on"
    with PostgresServer(fsync=False, synchronous_commit="off", max_connections=7) as server:
        assert server.sql(shown) == "off|off|on"
        assert server.sql("SHOW max_connections") == "7"


def test_an_error_in_a_statement_is_an_error(postgres: PostgresServer) -> None:
    with pytest.raises(PostgresError, match="syntax error"):
        postgres.sql("SELECT 1; SELEKT")


def test_an_unknown_setting_is_reported_at_the_start(postgres_programs: Path) -> None:
    with pytest.raises(PostgresError, match="unrecognized configuration parameter"), PostgresServer(such_a_thing=1):
        pass


def test_committed_rows_survive_a_kill_and_others_do_not(own: PostgresServer) -> None:
    dsn = own.create_database()

    async def test() -> None:
        async with connected(dsn) as connection:
            await connection.execute("CREATE TABLE t (i int)")
            for i in range(20):
                await connection.execute("INSERT INTO t VALUES ($1)", i)
            await connection.execute("BEGIN; INSERT INTO t VALUES (100)")
            await asyncio.to_thread(own.kill)
            assert not own.is_running
            assert not own.pids
            with pytest.raises(OSError, match=r"refused|Connect call failed"):
                await asyncpg.connect(dsn)
        await asyncio.to_thread(own.start)
        assert "database system was not properly shut down" in own.log()
        async with connected(dsn) as connection:
            assert await connection.fetchval("SELECT array_agg(i ORDER BY i) FROM t") == [*range(20)]

    asyncio.run(test())


def test_a_killed_backend_ends_all_sessions_and_the_postmaster_recovers(own: PostgresServer) -> None:
    async def test() -> None:
        async with connected(own.dsn()) as victim, connected(own.dsn()) as other:
            victim_pid = await victim.fetchval("SELECT pg_backend_pid()")
            waiting = asyncio.ensure_future(other.fetchval("SELECT pg_sleep(60)"))
            os.kill(victim_pid, signal.SIGKILL)
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                await asyncio.wait_for(waiting, TIMEOUT)

    asyncio.run(test())
    eventually(lambda: own.log().count("ready to accept connections") == 2, "it has recovered")
    assert own.sql("SELECT 1") == "1"


def test_a_restart_keeps_the_port_and_ends_sessions(own: PostgresServer) -> None:
    port = own.port

    async def test() -> None:
        async with connected(own.dsn()) as connection:
            await asyncio.to_thread(own.restart)
            with pytest.raises(LOST):
                await connection.fetchval("SELECT 1")

    asyncio.run(test())
    assert own.port == port
    assert own.sql("SELECT 1") == "1"
    assert "not properly shut down" not in own.log()


def test_while_it_is_paused_nobody_answers(own: PostgresServer) -> None:
    async def test() -> None:
        async with connected(own.dsn()) as connection:
            own.pause()
            asked = asyncio.ensure_future(connection.fetchval("SELECT 1"))
            done, _ = await asyncio.wait({asked}, timeout=0.3)
            assert not done
            with pytest.raises(TimeoutError):
                await asyncpg.connect(own.dsn(), timeout=0.3)
            own.resume()
            assert await asyncio.wait_for(asked, TIMEOUT) == 1

    asyncio.run(test())


def test_too_many_connections_are_refused(postgres_programs: Path) -> None:
    with PostgresServer(max_connections=5, superuser_reserved_connections=0) as small:

        async def test() -> None:
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(5):
                    await stack.enter_async_context(connected(small.dsn()))
                with pytest.raises(asyncpg.TooManyConnectionsError):
                    await asyncpg.connect(small.dsn())

        asyncio.run(test())


def test_what_was_acknowledged_is_on_a_promoted_standby(own: PostgresServer) -> None:
    dsn = own.create_database()
    with own.replica() as standby:
        both = several(name_of(dsn), standby, own)

        async def before() -> int:
            async with connected(both) as connection:
                assert await connection.fetchval("SELECT inet_server_port()") == own.port
                await connection.execute("CREATE TABLE t (i int)")
                for i in range(50):
                    await connection.execute("INSERT INTO t VALUES ($1)", i)
                own.kill()
                return 50

        acknowledged = asyncio.run(before())
        standby.promote()

        async def after() -> None:
            async with connected(both) as connection:
                assert await connection.fetchval("SELECT inet_server_port()") == standby.port
                assert await connection.fetchval("SELECT count(*) FROM t") == acknowledged
                await connection.execute("INSERT INTO t VALUES (-1)")  # waits for no standby of its own

        asyncio.run(after())


def test_commits_wait_for_a_synchronous_standby_that_is_away(own: PostgresServer) -> None:
    own.sql("CREATE TABLE t (i int)")
    with own.replica() as first, own.replica() as second:
        assert own.sql("SHOW synchronous_standby_names") == "2 (standby1, standby2)"
        second.pause()

        async def test() -> None:
            async with connected(own.dsn()) as connection:
                commit = asyncio.ensure_future(connection.execute("INSERT INTO t VALUES (1)"))
                done, _ = await asyncio.wait({commit}, timeout=0.3)
                assert not done
                second.resume()
                await asyncio.wait_for(commit, TIMEOUT)

        asyncio.run(test())
        first.stop()
        second.stop()
        own.synchronise()
        own.sql("INSERT INTO t VALUES (2)")


def test_an_asynchronous_standby_is_not_waited_for(own: PostgresServer) -> None:
    with own.replica(synchronous=False) as standby:
        assert own.sql("SHOW synchronous_standby_names") == ""
        standby.pause()
        own.sql("CREATE TABLE t (i int)")
        standby.resume()
        eventually(lambda: standby.sql("SELECT to_regclass('t')"), "the standby has the table")
        with pytest.raises(PostgresError, match="read-only transaction"):
            standby.sql("INSERT INTO t VALUES (1)")
        standby.promote()
        standby.sql("INSERT INTO t VALUES (1)")


@pytest.mark.parametrize("state", ["running", "paused", "killed", "stopped"])
def test_nothing_is_left_of_it_in_whatever_state_it_was(state: str, postgres_programs: Path) -> None:
    with PostgresServer() as server:
        directory, pid = server.directory, server.pid
        segment = (directory / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1]
        assert segment in segments()
        if state != "running":
            {"paused": server.pause, "killed": server.kill, "stopped": server.stop}[state]()
    assert not directory.exists()
    assert not keeper.processes(directory)
    assert not Path(f"/proc/{pid}").exists()
    assert segment not in segments()


@pytest.mark.parametrize("paused", [False, True])
def test_nothing_is_left_of_it_where_its_owner_is_killed(paused: bool, postgres_programs: Path) -> None:
    program = f"""
        import sys, threading
        from tests.postgres.server import PostgresServer
        with PostgresServer() as server:
            {"server.pause()" if paused else ""}
            print(server.directory, server.pid, flush=True)
            sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        directory, pid = owner.stdout.readline().split()
        assert re.match(r"State:\s+[RSDT]", Path(f"/proc/{pid}/status").read_text().splitlines()[2]), "it lives"
        owner.kill()
    eventually(lambda: not Path(directory).exists(), "the directory has been removed")
    assert not keeper.processes(Path(directory))
