"""Roles of PostgreSQL attack a store: one that may submit, one for reports, and one that may only connect to the database."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import zlib
from contextlib import asynccontextmanager
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import asyncpg
import pytest
from structlog.testing import capture_logs

from mainspring.engines.postgres import migrate
from mainspring.engines.postgres.engine import grant_submit, migrate_store
from mainspring.engines.postgres.migrate import FUNCTIONS as FUNCTIONS_OF_THE_STORE
from mainspring.engines.postgres.migrate import Runs, function_of, lock_key
from mainspring.engines.postgres.relay import Relay, encode
from mainspring.errors import UsageError
from mainspring.events import Direct, Pending, Progress, Settled, Stop
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.resources.store import Acquire, TokenRequest
from mainspring.schedules.store import RepairSchedules
from mainspring.workflows.model import step_key
from tests.on_servers.postgres.a_fleet import NOW, node, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.on_servers.postgres.a_fleet import Node

    Connection = asyncpg.Connection[asyncpg.Record]

pytestmark = pytest.mark.usefixtures("migrations")

DENIED = (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedObjectError)


ACTS = ("submit", "signal")
"""The functions that a role with the right to submit may call."""
WITH_KEY = {name for name, runs in FUNCTIONS_OF_THE_STORE.items() if runs is Runs.WITH_KEY}
"""Those that it may call for the runs whose keys it has."""


class Roles(NamedTuple):
    """Sessions of four roles, and the address of the store as its owner has it."""

    store: str
    owner: Connection
    web: Connection
    reader: Connection
    stranger: Connection


def named(database: str, role: str) -> str:
    """Return the name of a role; roles belong to the whole server."""
    return f"{role}_{database.rpartition('/')[2].partition('?')[0]}"


def as_role(database: str, role: str) -> str:
    """Return the address of the database for a role."""
    return database.replace("postgres@", f"{named(database, role)}@", 1)


@asynccontextmanager
async def roles(database: str) -> AsyncIterator[Roles]:
    """Create the roles and an empty schema; nobody has a right that the server does not give by itself."""
    async with session(database) as admin:
        for role in ("ms", "web", "reader", "stranger"):
            await admin.execute(f"CREATE ROLE {named(database, role)} LOGIN")
        await admin.execute(f"CREATE SCHEMA mainspring AUTHORIZATION {named(database, 'ms')}")
    addresses = [as_role(database, role) for role in ("ms", "web", "reader", "stranger")]
    owner, web, reader, stranger = [await asyncpg.connect(address) for address in addresses]
    try:
        await owner.execute("SET search_path = mainspring")
        yield Roles(addresses[0], owner, web, reader, stranger)
    finally:
        for connection in (owner, web, reader, stranger):
            await connection.close()


async def grant(one: Roles, database: str, *permitted: str) -> list[str]:
    return await grant_submit(one.store, named(database, "web"), permitted or ("default",))


async def drain(one: Node) -> dict[tuple[bytes, int], int]:
    (taken,) = await one.group(ops.DrainInbox())
    pending: dict[tuple[bytes, int], int] = taken.pending
    return pending


OBJECTS = """
SELECT c.oid::regclass::text AS name, c.relkind, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'mainspring' AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
"""
FUNCTIONS = """
SELECT p.oid, p.proname, p.oid::regprocedure::text AS call, p.prosecdef, p.proconfig, p.pronargs
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'mainspring'
"""


def test_a_role_that_may_submit_can_do_nothing_else(database: str) -> None:
    async def test() -> None:
        async with roles(database) as one:
            await migrate_store(one.store)
            await grant(one, database)
            async with node(one.store) as server:
                await check_web(one, server, database)

    asyncio.run(test())


async def check_web(one: Roles, server: Node, database: str) -> None:
    handle = await one.web.fetchval("SELECT mainspring.submit('f', 'secret', uniq => 'u', options => '\\x80')")
    assert handle == "H:inbox:1"
    # Every table, view and sequence, and every function: new ones too.
    objects = await one.owner.fetch(OBJECTS)
    assert len(objects) > 20
    for role, connection in (("web", one.web), ("stranger", one.stranger)):
        for name, kind, oid in objects:
            attacks = [f"SELECT * FROM mainspring.{name}"]
            if kind == b"S":
                attacks += [f"SELECT setval('mainspring.{name}', 1)", f"SELECT nextval('mainspring.{name}')"]
            else:
                attacks += [f"INSERT INTO mainspring.{name} DEFAULT VALUES", f"DELETE FROM mainspring.{name}"]
                attacks += [
                    f"TRUNCATE mainspring.{name}",
                    f"DO $$ BEGIN LOCK TABLE mainspring.{name}; END $$",
                    f"DROP TABLE mainspring.{name}",
                ]
                attacks += [f"ALTER TABLE mainspring.{name} DISABLE TRIGGER ALL"]
                rights = "SELECT has_any_column_privilege($1::name, $2::oid, 'SELECT, INSERT, UPDATE, REFERENCES')"
                assert not await one.owner.fetchval(rights, named(database, role), oid), name
            for attack in attacks:
                with pytest.raises(DENIED):
                    await connection.execute(attack)
        for oid, name, call, *_ in await one.owner.fetch(FUNCTIONS):
            right = "SELECT has_function_privilege($1::name, $2::oid, 'EXECUTE')"
            allowed = role == "web" and name in {*ACTS, *WITH_KEY, *(function_of(act, "default") for act in ACTS)}
            assert await one.owner.fetchval(right, named(database, role), oid) is allowed, call
    for attack in (
        "SELECT mainspring.submit_anywhere('f', 'p', '', 1, NULL, NULL, NULL, NULL, 'team')",
        "SELECT mainspring.submit('f', namespace => 'team')",
        "SELECT mainspring.signal_anywhere('order-1', 'paid', '', '', 'team')",
        "SELECT mainspring.signal('order-1', 'paid', namespace => 'team')",
        "INSERT INTO mainspring.sent_signals (run, name) VALUES ('order-1', 'paid')",
        "SELECT mainspring.enter(1, 1)",
        "SELECT mainspring.step_run('1', '')",
        "SELECT mainspring.submit_1('f')",
        "CREATE TABLE mainspring.mine (x int)",
        "CREATE FUNCTION mainspring.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "SELECT payload FROM mainspring.jobs",
        "UPDATE mainspring.jobs SET state = 4",
        "INSERT INTO mainspring.ended SELECT * FROM mainspring.ended",
        "INSERT INTO mainspring.inbox (id, function) VALUES (1, 'f')",
        "SET session_replication_role = replica",
        f"SET ROLE {named(database, 'ms')}",
    ):
        with pytest.raises(DENIED):
            await one.web.execute(attack)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not submit in the namespace team") as refused:
        await one.web.execute("SELECT mainspring.submit('f', namespace => 'team')")
    assert "mainspring migrate --grant-submit" in str(refused.value.hint)
    with pytest.raises(DENIED):
        await one.stranger.execute("SELECT mainspring.submit('f')")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not signal runs of the namespace team"):
        await one.web.execute("SELECT mainspring.signal('order-1', 'paid', namespace => 'team')")
    with pytest.raises(DENIED):
        await one.stranger.execute("SELECT mainspring.signal('order-1', 'paid')")
    await check_keys(one, server)
    # Its temporary objects hide none of the store's: their triggers would run as the owner.
    await one.web.execute(
        "CREATE TEMP TABLE inbox (id bigint, namespace text, function bytea, uniq bytea, priority int, created_us bigint,"
        " due_us bigint, expires_us bigint, options bytea, payload bytea);"
        "CREATE FUNCTION pg_temp.mine() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'runs as %', current_user; END $$;"
        "CREATE TRIGGER mine BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION pg_temp.mine();"
        "CREATE FUNCTION pg_temp.submit_anywhere(bytea, bytea, bytea, int, float8, float8, float8, bytea, text) RETURNS text"
        " LANGUAGE sql AS $$ SELECT 'mine' $$; SET search_path = pg_temp"
    )
    assert await one.web.fetchval("SELECT mainspring.submit('f')") == "H:inbox:2"
    # No row stops the inbox, or the lists.
    for arguments in ("'f', run_at => 1e300", "'f', '', delay => 'NaN'", "E'\\\\x1f'", "'f', priority => 9", "NULL"):
        with pytest.raises(asyncpg.DataError if "priority" not in arguments else asyncpg.CheckViolationError):
            await one.web.execute(f"SELECT mainspring.submit({arguments})")
    assert await drain(server) == {(b"f", 1): 2}
    assert (await server.find(1))[1].state == State.PENDING


async def check_keys(one: Roles, server: Node) -> None:
    """A role reads and records steps of the runs whose keys it has, and of no others."""
    secret = server.engine.step_secret
    recorded = "SELECT result FROM mainspring.recorded_step($1, 1, $2)"
    record = "SELECT mainspring.record_step($1, 1, $2, extract(epoch FROM now())::text, $3, false, 'r')"
    own, other = step_key(secret, 1_000_000_000_001), step_key(secret, 1_000_000_000_002)
    assert await one.web.fetchval(recorded, "1000000000001", own) is None
    assert await one.web.fetchval(record, "1000000000001", own, bytes(8)) == "closed", "there is no such run"
    for key in (other, b"", None, own[:8], hashlib.sha256(own).digest()[:16]):
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="not the key of a run"):
            await one.web.fetchval(recorded, "1000000000001", key)
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="not the key of a run"):
            await one.web.fetchval(record, "1000000000001", key, bytes(8))
    with pytest.raises(DENIED):
        await one.stranger.fetchval(recorded, "1000000000001", own)


SECRET = ("secrets", "mail", "credentials", "replies")
"""Tables that the role for reports of ``docs/how-to/harden.md`` does not read."""


def test_each_function_is_for_the_roles_that_it_declares(database: str) -> None:
    async def test() -> None:
        async with roles(database) as one:
            await migrate_store(one.store)
            await grant_reports(one, database)
            sessions = {"web": one.web, "reader": one.reader, "stranger": one.stranger}
            for permitted in (["default"], ["team", "*"]):
                await grant(one, database, *permitted)
                found = await one.owner.fetch(SIGNATURES)
                own = {function_of(act, namespace) for act in ACTS for namespace in ("default", "team")}
                assert {row["proname"] for row in found} - own == {*FUNCTIONS_OF_THE_STORE}, "each is declared"
                granted = {function_of(act, namespace) for act in ACTS for namespace in permitted} | {
                    name
                    for name, runs in FUNCTIONS_OF_THE_STORE.items()
                    if runs in {Runs.SUBMITTERS, Runs.WITH_KEY} or (runs is Runs.ANYWHERE and "*" in permitted)
                }
                for (role, session_), (oid, name, call, arguments, kind) in product(sessions.items(), found):
                    right = "SELECT has_function_privilege($1::name, $2::oid, 'EXECUTE')"
                    allowed = role == "web" and name in granted
                    assert await one.owner.fetchval(right, named(database, role), oid) is allowed, (role, call)
                    if not allowed and kind != "trigger":
                        values = ", ".join(f"NULL::{argument}" for argument in arguments)
                        with pytest.raises(asyncpg.InsufficientPrivilegeError):
                            await session_.execute(f"SELECT mainspring.{name}({values})")

    asyncio.run(test())


SIGNATURES = """
SELECT p.oid, p.proname, p.oid::regprocedure::text AS call, ARRAY(
    SELECT t::regtype::text FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, at) ORDER BY at
), p.prorettype::regtype::text
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'mainspring'
"""


async def grant_reports(one: Roles, database: str) -> None:
    """Give the role for reports the rights of the page."""
    reader = named(database, "reader")
    tables = ", ".join(f"mainspring.{name}" for name in SECRET)
    for statement in (
        f"GRANT USAGE ON SCHEMA mainspring TO {reader}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA mainspring TO {reader}",
        f"REVOKE ALL ON {tables} FROM {reader}",
    ):
        await one.owner.execute(statement)


def table_of(name: str) -> str:
    return f"mainspring.{name}"


def test_a_role_for_reports_reads_and_stops_nobody(database: str) -> None:
    async def test() -> None:
        async with roles(database) as one:
            await migrate_store(one.store)
            await grant_reports(one, database)
            async with node(one.store) as server:
                for name, kind, *_ in await one.owner.fetch(OBJECTS):
                    table = table_of(name)
                    attacks = [f"SELECT nextval('{table}')", f"SELECT setval('{table}', 1)"]
                    if kind != b"S":
                        attacks = [f"INSERT INTO {table} DEFAULT VALUES", f"DELETE FROM {table}", f"TRUNCATE {table}"]
                        attacks += [f"SELECT 1 FROM {table} FOR KEY SHARE", f"COPY {table} FROM STDIN"]
                        attacks += [f"DO $$ BEGIN LOCK TABLE {table} IN ROW SHARE MODE; END $$"]
                    if name in SECRET:
                        attacks.append(f"SELECT * FROM {table}")
                    for attack in attacks:
                        with pytest.raises((*DENIED, asyncpg.PostgresSyntaxError)):
                            await one.reader.execute(attack)
                await one.reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM mainspring.jobs")
                for name, kind, *_ in await one.owner.fetch(OBJECTS):
                    if kind != b"S" and await one.reader.fetchval(
                        "SELECT has_table_privilege($1, 'SELECT')", table_of(name)
                    ):
                        await one.reader.execute(f"LOCK TABLE {table_of(name)} IN ACCESS SHARE MODE")
                await works(server, one)

    asyncio.run(test())


def test_functions_with_the_rights_of_their_owner_have_a_path_of_their_own(database: str) -> None:
    async def test() -> None:
        async with roles(database) as one:
            await migrate_store(one.store)
            await grant(one, database, "default", "team")
            definers = [row for row in await one.owner.fetch(FUNCTIONS) if row["prosecdef"]]
            assert {row["proname"] for row in definers} >= {
                "check_submission",
                "submit_anywhere",
                "signal_anywhere",
                *WITH_KEY,
                *(function_of(act, "team") for act in ACTS),
            }
            for row in definers:
                assert row["proconfig"] == ["search_path=pg_catalog, mainspring, pg_temp"], row["call"]

    asyncio.run(test())


def test_a_grant_is_repeatable_and_names_the_namespaces(database: str) -> None:
    async def test() -> None:
        async with roles(database) as one:
            await migrate_store(one.store)
            submit = "SELECT mainspring.submit('f', namespace => $1)"
            first = await grant(one, database)
            repeated = await grant(one, database)
            assert set(repeated) < set(first)
            assert all(statement.startswith("GRANT ") for statement in repeated)
            await one.web.fetchval(submit, "default")
            for permitted, expected in ((("team", "other"), ("team", "other")), (("*",), ("default", "team", "new"))):
                await grant(one, database, *permitted)
                for namespace in expected:
                    await one.web.fetchval(submit, namespace)
            await grant(one, database, "team")
            for namespace in ("default", "other", "new"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await one.web.fetchval(submit, namespace)
            found = await one.owner.fetch("SELECT namespace, function FROM inbox WHERE namespace = 'team'")
            assert [tuple(row) for row in found] == [("team", b"team\x1ff")] * 2
            for role, words in (("nobody_has_this", "there is no role"), (named(database, "ms"), "owns the store")):
                with pytest.raises(UsageError, match=words):
                    await grant_submit(one.store, role, ["default"])
            with pytest.raises(UsageError, match="is no namespace"):
                await grant(one, database, "'); DROP TABLE jobs; --")

    asyncio.run(test())


def test_the_right_is_that_of_the_role_in_use(database: str) -> None:
    """A trigger of the application submits for users who may not; a session with another role has that role's right."""

    async def test() -> None:
        async with roles(database) as one, session(database) as admin:
            await migrate_store(one.store)
            await grant(one, database)
            web, stranger = named(database, "web"), named(database, "stranger")
            await admin.execute(f"CREATE SCHEMA shop AUTHORIZATION {web}")
            await one.web.execute(
                "CREATE TABLE shop.orders (id int); CREATE FUNCTION shop.confirm() RETURNS trigger LANGUAGE plpgsql"
                " SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS"
                " $$ BEGIN PERFORM mainspring.submit('confirm'); RETURN NEW; END $$;"
                "CREATE TRIGGER confirm AFTER INSERT ON shop.orders FOR EACH ROW EXECUTE FUNCTION shop.confirm();"
                f"GRANT USAGE ON SCHEMA shop TO {stranger}; GRANT INSERT ON shop.orders TO {stranger}"
            )
            await one.stranger.execute("INSERT INTO shop.orders VALUES (1)")
            with pytest.raises(DENIED):
                await one.stranger.execute("SELECT mainspring.submit('confirm')")
            await admin.execute(f"SET ROLE {web}")
            await admin.execute("SELECT mainspring.submit('confirm')")
            assert await one.owner.fetchval("SELECT count(*) FROM inbox") == 2

    asyncio.run(test())


