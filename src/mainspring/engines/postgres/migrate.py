"""The schema: its numbered files, and the rights of roles that submit in their own transactions.

The first file creates the oldest schema that this version can open, and each later one changes it. A file is applied once, in
one transaction, under a lock that all nodes share. It begins with ``-- compatible from: N``: nodes that have migrations up to N
can share the store with it. So a new version and the one before it run side by side during a rolling upgrade; only older nodes
are refused.

With a second line ``-- outside of a transaction``, each statement of the file is run for itself. This is for CREATE INDEX
CONCURRENTLY: a plain CREATE INDEX on a table with many rows would stop the writes of running nodes meanwhile. If such a
migration is interrupted, it is run again from its first statement.

A role that submits executes a function of the store, and touches no table. ``submit`` runs with the rights of its caller and
calls one of two functions that run with those of the store's owner: ``submit_anywhere``, or the one of a single namespace,
which is created here. ``signal`` does the same for signals to runs. So PostgreSQL itself decides by the functions that a role
may execute, also in triggers and for roles that others have set. ``record_step`` and ``recorded_step`` are for runs of all
namespaces, and take the key of a run, which its node gives to the workers that decide it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import re
import zlib
from enum import Enum
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

import asyncpg
import structlog

from mainspring import namespaces
from mainspring.errors import StoreError, StoreForeignError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from asyncpg import Connection, Record

log = structlog.get_logger("mainspring.postgres")

_HEADER = re.compile(r"-- compatible from: (\d+)\n(-- outside of a transaction\n)?")
_LOCK = 0x4D535052 << 32
"""``MSPR``, in front of the checksum of the schema's name."""
_CREATED: Final = (asyncpg.DuplicateSchemaError, asyncpg.DuplicateTableError, asyncpg.UniqueViolationError)
"""Errors of creating what another session has just created."""
_HOLDERS: Final = """
    SELECT a.pid, a.usename::text, a.application_name, CASE
        WHEN has_schema_privilege(a.usesysid, n.oid, 'CREATE') THEN true
        WHEN n.oid IS NULL THEN has_database_privilege(a.usesysid, current_database(), 'CREATE')
        ELSE false END AS counts
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid LEFT JOIN pg_namespace n ON n.nspname = $3
    WHERE l.locktype = 'advisory' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND l.objsubid = 1 AND l.classid = $1::bigint::oid AND l.objid = $2::bigint::oid AND l.granted
"""
_UNLOCK: Final = """
    SELECT pg_advisory_unlock($3::bigint) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid = 1
        AND classid = $1::bigint::oid AND objid = $2::bigint::oid AND granted
"""
LOG_AFTER: Final = 5.0
"""Seconds of waiting for another migration between lines in the log."""
LOCK_ATTEMPTS: Final = 20
LOCK_TIMEOUT: Final = "3s"
"""The longest that a migration waits for the locks of tables: queries queue behind it as long. Then it yields to them."""
LOCK_POLL: Final = 0.1
"""Seconds between attempts to take the lock of migrations. A session that waits for a lock has a snapshot, and the node with the
lock would wait for that snapshot's end if it creates an index concurrently."""


class Migration(NamedTuple):
    """One step of the schema."""

    number: int
    compatible_from: int
    """The lowest version of the schema whose nodes may continue to run."""
    text: str
    is_transaction: bool = True
    """Whether all of it is one transaction; otherwise each statement is one."""


def _load() -> list[Migration]:
    found = []
    for file in files(__package__).joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            text = file.read_text("utf-8")
            header = _HEADER.match(text)
            assert header is not None, f"{file.name} must begin with '-- compatible from: N'"
            found.append(Migration(int(file.name.removesuffix(".sql")), int(header[1]), text, header[2] is None))
    return sorted(found)


MIGRATIONS: Final = _load()


def lock_key(schema: str) -> int:
    """Return the number of the advisory lock for migrations of a schema."""
    return _LOCK | zlib.crc32(schema.encode())


async def prepare(
    connection: Connection[Record], schema: str, *, apply: bool = True, migrations: list[Migration] = MIGRATIONS
) -> list[int]:
    """Upgrade a schema, and return the numbers of the migrations that were applied.

    ``connection`` has the schema as its search path. With ``apply=False`` nothing is changed. Raises StoreForeignError if the
    schema is newer and not compatible, or older than the first migration, and StoreError if it is older and may not be changed.
    """
    applied = await _applied(connection, schema)
    _refuse_foreign(schema, applied, migrations)
    missing = [migration for migration in migrations if migration.number not in applied]
    if missing and not apply:
        raise StoreError(
            f"the schema {schema!r} is at version {max(applied, default=0)}, and this version of Mainspring needs "
            f"{missing[-1].number}: run `mainspring migrate` first, or start without --no-migrate"
        )
    return [migration.number for migration in missing if await _apply(connection, schema, migration, migrations)]


