from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.postgres.server import name_of

from mainspring.access.audit import RecordActs
from mainspring.access.caller import Act
from mainspring.engines.postgres import migrate
from mainspring.engines.postgres.engine import migrate_store
from mainspring.engines.postgres.migrate import MIGRATIONS, Migration, prepare, quoted
from mainspring.engines.postgres.transaction import SQL, load_statements
from mainspring.errors import StoreError, StoreForeignError
from mainspring.storage.engine import Probe

from .a_fleet import eventually, node, session

if TYPE_CHECKING:
    from tests.postgres.server import PostgresServer

pytestmark = pytest.mark.usefixtures("migrations")

VERSION = MIGRATIONS[-1].number
ALL = [migration.number for migration in MIGRATIONS]


async def connect(dsn: str, schema: str = "mainspring") -> asyncpg.Connection[asyncpg.Record]:
    return await asyncpg.connect(dsn, server_settings={"search_path": quoted(schema), "lock_timeout": "2s"})


def test_migrations_are_numbered_without_gaps() -> None:
    assert list(range(ALL[0], VERSION + 1)) == ALL
    assert all(ALL[0] <= migration.compatible_from <= migration.number for migration in MIGRATIONS)


def test_nodes_that_start_at_once_apply_each_migration_once(database: str) -> None:
    async def test() -> None:
        connections = await asyncio.gather(*(connect(database) for _ in range(5)))
        applied = await asyncio.gather(*(prepare(connection, "mainspring") for connection in connections))
        assert sorted(number for numbers in applied for number in numbers) == ALL
        assert await prepare(connections[0], "mainspring") == []
        for connection in connections:
            connection.terminate()

    asyncio.run(test())


def test_whole_nodes_that_start_at_once(database: str) -> None:
    async def test() -> None:
        async def run(name: str) -> int:
            async with node(database, name) as one:
                await one.submitted()
                return one.term

        assert sorted(await asyncio.gather(*(run(f"n{i}") for i in range(4)))) == [1, 2, 3, 4]

    asyncio.run(test())


def test_a_name_of_a_schema_may_be_any(database: str) -> None:
    async def test() -> None:
        for schema in ('a"b; --', "Ünïcode"):
            connection = await connect(database, schema)
            assert await prepare(connection, schema) == ALL
            assert await prepare(connection, schema) == []
            connection.terminate()

    asyncio.run(test())


def test_nodes_of_the_next_version_upgrade_a_store_beside_this_one(database: str) -> None:
    async def test() -> None:
        newer = Migration(
            VERSION + 1, VERSION, "ALTER TABLE jobs ADD COLUMN more int; CREATE TABLE brand_new (number int)"
        )
        async with node(database) as one:
            jobs = await one.submitted()
            connections = await asyncio.gather(*(connect(database) for _ in range(3)))
            upgrades = (
                prepare(connection, "mainspring", migrations=[*MIGRATIONS, newer]) for connection in connections
            )
            assert sorted(await asyncio.gather(*upgrades)) == [[], [], [VERSION + 1]]
            jobs += await one.submitted()
            async with node(database, "n2") as two:
                assert set(await two.find(*(job.id for job in jobs))) == {job.id for job in jobs}
            for connection in connections:
                connection.terminate()

    asyncio.run(test())


def test_a_migration_that_fails_leaves_nothing(database: str) -> None:
    async def test() -> None:
        connection = await connect(database)
        broken = [*MIGRATIONS, Migration(VERSION + 1, 1, "CREATE TABLE half (); SELECT 1 / 0")]
        with pytest.raises(asyncpg.DivisionByZeroError):
            await prepare(connection, "mainspring", migrations=broken)
        assert await connection.fetchval("SELECT max(number) FROM migrations") == VERSION
        assert await connection.fetchval("SELECT to_regclass('half')") is None
        connection.terminate()

    asyncio.run(test())