def test_a_role_with_rights_on_the_inbox_keeps_them_until_it_may_submit(database: str) -> None:
    async def test() -> None:
        async with roles(database) as one:
            await migrate_store(one.store)
            web = named(database, "web")
            await one.owner.execute(
                f"GRANT USAGE ON SCHEMA mainspring TO {web}; GRANT INSERT, SELECT (id) ON mainspring.inbox TO {web};"
                f"GRANT USAGE ON SEQUENCE mainspring.inbox_ids TO {web}"
            )
            await one.owner.execute(
                "GRANT EXECUTE ON FUNCTION mainspring.submit_1(bytea, bytea, bytea, int, float8, float8, float8, bytea),"
                f" mainspring.submit_anywhere(bytea, bytea, bytea, int, float8, float8, float8, bytea, text) TO {web}"
            )
            insert = "INSERT INTO mainspring.inbox (id, function) VALUES (1000, 'f') RETURNING id"
            assert await one.web.fetchval(insert) < 1000, "the id is the store's"
            with pytest.raises(DENIED):
                await one.web.execute("SELECT mainspring.enter(1, 1)")
            revoked = [line for line in await grant(one, database) if line.startswith("REVOKE")]
            for what in (
                "submit_anywhere(",
                "submit_1(",
                'TABLE "mainspring"."inbox"',
                'SEQUENCE "mainspring"."inbox_ids"',
            ):
                assert any(what in line for line in revoked), revoked
            with pytest.raises(DENIED):
                await one.web.fetchval(insert)
            await one.web.fetchval("SELECT mainspring.submit('f')")
            async with node(one.store) as server:
                assert await drain(server) == {(b"f", 1): 2}

    asyncio.run(test())


