"""Deadlines on PostgreSQL, where nodes ring side by side, and beside transactions that end jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.conformance.suite.paging import everything

from mainspring.deadlines.store import FindDeadlines, Item, RingDeadlines
from mainspring.engines.postgres.transaction import SQL
from mainspring.errors import StoreFencedError
from mainspring.event_log import types
from mainspring.event_log.interests import Interest
from mainspring.event_log.store import Event, ListEvents, NumberEvents, SaveInterests, StoredInterest
from mainspring.jobs import store as ops
from mainspring.jobs.lateness import Kind
from mainspring.jobs.model import Options, encode_options

from .a_fleet import NOW, node, session

if TYPE_CHECKING:
    from .a_fleet import Node

END_BY = NOW + 5_000_000
DATED = Options(deadline_us=END_BY)


async def want(*nodes: Node) -> None:
    interest = Interest(types.JOBS | {types.OVERDUE})
    await nodes[0].group(SaveInterests(now_us=NOW, saved=[StoredInterest("all", interest)]))
    for other in nodes[1:]:
        other.engine.interests.use(nodes[0].engine.interests.now)


async def recorded(one: Node) -> list[Event]:
    await one.group(NumberEvents())
    return await everything(one.engine, ListEvents(limit=10_000))


def test_two_nodes_ring_the_same_deadlines_once(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two:
            await want(one, two)
            jobs = await one.submitted(200, options=DATED)
            items = [Item(job.id, Kind.END) for job in jobs]
            while items:
                await asyncio.gather(*(each.group(RingDeadlines(items, END_BY)) for each in (one, two)))
                (found,) = await one.group(FindDeadlines(END_BY))
                items = [item for item, _ in found.due]
            assert sorted(event.job for event in await recorded(one)) == [job.id for job in jobs]

    asyncio.run(test())


def test_a_job_that_ends_meanwhile_is_left_for_later(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await want(one)
            first, second = await one.submitted(2, options=DATED)
            items = [Item(first.id, Kind.END), Item(second.id, Kind.END)]
            async with other.transaction():
                await other.execute("DELETE FROM jobs WHERE id = $1", first.id)
                assert await one.group(RingDeadlines(items, END_BY)) == [[items[0]]]
                (found,) = await one.group(FindDeadlines(END_BY))
                assert [item for item, _ in found.due] == items[:1]
            assert await one.group(RingDeadlines(items, END_BY)) == [[]]
            assert [event.job for event in await recorded(one)] == [second.id]

    asyncio.run(test())


def test_an_end_comes_behind_the_event_of_the_lateness(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two:
            await want(one, two)
            await one.submitted(50, options=DATED)
            ((jobs,),) = await one.group(one.claim(50))
            items = [Item(job.id, Kind.END) for job in jobs]
            await asyncio.gather(one.group(one.settle(*jobs)), two.group(RingDeadlines(items, END_BY)))
            await two.group(RingDeadlines(items, END_BY))
            places: dict[int, list[str]] = {}
            for event in await recorded(one):
                places.setdefault(event.job, []).append(event.type)
            ends, late = [types.SUCCEEDED], [types.OVERDUE, types.SUCCEEDED]
            assert len(places) == 50
            assert all(found in (ends, late) for found in places.values())

    asyncio.run(test())


def test_a_group_that_is_refused_leaves_no_deadlines(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await one.submitted()
            await other.execute("UPDATE terms SET ended = true WHERE term = $1", one.term)
            with pytest.raises(StoreFencedError):
                await one.group(one.submit(one.job(options=DATED)))
            assert await other.fetchval("SELECT count(*) FROM deadlines") == 0

    asyncio.run(test())


def test_due_rows_are_read_by_their_index(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            for _ in range(20):
                await one.submitted(1000, options=DATED)
            await other.execute("ANALYZE deadlines")
            plans = {
                "due_deadlines": (NOW, 1000),
                "next_deadline": (NOW, 0, 0, ""),
                "take_deadlines": ([1, 2, 3], NOW),
                "remove_deadlines": ([1, 2, 3], [1, 1, 1]),
                "lock_late_jobs": ([1, 2, 3],),
            }
            for name, values in plans.items():
                await other.execute("SET plan_cache_mode = force_generic_plan")
                statement = await other.prepare(f"EXPLAIN {SQL[name]}")
                plan = "\n".join(row[0] for row in await statement.fetch(*values))
                assert "Seq Scan" not in plan, (name, plan)

    asyncio.run(test())


def test_a_submission_of_a_transaction_has_its_times_from_its_due_time_on(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            options = encode_options(Options(deadline=60.0))
            insert = "INSERT INTO inbox (function, payload, options) VALUES ('f', 'p', $1) RETURNING id"
            job_id = await other.fetchval(insert, options)
            await one.group(ops.DrainInbox(10))
            (job,) = (await one.find(job_id)).values()
            assert job.options == Options(deadline_us=job.created_us + 60_000_000)
            (found,) = await one.group(FindDeadlines(2**62))
            assert found.due == [(Item(job_id, Kind.END), job.created_us + 60_000_000)]

    asyncio.run(test())
