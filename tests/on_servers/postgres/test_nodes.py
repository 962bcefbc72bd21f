from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import asyncpg
import pytest

from mainspring.engines.postgres import control
from mainspring.errors import StoreFencedError, StoreUnavailableError
from mainspring.events import Stop
from mainspring.jobs.model import State

from .a_fleet import eventually, node, session

if TYPE_CHECKING:
    from mainspring.nodes.model import MembershipPort

LOST = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.exceptions.InternalClientError, OSError)


def test_nodes_see_each_others_rows(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two:
            membership: MembershipPort = one.engine
            assert [(row.term, row.name, row.counter) for row in await membership.rows()] == [(1, "a", 0), (2, "b", 0)]
            mine = one.row(5, weight=3, functions=(b"\xff", b"g"), address="x:1", lease=7.5, started_us=9)
            assert await one.engine.beat(mine) == [mine, two.row(0)]
            assert await two.engine.beat(two.row(1)) == [mine, two.row(1)]
            await one.engine.beat(one.row(6))
            assert await two.engine.rows() == [one.row(6), two.row(1)]

    asyncio.run(test())


def test_a_node_that_leaves_during_a_group_breaks_it_off(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one:
            async with node(database, "b") as two:
                connection = two.engine._writer._connection  # noqa: SLF001 - one of its two connections is to be disturbed
                assert connection is not None
                await connection.execute(f"BEGIN; SELECT enter({two.term}, 1)")
            assert [row.name for row in await one.engine.rows()] == ["a"]

    asyncio.run(test())


def test_a_node_that_leaves_without_a_term_ends_none(database: str) -> None:
    async def test() -> None:
        async with node(database) as one:
            await one.engine.end(one.term)
            one.engine._writer.begin = away  # type: ignore[method-assign] # noqa: SLF001 - the server is to be away at this moment
            with pytest.raises(StoreUnavailableError):
                await one.open()
        async with session(database) as other:
            assert await other.fetchval("SELECT ended FROM terms WHERE term = 0") is False, "that of the inbox"

    async def away(term: int, open_timeout: float | None) -> None:
        raise StoreUnavailableError(f"{term} {open_timeout}")

    asyncio.run(test())


def test_a_node_that_is_to_drain_reads_that_in_its_row(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two:
            assert await two.engine.ask_to_drain(one.term)
            assert await one.engine.beat(one.row(1)) == [one.row(1, draining=True), two.row(0)]
            assert await two.engine.ask_to_drain(one.term, draining=False)
            assert await one.engine.beat(one.row(2)) == [one.row(2), two.row(0)]
            assert not await one.engine.ask_to_drain(99)

    asyncio.run(test())


def test_the_store_returns_its_time(database: str) -> None:
    async def test() -> None:
        async with node(database) as one:
            before = time.time()
            assert before <= await one.engine.now() + 0.001
            assert await one.engine.now() <= time.time() + 0.001

    asyncio.run(test())


def test_an_ended_term_commits_nothing_and_the_next_one_does(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two:
            (job,) = await one.submitted(state=State.LEASED)
            assert await two.engine.end(one.term)
            assert await two.engine.end(one.term), "it has ended, by the first or the second call"
            for _ in range(2):
                with pytest.raises(StoreFencedError):
                    await one.group(one.settle(job))
            with pytest.raises(StoreFencedError):
                await one.engine.beat(one.row(1))
            assert await one.states(job) == [State.LEASED], "a fenced node may still read"
            old = one.term
            await one.open()
            assert one.term > two.term > old
            assert [row.term for row in await one.engine.beat(one.row(1))] == [two.term, one.term]
            await one.submitted(2)
            await two.wait_for(bool)
            two.engine.send(one.term, Stop(1, "hello"))
            await one.wait_for(bool)

    asyncio.run(test())


def test_a_term_is_ended_only_if_its_counter_is_unchanged(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two:
            await one.engine.beat(one.row(5))
            assert not await two.engine.end(one.term, counter=4)
            await one.submitted()
            assert await two.engine.end(one.term, counter=5)
            assert not await two.engine.end(99), "there is no such term"
            with pytest.raises(StoreFencedError):
                await one.submitted()

    asyncio.run(test())


def test_the_end_of_a_term_waits_for_its_group(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two, session(database) as other:
            await other.execute("BEGIN; LOCK TABLE jobs IN EXCLUSIVE MODE")
            job = one.job(state=State.LEASED)
            group = one.begin(one.submit(job))
            await eventually(lambda: waiters(database), "the group waits for the table")
            ending = asyncio.ensure_future(two.engine.end(one.term))
            await asyncio.wait({ending}, timeout=0.2)
            assert not ending.done()
            await other.execute("COMMIT")
            assert await ending
            assert await group == [{}]
            assert await two.states(job) == [State.LEASED], "committed before the end, and visible after it"

    asyncio.run(test())


def test_a_frozen_group_is_broken_off(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two, session(database) as frozen:
            # The rows that a node leaves behind when it is stopped in the middle of a group.
            (_,) = await one.submitted()
            key = control.mark("mainspring", one.term)
            await one.engine._writer.close()  # noqa: SLF001 - one of its two connections is to end
            assert await frozen.fetchval("SELECT pg_try_advisory_lock($1::bigint::bit(32)::int, 7)", key)
            await frozen.execute(f"BEGIN; SELECT enter({one.term}, 2); SAVEPOINT s")
            began = time.monotonic()
            assert await two.engine.end(one.term)
            assert time.monotonic() - began < 4.5
            with pytest.raises(LOST):
                await frozen.execute("COMMIT")
            with pytest.raises(StoreFencedError):
                await one.submitted()

    asyncio.run(test())


def test_a_new_connection_breaks_the_old_session_off(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as lost:
            # A session of the node's that the server still has, although its connection is gone.
            one.engine._writer.give_up()  # noqa: SLF001 - one of its two connections is to end
            key = control.mark("mainspring", one.term)
            await lost.execute("SELECT pg_advisory_lock($1::bigint::bit(32)::int, 7)", key)
            await lost.execute(f"BEGIN; SELECT enter({one.term}, 1)")
            await asyncio.wait_for(one.submitted(), 4)
            with pytest.raises(LOST):
                await lost.execute("COMMIT")

    asyncio.run(test())


def test_heartbeats_do_not_wait_for_groups(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, session(database) as other:
            await other.execute("BEGIN; LOCK TABLE jobs, journal IN EXCLUSIVE MODE")
            group = one.begin(one.submit(one.job()))
            for counter in range(1, 6):
                await asyncio.wait_for(one.engine.beat(one.row(counter)), 1)
            assert not group.done()
            await other.execute("COMMIT")
            await group

    asyncio.run(test())


async def waiters(database: str) -> int:
    """Return how many sessions wait for a lock."""
    async with session(database) as other:
        number: int = await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return number
