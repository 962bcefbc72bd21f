"""Ended jobs by the time of their end: partitions are made ahead and dropped whole; what they do not cover is swept row by row.

A partition is dropped in steps, so that nobody waits for it: it is taken off, which takes a lock on all of them for a moment, or
not at all for now; then what was in it is counted out of the counts, a piece at a time; then it is dropped. Its jobs are
forgotten with the first step.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import asyncpg

from mainspring.engines.postgres.migrate import quoted
from mainspring.engines.postgres.rows import SQL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs import store as ops

DAY_US: Final = 86_400_000_000
PATIENCE: Final = "200ms"
"""How long everybody may wait behind the lock that a partition needs to be attached or taken off."""
TRIES: Final = 3
BLOCKS: Final = 2000
"""Blocks of a retired partition that are counted at a time."""
BUDGET: Final = 0.5
"""Seconds after which counting lets others have the connection."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Kind(NamedTuple):
    """A partitioned table."""

    table: str
    days: int
    """In one partition."""
    ahead: int
    """Partitions that are made before their time."""

    def begins(self, at_us: int) -> int:
        """Return the day since 1970 with which the partition for a time begins."""
        return at_us // DAY_US // self.days * self.days

    def name(self, day: int) -> str:
        """Return the name of the partition that begins with a day."""
        return f"{self.table}_{_EPOCH + timedelta(days=day):%Y%m%d}"

    def day(self, name: str) -> int | None:
        """Return the day with which a partition begins; None where it is none of these."""
        match = re.fullmatch(rf"{self.table}_(\d{{8}})", name)
        return None if match is None else (datetime.strptime(match[1], "%Y%m%d").replace(tzinfo=UTC) - _EPOCH).days


ENDED: Final = Kind("ended", 1, 2)
DEAD: Final = Kind("dead", 7, 1)
_LOCKED = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)


async def upkeep(connection: Connection[Record]) -> None:
    """Make the partitions of today and of some days to come. What finds no lock is left for the next time."""
    now_us = await connection.fetchval(SQL["now"])
    there = await _names(connection)
    for kind in (ENDED, DEAD):
        first = kind.begins(now_us)
        for day in range(first, first + (kind.ahead + 1) * kind.days, kind.days):
            if kind.name(day) not in there:
                await attach(connection, kind, day)


async def _names(connection: Connection[Record]) -> set[str]:
    return {row[0] for row in await connection.fetch(SQL["partitions"])}


async def attach(connection: Connection[Record], kind: Kind, day: int) -> None:
    """Make a partition, with what is in the one for all other times already."""
    name, table = quoted(kind.name(day)), kind.table
    lower, upper = day * DAY_US, (day + kind.days) * DAY_US
    for _ in range(TRIES):
        try:
            async with connection.transaction():
                await connection.execute(
                    f"SET LOCAL lock_timeout = '{PATIENCE}';"
                    # in the order in which groups lock them; nobody else makes partitions meanwhile
                    f"LOCK TABLE ONLY {table} IN SHARE UPDATE EXCLUSIVE MODE;"
                    f"LOCK TABLE {table}_other IN ACCESS EXCLUSIVE MODE"
                )
                if kind.name(day) in await _names(connection):
                    return
                await connection.execute(f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE)")
                move = f"DELETE FROM {table}_other WHERE ended_us >= $1 AND ended_us < $2 RETURNING *"  # noqa: S608
                await connection.execute(
                    f"WITH moved AS ({move}) INSERT INTO {name} SELECT * FROM moved",  # noqa: S608 - names of ours
                    lower,
                    upper,
                )
                await connection.execute(
                    f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({lower}) TO ({upper})"
                )
                return
        except _LOCKED:
            continue


# ---- what is old ----


class Retired:
    """What one engine remembers of old partitions."""

    def __init__(self) -> None:
        self.days: tuple[int, int] | None = None
        """The days up to which ended and dead jobs' partitions have been taken off."""
        self.left = False
        """Whether any are not counted yet."""