async def _applied(connection: Connection[Record], schema: str) -> dict[int, int]:
    """Return the schema's migrations, each with the version that it is compatible with.

    The catalogue is read as tables: ``to_regclass`` answers from the session's cache, which misses a table that another session
    creates while this one waits for the lock.
    """
    table = (
        "SELECT FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $1 AND relname = 'migrations'"
    )
    if await connection.fetchrow(table, schema) is None:
        return {}
    rows = await connection.fetch("SELECT number, compatible_from FROM migrations")
    return {number: compatible for number, compatible in rows}  # noqa: C416 - pairs of Any


def _refuse_foreign(schema: str, applied: dict[int, int], migrations: list[Migration]) -> None:
    first = migrations[0].number
    if applied and first not in applied:
        raise StoreForeignError(
            f"the schema {schema!r} is at version {max(applied)}, and this version of Mainspring opens {first} and later: "
            "update it with `mainspring migrate` of an earlier version, or name another schema with ?schema=… in its address"
        )
    version = migrations[-1].number
    needed = max((compatible for number, compatible in applied.items() if number > version), default=0)
    if needed > version:
        raise StoreForeignError(
            f"the schema {schema!r} is at version {max(applied)} of a newer Mainspring and needs version {needed}, but this one "
            f"has version {version}: use that version, or name another schema with ?schema=… in the store's address"
        )


async def _apply(
    connection: Connection[Record], schema: str, migration: Migration, migrations: list[Migration]
) -> bool:
    """Apply a migration, unless another node has applied it in between; return whether this node did."""
    for left in reversed(range(LOCK_ATTEMPTS)):
        try:
            async with _locked(connection, schema):
                applied = await _applied(connection, schema)
                _refuse_foreign(schema, applied, migrations)
                if migration.number in applied:
                    return False
                if migration.is_transaction:
                    return await _apply_whole(connection, schema, migration)
                await _apply_statements(connection, migration)
                return True
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if not left:
                raise StoreError(
                    f"migration {migration.number} of the schema {schema!r} found locked tables {LOCK_ATTEMPTS} times: {error}; "
                    "look for long transactions in pg_stat_activity, and start again"
                ) from error
            await asyncio.sleep(1.0)
    raise AssertionError


@contextlib.asynccontextmanager
async def _locked(connection: Connection[Record], schema: str) -> AsyncIterator[None]:
    """Hold the lock of migrations, without time-outs.

    Any role that may connect can take the lock. It counts only if its holder could migrate, too; otherwise this goes on without
    it, and the lock of the table of migrations excludes others.
    """
    key = lock_key(schema)
    clock = asyncio.get_running_loop().time
    log_at = clock() + LOG_AFTER
    while not await connection.fetchval(f"SELECT pg_try_advisory_lock({key})"):
        holders = await connection.fetch(_HOLDERS, key >> 32, key & 0xFFFFFFFF, schema)
        if holders and not any(row["counts"] for row in holders):
            log.error(
                "a role that cannot migrate holds the lock of migrations: it does not count",
                sessions=described(holders),
                remedy="end these sessions with pg_terminate_backend, and let only roles that need it connect to the database",
            )
            break
        if clock() >= log_at:
            log_at = clock() + LOG_AFTER
            log.warning("another session migrates the store: waiting for it", sessions=described(holders))
        await asyncio.sleep(LOCK_POLL)
    try:
        await connection.execute("SET lock_timeout = 0; SET statement_timeout = 0")
        yield
    finally:
        if not connection.is_closed():  # the end of a session releases its locks
            await connection.execute("RESET lock_timeout; RESET statement_timeout")
            await connection.execute(_UNLOCK, key >> 32, key & 0xFFFFFFFF, key)


async def _apply_whole(connection: Connection[Record], schema: str, migration: Migration) -> bool:
    """Apply a migration as one transaction, unless it was applied in between; return whether this did."""
    async with connection.transaction():
        try:
            await _create(connection, schema)
        except _CREATED as error:
            raise asyncpg.LockNotAvailableError("another session creates the schema") from error
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        await connection.execute("LOCK TABLE migrations IN SHARE ROW EXCLUSIVE MODE")
        if migration.number in await _applied(connection, schema):
            return False
        await connection.execute(migration.text)
        await _record(connection, migration)
    return True


