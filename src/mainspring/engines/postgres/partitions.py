"""Ended jobs, closed runs and histories, in partitions by time, which are created ahead and dropped whole.

A partition of jobs is dropped in steps, so that no group waits for it. First it is detached, which locks the table for a moment,
or is postponed if the lock is not free. Then its jobs are subtracted from the counts, a piece at a time. Then it is dropped. Its
jobs are forgotten with the first step, except root jobs: the schema moves them to a partition of their own for the same time
(`keep_roots`), which is dropped once their runs are forgotten. Nothing names the tags of forgotten jobs then, so `TagSweep`
looks for them.

`ForgetRuns` deletes the rows of old runs. The blocks of their histories, which have nearly all of the bytes, go with the
partition of the time at which they were written. Before it is dropped, the blocks of runs that are still there move to the
partition ``history_kept``, some at a time: each is always in one of the two. So a run can be read at any time, and a crash
between two steps loses nothing.
"""

from __future__ import annotations

import contextlib
import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import asyncpg

from mainspring.engines.postgres.migrate import quoted
from mainspring.engines.postgres.transaction import JOBS_SQL, SQL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncpg import Connection, Record

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs import store as ops

DAY_US: Final = 86_400_000_000
LOCK_TIMEOUT: Final = "200ms"
"""The longest that groups may wait behind the lock that attaches or detaches a partition."""
LOCK_ATTEMPTS: Final = 3
BLOCKS_PER_COUNT: Final = 2000
"""Blocks of a retired partition that one transaction counts."""
COUNT_BUDGET: Final = 0.5
"""Seconds after which counting releases the connection for other work."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Kind(NamedTuple):
    """A partitioned table."""

    table: str
    column: str
    """The time of a row, in microseconds."""
    days: int
    """Days in one partition."""
    ahead: int
    """Partitions that are created before their time."""

    def begins(self, at_us: int) -> int:
        """Return the first day, since 1970, of the partition for a time."""
        return at_us // DAY_US // self.days * self.days

    def name(self, day: int) -> str:
        """Return the name of the partition that begins with a day."""
        return f"{self.table}_{_EPOCH + timedelta(days=day):%Y%m%d}"

    def day(self, name: str) -> int | None:
        """Return the first day of a partition by its name; None for other tables."""
        match = re.fullmatch(rf"{self.table}_(\d{{8}})", name)
        return None if match is None else (datetime.strptime(match[1], "%Y%m%d").replace(tzinfo=UTC) - _EPOCH).days

    def over(self, names: Iterable[str], day: int) -> list[str]:
        """Return the partitions that end by a day, from the oldest on."""
        return sorted(name for name in names if (first := self.day(name)) is not None and first + self.days <= day)

    def roots(self, names: Iterable[str]) -> list[str]:
        """Return the partitions in which the schema has put the root jobs of detached ones."""
        return sorted(name for name in names if re.fullmatch(rf"{self.table}_roots_\d{{8}}", name))


ENDED: Final = Kind("ended", "ended_us", 1, 2)
DEAD: Final = Kind("dead", "ended_us", 7, 1)
# A run is looked up by its id, in all partitions: with one for each day, 100 histories take more than twice the time.
RUNS: Final = Kind("runs", "closed_us", 7, 1)
HISTORY: Final = Kind("history", "written_us", 7, 1)
_LOCKED = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)


async def maintain(connection: Connection[Record]) -> None:
    """Create the partitions for today and the next days. A partition whose lock is not free is left for the next time."""
    now_us = await connection.fetchval(JOBS_SQL["now"])
    existing = await _names(connection)
    for kind in (ENDED, DEAD, RUNS, HISTORY):
        first = kind.begins(now_us)
        for day in range(first, first + (kind.ahead + 1) * kind.days, kind.days):
            if kind.name(day) not in existing:
                await attach(connection, kind, day)


async def _names(connection: Connection[Record]) -> set[str]:
    return {row[0] for row in await connection.fetch(JOBS_SQL["partitions"])}


async def attach(connection: Connection[Record], kind: Kind, day: int) -> None:
    """Create a partition, and move its rows from the partition for all other times into it."""
    name, table = quoted(kind.name(day)), kind.table
    lower, upper = day * DAY_US, (day + kind.days) * DAY_US
    for _ in range(LOCK_ATTEMPTS):
        try:
            async with connection.transaction():
                await connection.execute(
                    f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}';"
                    # in the order in which groups lock them; no other node creates partitions now
                    f"LOCK TABLE ONLY {table} IN SHARE UPDATE EXCLUSIVE MODE;"
                    f"LOCK TABLE {table}_other IN ACCESS EXCLUSIVE MODE"
                )
                if kind.name(day) in await _names(connection):
                    return
                await connection.execute(f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE)")
                of_its_time = f"{kind.column} >= $1 AND {kind.column} < $2"
                move = f"DELETE FROM {table}_other WHERE {of_its_time} RETURNING *"  # noqa: S608 - internal names
                await connection.execute(
                    f"WITH moved AS ({move}) INSERT INTO {name} SELECT * FROM moved",  # noqa: S608 - internal names
                    lower,
                    upper,
                )
                await connection.execute(
                    f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({lower}) TO ({upper})"
                )
                return
        except _LOCKED:
            continue


# ---- retention ----


class Retired:
    """One engine's progress with old partitions."""

    def __init__(self) -> None:
        self.days: tuple[int, int] | None = None
        """The days up to which the partitions of ended and dead jobs are detached."""
        self.left = False
        """Whether detached partitions remain to be counted."""