async def sweep(tx: Transaction, operations: Sequence[ops.Sweep]) -> list[int]:
    """Forget ended jobs; see ``Sweep``. Partitions are dropped after the commit, and are not in the outcome."""
    return [await _sweep(tx, operation) for operation in operations]


async def _sweep(tx: Transaction, operation: ops.Sweep) -> int:
    ended_us, dead_us = _bounded(operation.ended_before_us), _bounded(operation.dead_before_us)
    gone = await tx.connection.fetch(SQL["sweep"], ended_us, dead_us, operation.rows)
    for function, state, priority, number in gone:
        tx.count(function, state, priority, -number)
    # What was cancelled or expired lies beside what failed: the partition goes when the time of both has come.
    days = ended_us // DAY_US, min(ended_us, dead_us) // DAY_US
    memory = tx.memory(Retired)
    if memory.days != days or memory.left:
        tx.later(lambda connection: retire(connection, days, memory))
    return sum(row[3] for row in gone)


def _bounded(time_us: int) -> int:
    return max(-(2**62), min(time_us, 2**62))


async def retire(connection: Connection[Record], days: tuple[int, int], memory: Retired) -> None:
    """Take off the partitions that end by some days, and count and drop what was taken off, for as long as the budget lasts.

    One on which somebody has a lock is left for the next time.
    """
    locked = False
    there = await _names(connection)
    for kind, before in zip((ENDED, DEAD), days, strict=True):
        for name in sorted(there):
            day = kind.day(name)
            if day is not None and day + kind.days <= before:
                locked |= not await take_off(connection, kind, name)
    memory.left = await count_off(connection) or locked
    memory.days = days


async def take_off(connection: Connection[Record], kind: Kind, name: str) -> bool:
    """Take a partition off, unless a lock is in the way; says whether it is off."""
    try:
        async with connection.transaction():
            await connection.execute(
                f"SET LOCAL lock_timeout = '{PATIENCE}'; LOCK TABLE ONLY {kind.table} IN ACCESS EXCLUSIVE MODE"
            )
            if name in await _names(connection):
                await connection.execute(f"ALTER TABLE {kind.table} DETACH PARTITION {quoted(name)}")
                await connection.execute("INSERT INTO retired (name) VALUES ($1)", name)
    except _LOCKED:
        return False
    return True


async def count_off(connection: Connection[Record], budget: float = BUDGET) -> bool:
    """Count retired partitions out of the counts and drop them; says whether any is left when the budget of seconds is spent."""
    until = time.monotonic() + budget
    while True:
        async with connection.transaction():
            found = await connection.fetchrow(SQL["retired"])
            if found is None:
                return False
            await _count_piece(connection, found["name"], found["block"])
        if time.monotonic() >= until:
            return True


async def _count_piece(connection: Connection[Record], name: str, block: int) -> None:
    # Before version 14, a range of blocks cannot be read without reading all of them.
    step = BLOCKS if connection.get_server_version().major >= 14 else 2**31
    blocks = await connection.fetchval(
        "SELECT pg_relation_size($1::regclass) / current_setting('block_size')::int", quoted(name)
    )
    state = "4::smallint" if ENDED.day(name) is not None else "state"
    upto = min(block + step, 2**32 - 1)
    numbers = await connection.fetch(
        f"SELECT function, {state}, priority, count(*) FROM {quoted(name)}"  # noqa: S608 - a name of ours
        f" WHERE ctid >= '({block},0)' AND ctid < '({upto},0)' GROUP BY 1, 2, 3"
    )
    await connection.execute(SQL["count_off"], *_columns(numbers))
    if upto >= blocks:
        await connection.execute(f"DROP TABLE {quoted(name)}")
        await connection.execute("DELETE FROM retired WHERE name = $1", name)
    else:
        await connection.execute("UPDATE retired SET block = $2 WHERE name = $1", name, upto)


def _columns(records: Iterable[Record]) -> list[list[int]]:
    columns: list[list[int]] = [[], [], [], []]
    for record in records:
        for column, value in zip(columns, record, strict=True):
            column.append(value)
    return columns