# ---- messages between nodes ----


def test_a_role_that_may_connect_neither_receives_nor_forges_messages(database: str) -> None:
    async def test() -> None:
        async with roles(database) as one, node(one.store, "a") as first, node(one.store, "b") as second:
            received: list[object] = []

            def receive(_: object, pid: int, channel: str, payload: object) -> None:
                received.append(payload)

            guessed = [f"mainspring_{zlib.crc32(b'mainspring'):08x}"]
            guessed += [f"{guessed[0]}_{term}" for term in (first.term, second.term)]
            guessed += [Relay(None).channel(term) for term in (None, first.term, second.term)]  # type: ignore[arg-type]
            for channel in guessed:
                await one.stranger.add_listener(channel, receive)
            # Neither the table with the secret nor the sessions of nodes show it.
            for query in ("SELECT * FROM mainspring.secrets", "SELECT * FROM mainspring.mail"):
                with pytest.raises(DENIED):
                    await one.stranger.execute(query)
            shown = await one.stranger.fetch(
                "SELECT query FROM pg_stat_activity WHERE application_name LIKE 'mainspring:%'"
            )
            assert {row[0] for row in shown} == {"<insufficient privilege>"}
            first.engine.send(second.term, Progress(1, "data", b"secret part"))
            await second.wait_for(lambda messages: messages == [Progress(1, "data", b"secret part")])
            await one.stranger.execute("SELECT 1")  # by its answer, what was sent before has arrived
            assert received == []
            forged = base64.b85encode(encode([Stop(1, "forged"), Direct(1, "stop")])).decode()
            for channel in guessed:
                for text in (f"{first.term} 1 0 1 {forged}", f"{first.term} m", "999 s 1", "nonsense"):
                    await one.stranger.execute("SELECT pg_notify($1, $2)", channel, text)
            # Somebody who has a channel's name, from a log of the server for example, sends hints at most.
            channel = first.engine._relay.channel(second.term)  # noqa: SLF001 - no role can find the name
            await one.stranger.add_listener(channel, receive)
            received.clear()
            for text in (f"{first.term} 1 0 1 {forged}", "999 m", "999 s 5,6", "999 p 1,99", "nonsense"):
                await one.stranger.execute("SELECT pg_notify($1, $2)", channel, text)
            received.clear()
            first.engine.send(second.term, Progress(1, "data", b"secret part"))
            await second.wait_for(lambda messages: len([m for m in messages if isinstance(m, Progress)]) == 2)
            assert {type(message) for message in second.received} <= {Progress, Settled, Pending}
            await one.stranger.execute("SELECT 1")
            assert f"{first.term} m" in received
            assert not any("secret" in str(text) for text in received)

    asyncio.run(test())


