"""Partitions of closed runs and histories: dropped with the bytes of forgotten runs, while those of other runs are kept."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import asyncpg

from mainspring.engines.postgres import partitions
from mainspring.engines.postgres.partitions import DAY_US, HISTORY, RUNS, Histories
from mainspring.workflows.store import ForgetRuns

from .a_fleet import eventually, node, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest
    from asyncpg import Connection, Record

OLD = 19_000 // 7 * 7
"""The first day of a week long ago."""
NEXT = OLD + 7
END_US = NEXT * DAY_US
AFTER = END_US + partitions.MARGIN_US
"""The time from which the week is over."""
BLOCKS = 3
"""Blocks of each run."""


async def add_runs(other: Connection[Record], first: int, last: int, *, closed_us: int = 0) -> None:
    """Add runs with blocks of the old week."""
    await other.execute(
        """INSERT INTO runs (id, root, started_us, closed_us, events, history_bytes, input_size, output_size, decision, slot,
            status, namespace, workflow_id, type, version, builds)
        SELECT i, i, $4, $3::bigint, 3, 3, 0, 0, 0, 0, CASE $3::bigint WHEN 0 THEN 0 ELSE 1 END, 'default', 'w' || i, 't', '1', ''
        FROM generate_series($1::bigint, $2::bigint) AS i""",
        first,
        last,
        closed_us,
        OLD * DAY_US,
    )
    await other.execute(
        f"""INSERT INTO history SELECT i, f, $3, (i || ':' || f)::bytea
        FROM generate_series($1::bigint, $2::bigint) AS i CROSS JOIN generate_series(1, {BLOCKS}) AS f""",
        first,
        last,
        OLD * DAY_US + 5,
    )


async def attach(other: Connection[Record]) -> None:
    for kind in (RUNS, HISTORY):
        await partitions.attach(other, kind, OLD)


async def whole(other: Connection[Record]) -> set[int]:
    """Return the runs that have a history, and check that each of those is whole."""
    histories: dict[int, list[bytes]] = {}
    for run, block in await other.fetch("SELECT run, block FROM history ORDER BY run, first"):
        histories.setdefault(run, []).append(block)
    for run, blocks in histories.items():
        assert blocks == [b"%d:%d" % (run, first) for first in range(1, BLOCKS + 1)]
    return set(histories)


async def names(other: Connection[Record]) -> set[str]:
    return await partitions._names(other)  # noqa: SLF001 - what is there, as the module sees it


async def retire(other: Connection[Record], before_us: int = AFTER) -> None:
    histories = Histories()
    for _ in range(1000):
        if not await histories.retire(other, before_us, budget=0.05):
            return
    raise AssertionError("it never ends")


def test_the_histories_of_other_runs_are_kept_when_a_partition_is_dropped(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "RUNS_PER_STEP", 7)
    monkeypatch.setattr(partitions, "BLOCKS_PER_STEP", 4)

    async def test() -> None:
        async with node(database), session(database) as other:
            await attach(other)
            await add_runs(other, 1, 40)
            await add_runs(other, 41, 60, closed_us=END_US + 5)
            await add_runs(other, 61, 99, closed_us=OLD * DAY_US + 7)
            await other.execute("DELETE FROM runs WHERE id > 60")
            assert await whole(other) == set(range(1, 100))
            await retire(other, AFTER - 1)
            assert HISTORY.name(OLD) in await names(other), "not before its time"
            await retire(other)
            assert not {HISTORY.name(OLD), RUNS.name(OLD)} & await names(other)
            assert await whole(other) == set(range(1, 61))
            kept = await other.fetchval("SELECT count(*) FROM history_kept")
            assert kept == 60 * BLOCKS

    asyncio.run(test())


def test_a_partition_with_closed_runs_stays(database: str) -> None:
    async def test() -> None:
        async with node(database), session(database) as other:
            await attach(other)
            await add_runs(other, 1, 1, closed_us=OLD * DAY_US)  # for example, one that this version cannot read
            await retire(other)
            assert RUNS.name(OLD) in await names(other)
            assert await whole(other) == {1}

    asyncio.run(test())


def test_a_clock_that_is_ahead_drops_nothing_of_the_present(database: str) -> None:
    async def test() -> None:
        async with node(database), session(database) as other:
            before = await names(other)
            await other.execute("INSERT INTO history SELECT 1, 1, (extract(epoch FROM now()) * 1000000)::bigint, '1:1'")
            await retire(other, 2**62)
            assert await names(other) == before
            assert await other.fetchval("SELECT count(*) FROM history") == 1

    asyncio.run(test())


class Dying:
    """A connection whose session is lost in place of a statement."""

    def __init__(self, connection: Connection[Record], after: int) -> None:
        self._connection = connection
        self.left = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._connection, name)
        if name not in {"execute", "fetch", "fetchrow", "fetchval"}:
            return found

        async def run(*arguments: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                self._connection.terminate()
                raise asyncpg.ConnectionDoesNotExistError
            return await found(*arguments)

        return run


@contextlib.asynccontextmanager
async def dying(database: str, after: int) -> AsyncIterator[Any]:
    async with session(database) as connection:
        yield Dying(connection, after)


def test_a_node_that_dies_between_any_two_statements_loses_nothing(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "RUNS_PER_STEP", 2)
    monkeypatch.setattr(partitions, "BLOCKS_PER_STEP", 2)

    async def test() -> None:
        async with node(database), session(database) as other:
            deaths = 0
            while True:
                await attach(other)
                await add_runs(other, 1, 3)
                await add_runs(other, 4, 5, closed_us=END_US + 5)
                async with dying(database, deaths) as connection:
                    with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError):
                        await retire(connection)
                        break
                assert await whole(other) == {1, 2, 3, 4, 5}
                await retire(other)
                assert await whole(other) == {1, 2, 3, 4, 5}
                await other.execute("DELETE FROM history; DELETE FROM runs")
                deaths += 1
            assert deaths > 20

    asyncio.run(test())


def test_readers_find_whole_histories_while_blocks_move(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "BLOCKS_PER_STEP", 2)

    async def test() -> None:
        async with node(database), session(database) as other, session(database) as reader:
            await attach(other)
            await add_runs(other, 1, 20)
            moving = asyncio.ensure_future(retire(other))
            while not moving.done():
                assert await whole(reader) == set(range(1, 21))
            await moving

    asyncio.run(test())


def test_a_run_is_not_forgotten_while_its_blocks_move(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other, session(database) as mover:
            await attach(other)
            await add_runs(other, 1, 2, closed_us=OLD * DAY_US)
            async with mover.transaction():
                assert await partitions.keep_blocks(mover, HISTORY.name(OLD), 0) == 2
                forgetting = one.begin(ForgetRuns(END_US, 100, namespace="default"))

                async def waits() -> bool:
                    return bool(await other.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))

                await eventually(waits, "the group waits")
            assert await forgetting == [2]
            assert await whole(other) == set(), "no block stays without its run"

    asyncio.run(test())


def test_blocks_do_not_move_while_runs_are_forgotten(database: str) -> None:
    async def test() -> None:
        async with node(database), session(database) as other, session(database) as group:
            await attach(other)
            await add_runs(other, 1, 2, closed_us=OLD * DAY_US)
            async with group.transaction():
                await group.execute("SELECT FROM locks WHERE number = -5 FOR UPDATE; DELETE FROM runs")
                assert await Histories().retire(other, AFTER), "it tries again later"
            await retire(other)
            assert await whole(other) == set()

    asyncio.run(test())


def test_a_deletion_of_runs_deletes_young_blocks_and_leaves_old_ones_to_their_partition(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await attach(other)
            await add_runs(other, 1, 1, closed_us=END_US)
            await other.execute(
                """INSERT INTO history VALUES (1, 4, 0, 'kept'), (1, 5, 1, 'other'),
                (1, 6, (extract(epoch FROM now()) * 1000000)::bigint, 'young')"""
            )
            assert await one.group(ForgetRuns(END_US + DAY_US, 100, namespace="default")) == [1]
            rows = await other.fetch("SELECT DISTINCT tableoid::regclass::text FROM history")
            assert [row[0] for row in rows] in ([], [HISTORY.name(OLD)])  # as the node drops it after the group

            async def is_dropped() -> bool:
                return not {HISTORY.name(OLD), RUNS.name(OLD)} & await names(other)

            await eventually(is_dropped, "the partitions are dropped")

    asyncio.run(test())


def test_a_reader_postpones_the_drop_and_blocks_no_group(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other, session(database) as reader:
            await attach(other)
            await add_runs(other, 1, 2)
            await reader.execute("BEGIN; SELECT count(*) FROM history")
            retiring = asyncio.ensure_future(retire(other))
            for _ in range(10):
                await one.group(ForgetRuns(0, 100, namespace="default"))
            await retiring
            assert HISTORY.name(OLD) in await names(other)
            await reader.execute("COMMIT")
            await retire(other)
            assert HISTORY.name(OLD) not in await names(other)
            assert await whole(other) == {1, 2}

    asyncio.run(test())
