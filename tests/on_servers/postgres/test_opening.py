from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs
from tests.postgres.server import PostgresServer, name_of

from mainspring.errors import StoreError, StoreUnavailableError

from .a_fleet import eventually, node, session

if TYPE_CHECKING:
    from pathlib import Path


def refused(dsn: str, message: str, kind: type[StoreError] = StoreError) -> None:
    """Assert that a node does not open a store, with this reason."""

    async def test() -> None:
        with pytest.raises(kind, match=message):
            async with node(dsn, open_timeout=0.0):
                pass

    asyncio.run(test())


def test_a_missing_database_is_refused(postgres: PostgresServer) -> None:
    refused(postgres.dsn("nowhere"), "createdb")


def test_a_missing_server_is_refused(free_port: int) -> None:
    refused(f"postgresql://postgres@127.0.0.1:{free_port}/x", "cannot be reached", StoreUnavailableError)


def test_a_wrong_password_is_refused(postgres_programs: Path) -> None:
    with PostgresServer() as own:
        own.sql("ALTER ROLE postgres PASSWORD 'right'")
        (own.directory / "data" / "pg_hba.conf").write_text("host all all all scram-sha-256\n")
        right = own.dsn().replace("postgres@", "postgres:right@")
        wrong = own.dsn().replace("postgres@", "postgres:wrong@")

        async def test() -> None:
            async with session(own.dsn()) as other:
                await other.execute("SELECT pg_reload_conf()")

            async def is_read() -> bool:
                try:
                    async with session(wrong):
                        return False
                except Exception:  # noqa: BLE001
                    return True

            await eventually(is_read, "the server has read its pg_hba.conf")
            async with node(right):
                pass

        asyncio.run(test())
        refused(wrong, "refuses the password")


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_an_unsafe_server_is_refused_unless_the_address_accepts_it(setting: str, postgres_programs: Path) -> None:
    with PostgresServer(**{setting: False}) as own:  # type: ignore[arg-type]
        refused(own.dsn(), f"has {setting} off.*unsafe={setting}")

        async def test() -> None:
            async with node(f"{own.dsn()}?unsafe={setting}") as one:
                await one.submitted()

        asyncio.run(test())


def test_sessions_that_do_not_wait_for_the_disk_are_refused_unless_accepted(
    postgres: PostgresServer, database: str
) -> None:
    postgres.sql(f'ALTER DATABASE "{name_of(database)}" SET synchronous_commit = off')
    refused(database, "has synchronous_commit off.*unsafe=synchronous_commit")

    async def test() -> None:
        async with node(f"{database}?unsafe=synchronous_commit") as one:
            await one.submitted()

    asyncio.run(test())


def test_a_server_whose_transactions_are_read_only_is_no_standby(postgres: PostgresServer, database: str) -> None:
    postgres.sql(f'ALTER DATABASE "{name_of(database)}" SET default_transaction_read_only = on')
    refused(database, "has default_transaction_read_only on.*ALTER DATABASE", StoreUnavailableError)


def test_a_setting_that_is_switched_off_later_does_not_affect_a_session(postgres_programs: Path) -> None:
    with PostgresServer() as own:

        async def test() -> None:
            async with node(own.dsn()) as one, session(own.dsn()) as other:
                await asyncio.to_thread(own.set, synchronous_commit="off")

                async def is_off() -> bool:
                    return bool(await other.fetchval("SHOW synchronous_commit") == "off")

                await eventually(is_off, "the setting has arrived")
                connection = one.engine._writer._connection  # noqa: SLF001 - one of its two connections is to be looked at
                assert connection is not None
                assert await connection.fetchval("SHOW synchronous_commit") == "on"

        asyncio.run(test())


def test_a_standby_is_refused_and_an_asynchronous_one_warned_about(postgres_programs: Path) -> None:
    with PostgresServer() as own, own.replica(synchronous=False) as standby:
        refused(standby.dsn(), "is a standby", StoreUnavailableError)

        async def test() -> None:
            with capture_logs() as logs:
                async with node(own.dsn()):
                    pass
            assert any("no standby is synchronous" in line["event"] for line in logs)
            await asyncio.to_thread(own.synchronise, standby.name)

            async def is_synchronous() -> bool:
                async with session(own.dsn()) as other:
                    return bool(await other.fetchval("SHOW synchronous_standby_names"))

            await eventually(is_synchronous, "the setting has arrived")
            with capture_logs() as logs:
                async with node(own.dsn()):
                    pass
            assert not any("synchronous" in line["event"] for line in logs)

        asyncio.run(test())


def test_a_server_that_comes_up_later_is_waited_for(postgres_programs: Path) -> None:
    with PostgresServer() as own:
        own.stop()

        async def test() -> None:
            with capture_logs() as logs:
                entering = node(own.dsn())
                opening = asyncio.ensure_future(entering.__aenter__())

                async def says_so() -> bool:
                    return any("waiting for it" in line["event"] for line in logs)

                await eventually(says_so, "the log has a line about the wait")
                await asyncio.to_thread(own.start)
                one = await asyncio.wait_for(opening, 20)
                assert any("is back" in line["event"] for line in logs)
                await one.submitted()
                await entering.__aexit__(None, None, None)

        asyncio.run(test())


def test_the_wait_for_a_server_ends(free_port: int) -> None:
    async def test() -> None:
        with pytest.raises(StoreUnavailableError):
            async with node(f"postgresql://postgres@127.0.0.1:{free_port}/x", open_timeout=0.3):
                pass

    asyncio.run(asyncio.wait_for(test(), 10))


def test_one_of_several_servers_is_enough(database: str, free_port: int) -> None:
    async def test() -> None:
        both = database.replace("127.0.0.1", f"127.0.0.1:{free_port},127.0.0.1")
        async with node(both) as one:
            await one.submitted()

    asyncio.run(test())


def test_a_node_can_be_seen_in_the_servers_own_list(database: str) -> None:
    async def test() -> None:
        async with node(database, "some-node"), session(database) as other:
            names = await other.fetch(
                "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND application_name <> ''"
            )
            assert sorted(name for (name,) in names) == [
                "mainspring:some-node",
                "mainspring:some-node groups",
                "mainspring:some-node reads",
            ]

    asyncio.run(test())