async def sweep(tx: Transaction, operations: Sequence[ops.Sweep]) -> list[int]:
    """Forget ended jobs; see ``Sweep``. Partitions are dropped after the commit; the outcome does not count them."""
    return [await _sweep(tx, operation) for operation in operations]


async def _sweep(tx: Transaction, operation: ops.Sweep) -> int:
    ended_us, dead_us = _bounded(operation.ended_before_us), _bounded(operation.dead_before_us)
    gone = await tx.connection.fetch(JOBS_SQL["sweep"], ended_us, dead_us, operation.rows)
    for function, state, priority, number in gone:
        tx.count(function, state, priority, -number)
    # Cancelled and expired jobs share partitions with failed ones: a partition is dropped when both retentions are over.
    days = ended_us // DAY_US, min(ended_us, dead_us) // DAY_US
    memory = tx.memory(Retired)
    if memory.days != days or memory.left:
        tx.later(lambda connection: retire(connection, days, memory))
    tx.later(tx.memory(TagSweep).run)
    return sum(row[3] for row in gone)


def _bounded(time_us: int) -> int:
    return max(-(2**62), min(time_us, 2**62))


async def retire(connection: Connection[Record], days: tuple[int, int], memory: Retired) -> None:
    """Detach the partitions that end by some days, and count and drop detached ones until the budget is spent.

    A partition that another session has locked is left for the next time.
    """
    locked = False
    existing = await _names(connection)
    for kind, before in zip((ENDED, DEAD), days, strict=True):
        for name in kind.over(existing, before):
            locked |= not await detach(connection, kind, name)
        for name in kind.roots(existing):
            locked |= not await drop_empty(connection, kind, name)
    memory.left = await drop_retired(connection) or locked
    memory.days = days


async def detach(connection: Connection[Record], kind: Kind, name: str) -> bool:
    """Detach a partition, unless it is locked; return whether it is detached."""
    try:
        async with connection.transaction():
            await connection.execute(
                f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'; LOCK TABLE ONLY {kind.table} IN ACCESS EXCLUSIVE MODE"
            )
            if name in await _names(connection):
                await connection.execute(f"ALTER TABLE {kind.table} DETACH PARTITION {quoted(name)}")
                await connection.execute("INSERT INTO retired (name) VALUES ($1)", name)
    except _LOCKED:
        return False
    return True


async def drop_empty(connection: Connection[Record], kind: Kind, name: str) -> bool:
    """Drop a partition that has no rows left, unless it is locked; return whether it was not locked."""
    is_left = f"SELECT EXISTS (SELECT FROM {quoted(name)})"  # noqa: S608 - an internal name
    try:
        if await connection.fetchval(is_left):
            return True
        async with connection.transaction():
            await connection.execute(
                f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'; LOCK TABLE ONLY {kind.table} IN ACCESS EXCLUSIVE MODE"
            )
            if not await connection.fetchval(is_left):
                await connection.execute(f"DROP TABLE {quoted(name)}")
    except asyncpg.UndefinedTableError:  # another node has dropped it
        return True
    except _LOCKED:
        return False
    return True


async def drop_retired(connection: Connection[Record], budget: float = COUNT_BUDGET) -> bool:
    """Subtract detached partitions from the counts and drop them; return whether any is left after ``budget`` seconds."""
    until = time.monotonic() + budget
    while True:
        async with connection.transaction():
            found = await connection.fetchrow(JOBS_SQL["retired"])
            if found is None:
                return False
            await _count_blocks(connection, found["name"], found["block"])
        if time.monotonic() >= until:
            return True


async def _count_blocks(connection: Connection[Record], name: str, block: int) -> None:
    # Before version 14, PostgreSQL reads the whole table for a range of blocks.
    step = BLOCKS_PER_COUNT if connection.get_server_version().major >= 14 else 2**31
    blocks = await connection.fetchval(
        "SELECT pg_relation_size($1::regclass) / current_setting('block_size')::int", quoted(name)
    )
    state = "4::smallint" if ENDED.day(name) is not None else "state"
    upto = min(block + step, 2**32 - 1)
    numbers = await connection.fetch(
        f"SELECT function, {state}, priority, count(*) FROM {quoted(name)}"  # noqa: S608 - an internal name
        f" WHERE ctid >= '({block},0)' AND ctid < '({upto},0)' GROUP BY 1, 2, 3"
    )
    await connection.execute(JOBS_SQL["count_off"], *_columns(numbers))
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