# ---- locks ----


def advisory_locks(schema: str) -> str:
    """Return a statement that takes every advisory lock that a node of this version or of the one before may want."""
    checksum, pool = zlib.crc32(schema.encode()), "encode('', 'hex')"
    taken = [f"pg_try_advisory_lock({lock_key(schema)})"]
    for term in range(20):
        taken.append(f"pg_try_advisory_lock({checksum}::bigint::bit(32)::int, {term})")
        taken.append(f"pg_try_advisory_lock(hashtextextended(format('%s:%s:%s', '{schema}', {term}, {pool}), 0))")
    taken += [f"pg_try_advisory_lock(hashtextextended('{schema} {what}', 0))" for what in ("schedules", "mending")]
    return f"SELECT {', '.join(taken)}"


async def copy_locks(stranger: Connection, database: str) -> list[asyncio.Task[object]]:
    """Wait, as the stranger, for each advisory lock that the server shows, to get it before a node does."""
    own = await stranger.fetchval("SELECT pg_backend_pid()")
    shown = await stranger.fetch(
        "SELECT DISTINCT classid::bigint, objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND pid <> $1",
        own,
    )
    assert len(shown) >= 2, "every role sees the numbers"

    async def wait(first: int, second: int) -> None:
        connection = await asyncpg.connect(as_role(database, "stranger"))
        try:
            await connection.execute(
                f"SELECT pg_advisory_lock({first}::bigint::bit(32)::int, {second}::bigint::bit(32)::int)"
            )
            await asyncio.Event().wait()
        finally:
            connection.terminate()

    tasks: list[asyncio.Task[object]] = [asyncio.ensure_future(wait(*row)) for row in shown]
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with asyncio.timeout(60):
        while await stranger.fetchval(waiting) < len(tasks):  # noqa: ASYNC110 - in the server
            await asyncio.sleep(0.01)
    return tasks