async def _apply_statements(connection: Connection[Record], migration: Migration) -> None:
    """Run each statement as a transaction. It waits for other transactions without a time-out: no query queues behind it."""
    for statement in filter(None, migration.text.split(";\n")):
        await connection.execute(statement)
    await _record(connection, migration)


async def _record(connection: Connection[Record], migration: Migration) -> None:
    await connection.execute(
        "INSERT INTO migrations (number, compatible_from) VALUES ($1, $2)",
        migration.number,
        migration.compatible_from,
    )


async def _create(connection: Connection[Record], schema: str) -> None:
    """Create the schema and its table of migrations if they are missing."""
    if await connection.fetchrow("SELECT FROM pg_namespace WHERE nspname = $1", schema) is None:
        await connection.execute(f"CREATE SCHEMA {quoted(schema)}")
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS migrations (number int PRIMARY KEY, compatible_from int NOT NULL,"
        " applied_at timestamptz NOT NULL DEFAULT now())"
    )


def quoted(name: str) -> str:
    """Return a name as an SQL identifier, with any characters."""
    return '"' + name.replace('"', '""') + '"'


def described(rows: Iterable[Record]) -> str:
    """Describe sessions, given as process number, role and application, for the log."""
    return ", ".join(f"process {row[0]} of {row[1]} ({row[2] or 'no application_name'})" for row in rows)


ANYWHERE: Final = "*"
"""Stands for all namespaces."""


class _Act(NamedTuple):
    """A kind of request that roles may send in their own transactions: a function for all namespaces, and one for each."""

    name: str
    arguments: Mapping[str, str]
    """The arguments before the namespace, with their types."""
    returns: str
    comment: str

    @property
    def types(self) -> str:
        return ", ".join(self.arguments.values())


_SUBMIT: Final = _Act(
    "submit",
    {
        "function": "bytea",
        "payload": "bytea",
        "uniq": "bytea",
        "priority": "int",
        "delay": "float8",
        "run_at": "float8",
        "expires": "float8",
        "options": "bytea",
    },
    "text",
    "Submits in the namespace",
)
_SIGNAL: Final = _Act(
    "signal",
    {"run": "text", "name": "text", "input": "bytea", "request": "text"},
    "void",
    "Signals runs of the namespace",
)


_OF_STEPS: Final = {"recorded_step(text, int, bytea)", "record_step(text, int, bytea, text, bytea, boolean, bytea)"}


class Runs(Enum):
    """The roles that may execute a function of the store."""

    OWNER = "the store's owner, which is the role of nodes"
    SUBMITTERS = (
        "also roles to which ``mainspring migrate --grant-submit`` has granted it, with the rights of its caller"
    )
    ANYWHERE = "also those that may submit in all namespaces, with the rights of the owner"
    WITH_KEY = "also those that may submit, with the rights of the owner, for the runs whose keys they have"


FUNCTIONS: Final[Mapping[str, Runs]] = {
    "enter": Runs.OWNER,
    "enter_schedules": Runs.OWNER,
    "enter_schedules_2": Runs.OWNER,
    "lock_pools": Runs.OWNER,
    "has_turn": Runs.OWNER,
    "usual": Runs.OWNER,
    "usual_2": Runs.OWNER,
    "kept_payload": Runs.OWNER,
    "appended_record": Runs.OWNER,
    "check_submission": Runs.OWNER,
    "keep_roots": Runs.OWNER,
    "refuse_older_nodes": Runs.OWNER,
    "refuse_nodes_without_pauses": Runs.OWNER,
    "release_successor": Runs.OWNER,
    "submit_1": Runs.OWNER,
    "submit": Runs.SUBMITTERS,
    "submit_anywhere": Runs.ANYWHERE,
    "signal": Runs.SUBMITTERS,
    "signal_anywhere": Runs.ANYWHERE,
    "step_run": Runs.OWNER,
    "recorded_step": Runs.WITH_KEY,
    "record_step": Runs.WITH_KEY,
}
"""Each function of the schema, beside those of single namespaces (`function_of`). A migration that adds one takes it from
``PUBLIC``, which has the right by default, and declares it here: the tests attack each one as each role."""


