"""Nodes of versions that know no workflows share a store until the first workflow is registered, and never afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from mainspring.jobs.model import Job, State
from mainspring.workflows.model import Definition, Key
from mainspring.workflows.store import BeginRuns, Begun, PauseRun, SaveDefinitions, Start

from .a_fleet import eventually, node, session

if TYPE_CHECKING:
    from .a_fleet import Node

OLD = 'INSERT INTO nodes (term, counter, about) VALUES (99, 0, \'{"name": "old"}\')'
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
NEEDED = "SELECT compatible_from FROM migrations WHERE number = 24"


def save(one: Node) -> asyncio.Future[list[Any]]:
    return one.begin(SaveDefinitions([Definition("order")], 1))


async def names(saved: asyncio.Future[list[Any]]) -> list[str]:
    (definitions,) = await saved
    return [definition.name for definition in definitions]


def test_no_workflow_is_stored_beside_an_older_node_and_none_begins_a_term_afterwards(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await other.execute(OLD)
            assert await names(save(one)) == []
            assert await other.fetchval(NEEDED) == 22
            await other.execute("DELETE FROM nodes WHERE term = 99")
            assert await names(save(one)) == ["order"]
            assert await other.fetchval(NEEDED) == 24
            with pytest.raises(asyncpg.RaiseError, match="install the version of the other nodes"):
                await other.execute(OLD)
            async with node(database, "n2"):
                pass

    asyncio.run(test())


def test_an_older_node_that_begins_at_the_same_time_counts(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other, session(database) as third:

            async def waits() -> bool:
                return bool(await third.fetchval(WAITING))

            await other.execute("BEGIN")
            await other.execute(OLD)
            saved = save(one)
            await eventually(waits, "the group waits for the older node")
            await other.execute("COMMIT")
            assert await names(saved) == []

            await other.execute("DELETE FROM nodes WHERE term = 99")
            await other.execute(
                "BEGIN; SELECT FROM migrations WHERE number = 24 FOR UPDATE;"
                " UPDATE migrations SET compatible_from = 24 WHERE number = 24"
            )
            async with session(database) as old:
                begun = asyncio.ensure_future(old.execute(OLD))
                await eventually(waits, "the older node waits for the group")
                await other.execute("COMMIT")
                with pytest.raises(asyncpg.RaiseError):
                    await begun

    asyncio.run(test())


def test_no_run_is_paused_beside_a_node_that_knows_no_pauses_and_none_begins_a_term_afterwards(database: str) -> None:
    older = 'INSERT INTO nodes (term, counter, about) VALUES (99, 0, \'{"name": "old", "runs": true}\')'
    needed = "SELECT compatible_from FROM migrations WHERE number = 41"

    async def test() -> None:
        async with node(database) as one, session(database) as other:
            assert await names(save(one)) == ["order"]
            job = Job(one.new_id(), b"order", b"[]", state=State.PENDING, created_us=1)
            assert await one.begin(BeginRuns([Start(job)], 1)) == [Begun({}, {})]
            pausing = PauseRun(Key(job=job.id), 2)
            await other.execute(older)
            assert (await one.begin(pausing))[0].verdict == "older"
            assert await other.fetchval(needed) == 22
            await other.execute("DELETE FROM nodes WHERE term = 99")
            assert (await one.begin(PauseRun(Key(job=job.id), 2)))[0].verdict == "recorded"
            assert await other.fetchval(needed) == 41
            with pytest.raises(asyncpg.RaiseError, match="the store has paused runs"):
                await other.execute(older)
            async with node(database, "n2"):
                pass

    asyncio.run(test())