def test_no_lock_of_a_role_that_may_connect_stops_a_node(database: str) -> None:
    async def test() -> None:
        async with roles(database) as one:
            await one.stranger.execute(advisory_locks("mainspring"))
            with capture_logs() as logs:
                async with node(one.store, "a") as first, node(one.store, "b") as second:
                    (held,) = [line for line in logs if "holds the lock of migrations" in line["event"]][:1]
                    assert named(database, "stranger") in held["sessions"]
                    await works(first, one)
                    # It sees the marks of sessions, and gets them as soon as a node's connection is lost.
                    tasks = await copy_locks(one.stranger, database)
                    first.engine._writer.give_up()  # noqa: SLF001 - a lost connection
                    await works(first, one)
                    assert await second.engine.end(first.term)
                    await works(second, one)
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(test())


def test_the_lock_of_a_role_that_may_migrate_counts(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that migrate at once take turns, also while a role without rights waits for the same lock."""
    monkeypatch.setattr(migrate, "LOG_AFTER", 0.0)

    async def test() -> None:
        async with roles(database) as one:
            lock = f"pg_advisory_lock({lock_key('mainspring')})"
            await one.owner.execute(f"SELECT {lock}")
            waiting = asyncio.ensure_future(one.stranger.execute(f"SELECT {lock}"))
            with capture_logs() as logs:
                migrating = asyncio.ensure_future(migrate_store(one.store))
                async with asyncio.timeout(60):
                    while not logs:  # noqa: ASYNC110 - of a log
                        await asyncio.sleep(0.01)
            assert logs[0]["event"] == "another session migrates the store: waiting for it"
            assert named(database, "ms") in logs[0]["sessions"]
            assert named(database, "stranger") not in logs[0]["sessions"]
            assert await one.owner.fetchval("SELECT to_regclass('mainspring.jobs')") is None
            await one.owner.execute(f"SELECT pg_advisory_unlock({lock_key('mainspring')})")
            await waiting
            await one.stranger.execute("SELECT pg_advisory_unlock_all()")
            assert await migrating

    asyncio.run(test())


async def works(one: Node, roles: Roles) -> None:
    """Run what takes locks: a job, a grant of tokens, the schedules, folding, repairs."""
    await one.submitted()
    ((job,),) = (await one.group(one.claim(1)))[0]
    await one.group(one.settle(job))
    await one.group(Acquire(one.term, [TokenRequest(b"f", b"", 3, 3)], NOW), RepairSchedules(NOW))
    assert await one.engine.fold_once() > 0
    for lock in ("has_turn(-2, 0)", "enter_schedules_2(true)"):
        await roles.owner.execute(f"SET lock_timeout = '5s'; SELECT {lock}")
