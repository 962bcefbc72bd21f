"""Partitions of ended jobs: created ahead, filled by the time of the end, detached, counted and dropped whole."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from mainspring.engines.postgres import partitions
from mainspring.engines.postgres.partitions import DAY_US, DEAD, ENDED, HISTORY, RUNS, Kind, Retired, TagSweep
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State
from mainspring.jobs.rules import Event, Settlement

from .a_fleet import Node, eventually, node, session

if TYPE_CHECKING:
    import asyncpg

    from mainspring.jobs.model import Job

OLD = 19_000 // 7 * 7
"""A day long ago, the first of a week."""


def sweep(ended_before_us: int, dead_before_us: int) -> ops.Sweep:
    return ops.Sweep(ended_before_us, dead_before_us)


async def end(one: Node, event: Event, at_us: int, number: int = 1) -> list[Job]:
    jobs = await one.submitted(number, state=State.LEASED)
    settle = ops.Settle([Settlement(job, event, 1, ended_us=at_us) for job in jobs])
    assert await one.group(settle) == [set()]
    return jobs


async def places(other: asyncpg.Connection[asyncpg.Record], table: str) -> dict[str, int]:
    rows = await other.fetch(f"SELECT tableoid::regclass::text AS name, count(*) FROM {table} GROUP BY 1")
    return {row["name"]: row["count"] for row in rows}


@pytest.mark.parametrize("kind", [ENDED, DEAD, RUNS, HISTORY])
def test_names_and_days_convert_into_each_other(kind: Kind) -> None:
    for day in range(0, 40_000, 997):
        first = kind.begins(day * DAY_US + 5)
        assert first <= day < first + kind.days
        assert kind.day(kind.name(first)) == first
    assert kind.day(f"{kind.table}_other") is None


def test_a_job_that_ends_now_is_in_the_partition_of_its_time(database: str) -> None:
    async def test() -> None:
        now_us = round(time.time() * 1_000_000)
        async with node(database) as one, session(database) as other:
            await end(one, Event.SUCCEED, now_us)
            await end(one, Event.SUCCEED, now_us + DAY_US)
            await end(one, Event.SUCCEED, 5)
            await end(one, Event.FAIL, now_us)
            await end(one, Event.CANCEL, 5)
            days = [ENDED.name(ENDED.begins(now_us + ahead * DAY_US)) for ahead in range(2)]
            assert await places(other, "ended") == {days[0]: 1, days[1]: 1, "ended_other": 1}
            assert await places(other, "dead") == {DEAD.name(DEAD.begins(now_us)): 1, "dead_other": 1}

    asyncio.run(test())


def test_a_new_partition_takes_over_the_jobs_of_its_time(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            (job,) = await end(one, Event.SUCCEED, OLD * DAY_US + 5)
            (later,) = await end(one, Event.SUCCEED, (OLD + 1) * DAY_US)
            for _ in range(2):
                await partitions.attach(other, ENDED, OLD)
            assert await places(other, "ended") == {ENDED.name(OLD): 1, "ended_other": 1}
            assert await one.states(job, later) == [State.SUCCEEDED, State.SUCCEEDED]

    asyncio.run(test())


def test_concurrent_nodes_create_each_partition_once(database: str) -> None:
    async def test() -> None:
        async with node(database), session(database) as first, session(database) as second:
            for day in range(OLD, OLD + 5):
                await asyncio.gather(*(partitions.attach(each, ENDED, day) for each in (first, second)))
            names = await partitions._names(first)  # noqa: SLF001 - what is there, as the module sees it
            assert {ENDED.name(day) for day in range(OLD, OLD + 5)} <= names

    asyncio.run(test())


def test_old_partitions_are_forgotten_counted_and_dropped(database: str) -> None:
    async def test() -> None:
        async with node(database, fold=0.05) as one, session(database) as other:
            for day in (OLD, OLD + 1):
                await partitions.attach(other, ENDED, day)
            await partitions.attach(other, DEAD, OLD)
            old = await end(one, Event.SUCCEED, OLD * DAY_US, 5)
            failed = await end(one, Event.FAIL, OLD * DAY_US, 3)
            young = await end(one, Event.SUCCEED, (OLD + 1) * DAY_US, 2)
            # One that is live again, and has ended anew since.
            ended_again = await end(one, Event.FAIL, OLD * DAY_US)
            await one.group(ops.Redrive(ended_again[0].id))

            await one.group(sweep((OLD + 1) * DAY_US, OLD * DAY_US))
            await eventually(lambda: _gone(other, ENDED.name(OLD)), "the partition is dropped")
            assert await one.states(*old) == [None] * 5
            assert await one.states(*young) == [State.SUCCEEDED] * 2
            assert await one.states(*failed) == [State.FAILED] * 3
            assert await one.counts() == {(b"f", 1, 1): 1, (b"f", 4, 1): 2, (b"f", 5, 1): 3}

            await one.group(sweep((OLD + 1) * DAY_US, (OLD + 9) * DAY_US))
            await one.group(sweep((OLD + 9) * DAY_US, (OLD + 9) * DAY_US))
            await eventually(lambda: _gone(other, DEAD.name(OLD)), "the week is dropped")
            await eventually(lambda: _gone(other, ENDED.name(OLD + 1)), "the other day is dropped")
            assert await one.states(*failed, *young) == [None] * 5
            assert await one.counts() == {(b"f", 1, 1): 1}
            assert await other.fetchval("SELECT count(*) FROM retired") == 0

    asyncio.run(test())


async def _gone(other: asyncpg.Connection[asyncpg.Record], name: str) -> bool:
    rows = await other.fetch("SELECT FROM pg_class WHERE relname = $1 AND relkind = 'r'", name)
    return not rows


def test_cancelled_jobs_are_deleted_before_failed_ones(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await partitions.attach(other, DEAD, OLD)
            jobs = [(await end(one, event, OLD * DAY_US))[0] for event in (Event.FAIL, Event.CANCEL, Event.EXPIRE)]
            assert await one.group(sweep((OLD + 1) * DAY_US, OLD * DAY_US)) == [2]
            assert await one.states(*jobs) == [State.FAILED, None, None]

    asyncio.run(test())


def test_a_partition_is_counted_piece_by_piece(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "BLOCKS_PER_COUNT", 1)

    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await partitions.attach(other, ENDED, OLD)
            await end(one, Event.SUCCEED, OLD * DAY_US, 500)
            memory = Retired()
            pieces = 0
            assert await partitions.detach(other, ENDED, ENDED.name(OLD))
            assert await partitions.detach(other, ENDED, ENDED.name(OLD)), (
                "a partition that another node has detached counts as detached"
            )
            while await partitions.drop_retired(other, budget=0):
                pieces += 1
                assert pieces < 100
            assert pieces > 2
            assert await one.counts() == {}
            await partitions.retire(other, (OLD + 1, OLD + 1), memory)
            assert not memory.left

    asyncio.run(test())


def test_a_reader_of_ended_jobs_postpones_the_drop_and_blocks_no_group(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other, session(database) as reader:
            await partitions.attach(other, ENDED, OLD)
            (job,) = await end(one, Event.SUCCEED, OLD * DAY_US)
            await reader.execute("BEGIN; SELECT count(*) FROM ended")
            memory = Retired()
            retiring = asyncio.ensure_future(partitions.retire(other, (OLD + 1, OLD + 1), memory))
            ended = [await end(one, Event.SUCCEED, OLD * DAY_US) for _ in range(20)]
            await retiring
            assert memory.left, "it is left for the next time"
            assert await one.states(job, ended[-1][0]) == [State.SUCCEEDED] * 2
            await reader.execute("COMMIT")
            await partitions.retire(other, (OLD + 1, OLD + 1), memory)
            assert not memory.left
            assert await one.states(job) == [None]
            assert await one.counts() == {}

    asyncio.run(test())


def test_the_tags_of_dropped_jobs_are_deleted(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await partitions.attach(other, ENDED, OLD)
            tagged = Options(tags=("a", "b"))
            old = await one.submitted(3, state=State.LEASED, options=tagged)
            live = await one.submitted(1, options=tagged)
            dead = await one.submitted(1, state=State.LEASED, options=tagged)
            await one.group(ops.Settle([Settlement(job, Event.SUCCEED, 1, ended_us=OLD * DAY_US) for job in old]))
            await one.group(ops.Settle([Settlement(dead[0], Event.FAIL, 1, ended_us=OLD * DAY_US)]))
            sweep_of_tags = TagSweep()
            await sweep_of_tags.run(other)
            assert await other.fetchval("SELECT count(*) FROM tags") == 10
            await partitions.detach(other, ENDED, ENDED.name(OLD))
            for _ in range(2):  # no time: one statement
                await sweep_of_tags.run(other, budget=0.0)
            rows = await other.fetch("SELECT tag, job FROM tags ORDER BY 1, 2")
            kept = sorted(job.id for job in (*live, *dead))
            assert [tuple(row) for row in rows] == [(tag, job_id) for tag in "ab" for job_id in kept]
            await other.execute("INSERT INTO tags (namespace, tag, job, created_us) VALUES ('default', 'c', 1, 1)")
            await one.group(sweep(0, 0))  # as a node does from time to time

            async def is_gone() -> bool:
                return not await other.fetch("SELECT FROM tags WHERE tag = 'c'")

            await eventually(is_gone, "the sweep of tags")

    asyncio.run(test())