# ---- runs ----

RUNS_PER_STEP: Final = 2000
"""Runs whose old blocks one transaction looks for."""
BLOCKS_PER_STEP: Final = 200
"""Blocks that one transaction moves."""
KEEP_BUDGET: Final = 0.3
"""Seconds after which the search for blocks releases the connection for other work."""
MARGIN_US: Final = DAY_US
"""Old runs are deleted some at a time. Until the partition with the last of their blocks is dropped, most of those are gone."""
ROUND_PAUSE: Final = 60.0
"""Seconds between the last step of one look for old partitions and the first step of another."""


class Histories:
    """One engine's progress with old partitions of histories and closed runs."""

    def __init__(self) -> None:
        self._partition = ""
        self._after: int | None = 0
        """The last run whose blocks have moved out of ``_partition``; None if all have."""
        self._looked = -ROUND_PAUSE
        self._before_us = -1

    def look(self, tx: Transaction, before_us: int) -> None:
        """After the commit, drop the partitions in which all blocks and runs were old at a time."""
        if time.monotonic() - self._looked >= ROUND_PAUSE:
            tx.later(lambda connection: self._go_on(connection, before_us))

    async def _go_on(self, connection: Connection[Record], before_us: int) -> bool:
        """Work until the budget is spent; return whether to continue: not if another call for another time has begun since."""
        now = time.monotonic()
        if before_us != self._before_us and now - self._looked < ROUND_PAUSE:
            return False
        self._looked, self._before_us = now, before_us
        return await self.retire(connection, before_us)

    async def retire(self, connection: Connection[Record], before_us: int, budget: float = KEEP_BUDGET) -> bool:
        """Move blocks out of old partitions, and drop these; return whether anything is left after ``budget`` seconds.

        A partition that another session has locked is left for the next time.
        """
        until = time.monotonic() + budget
        # No transaction writes into a partition whose time is over by the server's own clock for so long.
        day = (min(before_us, await connection.fetchval(JOBS_SQL["now"])) - MARGIN_US) // DAY_US
        existing = await _names(connection)
        for name in HISTORY.over(existing, day):
            if name != self._partition:
                self._partition, self._after = name, 0
            try:
                while self._after is not None:
                    if time.monotonic() >= until:
                        return True
                    self._after = await keep_blocks(connection, name, self._after)
            except asyncpg.UndefinedTableError:  # another node has dropped it
                continue
            except _LOCKED:
                return True
            await drop(connection, HISTORY, name)
        for name in RUNS.over(existing, day):
            await drop_empty(connection, RUNS, name)
        return False


async def keep_blocks(connection: Connection[Record], name: str, after: int) -> int | None:
    """Move blocks of the next runs after one out of a partition; return the run to continue after, None at the end."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        await connection.execute(SQL["lock_forgetting"])  # a block of a run that is deleted now would stay for ever
        last, runs = await connection.fetchrow(SQL["next_runs"], after, RUNS_PER_STEP)  # type: ignore[misc]
        if last is None:
            return None
        first = f"SELECT ctid FROM {quoted(name)} WHERE run = ANY ($1::bigint[]) LIMIT {BLOCKS_PER_STEP}"  # noqa: S608
        move = f"DELETE FROM {quoted(name)} WHERE ctid = ANY (ARRAY({first})) RETURNING run, first, block"  # noqa: S608
        moved = await connection.execute(
            f"WITH moved AS ({move}) INSERT INTO history (run, first, written_us, block)"  # noqa: S608 - internal names
            " SELECT run, first, 0, block FROM moved",
            runs,
        )
    return after if moved == f"INSERT 0 {BLOCKS_PER_STEP}" else int(last)


async def drop(connection: Connection[Record], kind: Kind, name: str) -> None:
    """Drop a partition with its rows, unless it is locked."""
    with contextlib.suppress(*_LOCKED):
        async with connection.transaction():
            await connection.execute(
                f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'; LOCK TABLE ONLY {kind.table} IN ACCESS EXCLUSIVE MODE"
            )
            await connection.execute(f"DROP TABLE IF EXISTS {quoted(name)}")


# ---- tags ----

ROWS: Final = 1000
"""Rows that one statement examines."""
BUDGET: Final = 0.2
"""Seconds after which a sweep releases the connection for other work."""
_START: Final = ("", "", 0)


class TagSweep:
    """One engine's progress through the table of tags: each sweep continues where the last one ended."""

    def __init__(self) -> None:
        self._place: tuple[str, str, int] = _START

    async def run(self, connection: Connection[Record], budget: float = BUDGET) -> None:
        """Examine the next rows until the budget is spent, or the last row is reached."""
        until = time.monotonic() + budget
        while True:
            found = await connection.fetchrow(JOBS_SQL["sweep_tags"], *self._place, ROWS)
            if found is None:
                self._place = _START
                return
            self._place = tuple(found)
            if time.monotonic() >= until:
                return