def function_of(act: str, namespace: str) -> str:
    """Return the name of the function that submits or signals in one namespace, as ``submit`` and ``signal`` compute it too."""
    return f"{act}_{hashlib.sha256(namespace.encode()).hexdigest()[:32]}"


async def grant_submit(connection: Connection[Record], schema: str, role: str, permitted: Sequence[str]) -> list[str]:
    """Let a role submit in some namespaces, and in no others; return the statements that were run.

    Its rights on tables, which earlier versions needed, are revoked. Repeating it changes nothing. Raises UsageError for a role
    that does not exist, and for one that owns the store.
    """
    for namespace in permitted:
        if namespace != ANYWHERE:
            namespaces.check(namespace)
    if await connection.fetchrow("SELECT FROM pg_roles WHERE rolname = $1", role) is None:
        raise UsageError(
            f"there is no role {role!r} in PostgreSQL: create it first, with CREATE ROLE, or check its name"
        )
    if await connection.fetchval(
        "SELECT pg_has_role($1::name, relowner, 'MEMBER') FROM pg_class WHERE oid = 'inbox'::regclass", role
    ):
        raise UsageError(
            f"the role {role!r} owns the store or is a superuser, so it has every right already: give the application a role"
            " of its own"
        )
    async with connection.transaction():
        statements = await _statements(connection, schema, role, permitted)
        for statement in statements:
            await connection.execute(statement)
    return statements


async def _statements(connection: Connection[Record], schema: str, role: str, permitted: Sequence[str]) -> list[str]:
    to, at = quoted(role), quoted(schema)
    wanted = {f"{act.name}({act.types}, text)" for act in (_SUBMIT, _SIGNAL)} | _OF_STEPS
    statements = [f"GRANT USAGE ON SCHEMA {at} TO {to}"]
    for namespace, act in itertools.product(sorted(set(permitted)), (_SUBMIT, _SIGNAL)):
        if namespace == ANYWHERE:
            wanted.add(f"{act.name}_anywhere({act.types}, text)")
            continue
        name = function_of(act.name, namespace)
        wanted.add(f"{name}({act.types})")
        if await connection.fetchval("SELECT to_regprocedure($1) IS NULL", f"{name}({act.types})"):
            statements += _creation(at, act, name, namespace)
    statements += [f"GRANT EXECUTE ON FUNCTION {at}.{function} TO {to}" for function in sorted(wanted)]
    functions = await connection.fetch(
        "SELECT proname || '(' || replace(replace(oidvectortypes(proargtypes), 'integer', 'int'), 'double precision', 'float8')"
        " || ')' AS function FROM pg_proc p, aclexplode(p.proacl) AS granted"
        " WHERE pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'inbox'::regclass)"
        " AND grantee = (SELECT oid FROM pg_roles WHERE rolname = $1) ORDER BY 1",
        role,
    )
    statements += [f"REVOKE ALL ON FUNCTION {at}.{row[0]} FROM {to}" for row in functions if row[0] not in wanted]
    relations = await connection.fetch(
        "SELECT DISTINCT relkind, relname FROM ("
        " SELECT c.relkind, c.relname, c.relnamespace, x.grantee FROM pg_class c, aclexplode(c.relacl) AS x"
        " UNION ALL SELECT c.relkind, c.relname, c.relnamespace, x.grantee"
        " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid, aclexplode(a.attacl) AS x) AS granted"
        " WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'inbox'::regclass)"
        " AND grantee = (SELECT oid FROM pg_roles WHERE rolname = $1) ORDER BY 1, 2",
        role,
    )
    statements += [
        f"REVOKE ALL ON {'SEQUENCE' if kind == b'S' else 'TABLE'} {at}.{quoted(name)} FROM {to}"
        for kind, name in relations
    ]
    return statements


def _creation(at: str, act: _Act, name: str, namespace: str) -> list[str]:
    """Return the statements that create the function of a namespace, which only its owner may execute at first."""
    named = ", ".join(map(" ".join, act.arguments.items()))
    marks = ", ".join(f"${number}" for number in range(1, len(act.arguments) + 1))
    function = f"{at}.{name}({act.types})"
    create = (
        f"CREATE FUNCTION {at}.{name}({named}) RETURNS {act.returns} LANGUAGE sql SECURITY DEFINER"
        f" SET search_path = pg_catalog, {at}, pg_temp"
        f" AS $$ SELECT {act.name}_anywhere({marks}, '{namespace}') $$"
    )
    comment = f"COMMENT ON FUNCTION {function} IS '{act.comment} {namespace}'"
    return [create, f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC", comment]
