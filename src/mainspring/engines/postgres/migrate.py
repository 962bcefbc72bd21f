"""The schema: numbered files, each applied once, in one transaction, under a lock that all nodes share.

A file begins with ``-- compatible from: N``: nodes that know migrations up to N work beside it. So a new version and the one
before it run side by side while a fleet is renewed node by node; only a node that is older still is refused.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

import asyncpg

from mainspring.errors import StoreError, StoreForeignError

if TYPE_CHECKING:
    from asyncpg import Connection, Record

_HEADER = re.compile(r"-- compatible from: (\d+)\n")
_LOCK = 0x4D535052 << 32
"""``MSPR``, followed by the checksum of the schema's name."""
TRIES: Final = 20
WAIT: Final = "3s"
"""How long a migration waits for the locks of tables: those behind it in their queues wait as long. Then it lets them by."""


class Migration(NamedTuple):
    """One step of the schema."""

    number: int
    compatible_from: int
    """The lowest version of the schema whose nodes may go on beside it."""
    text: str


def _load() -> list[Migration]:
    found = []
    for file in files(__package__).joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            text = file.read_text("utf-8")
            header = _HEADER.match(text)
            assert header is not None, f"{file.name} has to say what it is compatible with"
            found.append(Migration(int(file.name.removesuffix(".sql")), int(header[1]), text))
    return sorted(found)


MIGRATIONS: Final = _load()


def lock_key(schema: str) -> int:
    """Return the number of the advisory lock under which a schema is migrated."""
    return _LOCK | zlib.crc32(schema.encode())


async def prepare(
    connection: Connection[Record], schema: str, *, apply: bool = True, known: list[Migration] = MIGRATIONS
) -> list[int]:
    """Bring a schema up to date, and return the numbers of the migrations that were applied.

    ``connection`` has the schema as its search path. With ``apply=False`` nothing is changed. Raises StoreForeignError where the
    schema is newer and not compatible, and StoreError where it is older and may not be changed.
    """
    applied = await _applied(connection, schema)
    _refuse_newer(schema, applied, known)
    missing = [migration for migration in known if migration.number not in applied]
    if missing and not apply:
        raise StoreError(
            f"the schema {schema!r} is at version {max(applied, default=0)}, and this version of Mainspring needs "
            f"{missing[-1].number}: run `mainspring migrate` first, or start without --no-migrate"
        )
    return [migration.number for migration in missing if await _apply(connection, schema, migration, known)]


async def _applied(connection: Connection[Record], schema: str) -> dict[int, int]:
    """Return the migrations that the schema has, with the version that each is compatible with.

    The catalogue is read as tables: ``to_regclass`` answers from the session's cache, which is not told of another's new table
    while this session waits for the lock.
    """
    table = (
        "SELECT FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $1 AND relname = 'migrations'"
    )
    if await connection.fetchrow(table, schema) is None:
        return {}
    rows = await connection.fetch("SELECT number, compatible_from FROM migrations")
    return {number: compatible for number, compatible in rows}  # noqa: C416 - pairs of Any


def _refuse_newer(schema: str, applied: dict[int, int], known: list[Migration]) -> None:
    version = known[-1].number
    needed = max((compatible for number, compatible in applied.items() if number > version), default=0)
    if needed > version:
        raise StoreForeignError(
            f"the schema {schema!r} is at version {max(applied)} of a newer Mainspring and needs version {needed}, this one "
            f"knows {version}: use that version, or name another schema with ?schema=… in the store's address"
        )


async def _apply(connection: Connection[Record], schema: str, migration: Migration, known: list[Migration]) -> bool:
    """Apply a migration, unless another node has done so meanwhile; says whether."""
    for left in reversed(range(TRIES)):
        try:
            async with connection.transaction():
                await connection.execute("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
                await connection.execute(f"SELECT pg_advisory_xact_lock({lock_key(schema)})")
                applied = await _applied(connection, schema)
                _refuse_newer(schema, applied, known)
                if migration.number in applied:
                    return False
                if not applied:
                    await _create(connection, schema)
                await connection.execute(f"SET LOCAL lock_timeout = '{WAIT}'")
                await connection.execute(migration.text)
                await connection.execute(
                    "INSERT INTO migrations (number, compatible_from) VALUES ($1, $2)",
                    migration.number,
                    migration.compatible_from,
                )
                return True
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if not left:
                raise StoreError(
                    f"migration {migration.number} of the schema {schema!r} found its tables locked {TRIES} times: {error}; "
                    "look for long transactions in pg_stat_activity, and start again"
                ) from error
            await asyncio.sleep(1.0)
    raise AssertionError


async def _create(connection: Connection[Record], schema: str) -> None:
    """Create the schema and its table of migrations, where they are not there yet."""
    if await connection.fetchrow("SELECT FROM pg_namespace WHERE nspname = $1", schema) is None:
        await connection.execute(f"CREATE SCHEMA {quoted(schema)}")
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS migrations (number int PRIMARY KEY, compatible_from int NOT NULL,"
        " applied_at timestamptz NOT NULL DEFAULT now())"
    )


def quoted(name: str) -> str:
    """Return a name as SQL writes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
