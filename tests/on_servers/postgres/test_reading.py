"""Queries have a connection of their own."""

from __future__ import annotations

import asyncio

from mainspring.engines.postgres.connection import SETTINGS
from mainspring.errors import StoreUnavailableError
from mainspring.jobs import store as ops
from mainspring.queries.jobs import ListJobs
from mainspring.testing.conformance.paging import answer

from .a_fleet import node, session
from .test_jobs_plans import plan


def test_a_read_waits_for_no_group_that_waits_for_a_lock(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            first, second = one.job(), one.job()
            await one.group(ops.Submit([first]))
            await other.execute("BEGIN; LOCK TABLE jobs IN SHARE MODE")
            group = one.begin(ops.Submit([second]))
            found = await answer(one.engine, ListJobs())
            assert [job.id for job in found.items] == [first.id]
            assert not group.done()
            await other.execute("ROLLBACK")
            await group
            found = await answer(one.engine, ListJobs())
            assert [job.id for job in found.items] == [second.id, first.id]

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_connection_that_was_lost_is_made_again(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await answer(one.engine, ListJobs())
            await other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE '% reads'"
            )
            for _ in range(3):  # the end of the connection may be noticed by a read alone
                try:
                    found = await answer(one.engine, ListJobs())
                    break
                except StoreUnavailableError:
                    continue
            assert found.items == []

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_search_of_all_tables_takes_the_newest_of_each(database: str) -> None:
    """Of whole tables PostgreSQL would sort everything, once they are large."""

    async def test() -> None:
        async with node(database), session(database, **SETTINGS) as other:
            steps = await plan(other, "mark_all")
            assert [step["Node Type"] for step in steps].count("Limit") == 4

    asyncio.run(asyncio.wait_for(test(), 60))