@pytest.mark.parametrize("compatible", [VERSION, VERSION + 1])
def test_beside_a_newer_schema_only_compatible_nodes_run(database: str, compatible: int) -> None:
    async def test() -> None:
        connection = await connect(database)
        newer = Migration(VERSION + 1, compatible, "CREATE TABLE brand_new ()")
        await prepare(connection, "mainspring", migrations=[*MIGRATIONS, newer])
        connection.terminate()
        if compatible > VERSION:
            with pytest.raises(StoreForeignError, match=f"version {VERSION + 1} of a newer Mainspring"):
                async with node(database):
                    pass
        else:
            async with node(database) as one:
                await one.submitted()

    asyncio.run(test())


def test_an_older_schema_is_refused_where_it_may_not_be_changed(database: str) -> None:
    async def test() -> None:
        with pytest.raises(StoreError, match="mainspring migrate"):
            async with node(database, migrate=False):
                pass
        async with session(database) as other:
            assert await other.fetchval("SELECT to_regnamespace('mainspring')") is None
        assert await migrate_store(database) == ALL
        async with node(database, migrate=False) as one:
            await one.submitted()

    asyncio.run(test())


def test_a_schema_before_the_first_migration_is_refused(database: str) -> None:
    async def test() -> None:
        async with node(database) as one:
            await one.submitted()
        async with session(database) as other:
            await other.execute(f"DELETE FROM migrations WHERE number >= {ALL[0]}")
            for apply in (False, True):
                with pytest.raises(
                    StoreForeignError, match=rf"version {ALL[0] - 1}, .*`mainspring migrate` of an earlier"
                ):
                    async with node(database, migrate=apply):
                        pass
            assert await other.fetchval("SELECT max(number) FROM migrations") == ALL[0] - 1

    asyncio.run(test())


def test_a_new_store_has_the_numbers_of_all_versions(database: str) -> None:
    """So a node of the version before, which has the same schema in several files, applies none of them."""

    async def test() -> None:
        connection = await connect(database)
        await prepare(connection, "mainspring")
        rows = await connection.fetch("SELECT number, compatible_from FROM migrations ORDER BY number")
        assert [row["number"] for row in rows] == list(range(1, VERSION + 1))
        assert {row["compatible_from"] for row in rows[: ALL[0]]} == {ALL[0]}
        connection.terminate()

    asyncio.run(test())


