"""Locks that transactions of nodes take, among nodes of this version and beside one of the version before."""

from __future__ import annotations

import asyncio
import zlib

import asyncpg
import pytest

from mainspring.engines.postgres.migrate import prepare

from .a_fleet import session

CHECKSUM = zlib.crc32(b"mainspring")
POOL = "ARRAY[7]::int[], ARRAY['\\x6b'::bytea]"
FOLD = f"SELECT has_turn(-1, {CHECKSUM}::bigint::bit(32)::int)"
REPAIR = "SELECT has_turn(-2, 0)"
OLD_FOLD = f"SELECT pg_try_advisory_xact_lock({CHECKSUM}::bigint::bit(32)::int, 0)"
OLD_REPAIR = "SELECT pg_try_advisory_xact_lock(hashtextextended(current_schema() || ' mending', 0))"
OLD_POOL = (
    "SELECT pg_advisory_xact_lock(hashtextextended(format('%s:%s:%s', current_schema(), 7, encode('\\x6b', 'hex')), 0))"
)
BOTH = [
    (f"SELECT lock_pools({POOL})", f"SELECT lock_pools({POOL})", OLD_POOL),
    ("SELECT enter_schedules_2(false)", "SELECT enter_schedules_2(true)", "SELECT enter_schedules(true)"),
    ("SELECT enter_schedules_2(true)", "SELECT enter_schedules_2(false)", "SELECT enter_schedules(false)"),
]
TURNS = [(FOLD, OLD_FOLD), (REPAIR, OLD_REPAIR)]
ROW = """INSERT INTO nodes (term, counter, about) VALUES (7, 1, '{"name": "n", "mail": %s}')"""


def test_transactions_exclude_those_of_both_versions(database: str) -> None:
    async def test() -> None:
        async with session(database) as one, session(database) as other:
            await prepare(one, "mainspring")
            await one.execute("SET lock_timeout = '50ms'")
            for is_old in (False, True):
                await one.execute("DELETE FROM nodes")
                await one.execute(ROW % ("false" if is_old else "true"))
                for statement, same_version, old_version in BOTH:
                    for held, excludes in ((same_version, True), (old_version, is_old)):
                        await other.execute(f"BEGIN; {held}")
                        if excludes:
                            with pytest.raises(asyncpg.LockNotAvailableError):
                                await one.execute(statement)
                        else:
                            await one.execute(statement)
                        await other.execute("ROLLBACK")
                        await one.execute(statement)
                for statement, old_version in TURNS:
                    for held, excludes in ((statement, True), (old_version, is_old)):
                        await other.execute("BEGIN")
                        assert await other.fetchval(held)
                        assert await one.fetchval(statement) is not excludes
                        await other.execute("ROLLBACK")
                        assert await one.fetchval(statement)

    asyncio.run(test())