def test_a_migration_lets_others_by_while_it_waits_for_a_table(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", "50ms")

    async def test() -> None:
        connection = await connect(database)
        await prepare(connection, "mainspring")
        async with session(database) as other:
            await other.execute("BEGIN; SELECT FROM functions")
            newer = [*MIGRATIONS, Migration(VERSION + 1, 1, "ALTER TABLE functions ADD COLUMN more int")]
            applying = asyncio.ensure_future(prepare(connection, "mainspring", migrations=newer))

            async def gave_way() -> bool:
                async with session(database) as third:
                    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                    return bool(await third.fetchval(waits))

            await eventually(gave_way, "it waits for the table")
            async with session(database, lock_timeout="1s") as third:
                assert await third.fetch("SELECT * FROM functions") == []
            assert not applying.done()
            await other.execute("COMMIT")
            assert await asyncio.wait_for(applying, 20) == [VERSION + 1]
        connection.terminate()

    asyncio.run(test())


def test_an_index_on_a_table_with_rows_is_created_concurrently() -> None:
    for migration in MIGRATIONS[1:]:
        own = set(re.findall(r"CREATE TABLE (\w+)", migration.text))
        indexed = set(re.findall(r"CREATE (?:UNIQUE )?INDEX \w+ ON (?!ONLY )(\w+)", migration.text))
        assert indexed <= own, f"migration {migration.number} stops the writes of running nodes"
        assert not (migration.is_transaction and "CONCURRENTLY" in migration.text)


CONCURRENT = Migration(
    VERSION + 1,
    VERSION,
    "DROP INDEX CONCURRENTLY IF EXISTS more;\nCREATE INDEX CONCURRENTLY more ON audit (namespace, object);\n",
    is_transaction=False,
)
"""An interrupted attempt leaves an invalid index, which the next one drops."""
INVALID = "SELECT count(*) FROM pg_index WHERE indrelid = 'audit'::regclass AND NOT indisvalid"


def test_nodes_write_while_an_index_is_built_and_an_interrupted_one_is_built_again(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as slow, session(database) as other:
            migrations = [*MIGRATIONS, CONCURRENT]
            for is_interrupted in (True, False):
                await slow.execute("BEGIN; INSERT INTO audit (namespace, what, act) VALUES ('n', 'w', '')")
                connections = [await connect(database) for _ in range(2)]
                building = [
                    asyncio.ensure_future(prepare(one, "mainspring", migrations=migrations)) for one in connections
                ]

                async def waits() -> bool:
                    return bool(await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

                await eventually(waits, "it waits for the transaction")
                assert await one.group(RecordActs([Act("jobs.cancel", "ann", "j1")])) == [None]
                if is_interrupted:
                    for connection in connections:
                        await other.execute(f"SELECT pg_terminate_backend({connection.get_server_pid()})")
                    await asyncio.gather(*building, return_exceptions=True)
                await slow.execute("COMMIT")
                if is_interrupted:
                    assert await other.fetchval(INVALID) == 1
                else:
                    assert sorted(await asyncio.gather(*building)) == [[], [CONCURRENT.number]]
                    assert await connections[0].fetchval("SHOW lock_timeout") == "2s"
                for connection in connections:
                    connection.terminate()
            assert await other.fetchval(INVALID) == 0
            assert await other.fetchval("SELECT count(*) FROM pg_indexes WHERE indexname = 'more'") == 1

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_user_without_the_right_learns_which_one_is_missing(postgres: PostgresServer, database: str) -> None:
    postgres.sql("DROP ROLE IF EXISTS nobody_much; CREATE ROLE nobody_much LOGIN")

    async def test() -> None:
        with pytest.raises(StoreError, match="CREATE SCHEMA mainspring AUTHORIZATION"):
            async with node(database.replace("postgres@", "nobody_much@")):
                pass

    asyncio.run(test())


def test_a_probe_finds_a_right_that_was_revoked(postgres: PostgresServer, database: str) -> None:
    """It says so in the same words as the statement that needs the right, and for each table."""
    postgres.sql("DROP ROLE IF EXISTS revoked; CREATE ROLE revoked LOGIN")
    postgres.sql("CREATE SCHEMA mainspring AUTHORIZATION revoked", name_of(database))

    async def test() -> None:
        async with node(database.replace("postgres@", "revoked@")) as one, session(database) as owner:
            await owner.execute("CREATE TABLE of_somebody_else (number int)")
            assert await one.group(Probe()) == [None]
            await owner.execute("REVOKE INSERT ON jobs FROM revoked")
            messages = set()
            for operation in (Probe(), one.submit(one.job())):
                with pytest.raises(StoreError, match="permission denied for table jobs") as refused:
                    await one.group(operation)
                messages.add(str(refused.value))
            assert len(messages) == 1
            await owner.execute("GRANT INSERT ON jobs TO revoked; REVOKE DELETE ON fires FROM revoked")
            with pytest.raises(StoreError, match="permission denied for table fires"):
                await one.group(Probe())
            await owner.execute("GRANT DELETE ON fires TO revoked")
            assert await one.group(Probe()) == [None]

    try:
        asyncio.run(test())
    finally:
        postgres.sql("DROP OWNED BY revoked CASCADE", name_of(database))
        postgres.sql("DROP ROLE revoked")


def test_the_statements_fit_the_schema(database: str) -> None:
    async def test() -> None:
        async with node(database), session(database) as other:
            for statement in [*load_statements("engine.sql").values(), *SQL.values()]:
                await other.prepare(statement)

    asyncio.run(test())
