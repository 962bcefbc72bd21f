"""One transaction at a time numbers events on PostgreSQL, so that no reader misses one that was slow."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tests.conformance.suite.driver import done
from tests.conformance.suite.paging import answer, everything

from mainspring.engines.postgres.transaction import SQL
from mainspring.event_log import types
from mainspring.event_log.interests import Interest
from mainspring.event_log.store import Event, ListEvents, NumberEvents, SaveInterests, ShowLogEnds, StoredInterest
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State, encode_options
from mainspring.jobs.rules import Event as JobEvent
from mainspring.jobs.rules import Settlement
from mainspring.nodes import node_events
from mainspring.workflows.model import Definition
from mainspring.workflows.store import BeginWaiting, SaveDefinitions

from .a_fleet import NOW, eventually, node, session
from .test_inbox import insert, take

if TYPE_CHECKING:
    import asyncpg

    from mainspring.jobs.model import Job

    from .a_fleet import Node

SLOW = "INSERT INTO new_events (namespace, type, function, subject, job, fields) VALUES ('default', 'job.failed', 's', '', 7, '')"


async def want(one: Node, wanted: frozenset[str] = types.JOBS) -> None:
    interest = Interest(wanted)
    await one.group(SaveInterests(now_us=NOW, saved=[StoredInterest("all", interest)]))


async def leased(one: Node, number: int = 1) -> list[Job]:
    await one.submitted(number)
    ((found,),) = await one.group(one.claim(number))
    return list(found)


async def number(one: Node) -> int:
    (numbered,) = await one.group(NumberEvents())
    return int(numbered.number)


async def behind(one: Node, place: int) -> list[Event]:
    return await everything(one.engine, ListEvents(after=place or None, limit=10_000))


def test_a_slow_transaction_is_read_behind_those_that_were_quicker(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await want(one)
            quick, later = await leased(one, 2)
            async with other.transaction():
                await other.execute(SLOW)
                await one.group(ops.Settle([done(quick)]))
                await number(one)
                first = await behind(one, 0)
            await one.group(ops.Settle([done(later)]))
            await number(one)
            rest = await behind(one, first[-1].number)
            assert [one.job for one in first] == [quick.id]
            assert [one.job for one in rest] == [7, later.id]

    asyncio.run(test())


def test_a_node_numbers_behind_another_one_that_has_not_committed(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other, session(database) as third:
            await want(one)
            await third.execute(SLOW)
            async with other.transaction():
                await other.execute(SQL["lock_event_ends"])
                assert await other.fetchval(SQL["number_events"], 10) == 1
                await third.execute(SLOW)
                numbering = asyncio.ensure_future(number(one))
                await waiting_for_locks(third)
            assert await numbering == 1
            assert [event.number for event in await behind(one, 0)] == [1, 2]

    asyncio.run(test())


def test_a_group_numbers_its_events_unless_another_transaction_numbers_some(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other, asyncio.timeout(20):
            await want(one)
            first, second, third = await leased(one, 3)
            await one.group(ops.Settle([done(first)]))
            assert [event.job for event in await behind(one, 0)] == [first.id]
            async with other.transaction():
                await other.execute(SQL["lock_event_ends"])
                await one.group(ops.Settle([done(second)]))  # it waits for nobody
                assert [event.job for event in await behind(one, 0)] == [first.id]
            await one.group(ops.Settle([done(third)]))
            assert [event.job for event in await behind(one, 0)] == [first.id], "an earlier event has no number yet"
            assert await number(one) == 2
            assert [event.job for event in await behind(one, 0)] == [first.id, second.id, third.id]

    asyncio.run(test())


async def waiting_for_locks(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Wait until another session waits for a lock."""

    async def look() -> bool:
        return bool(await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    await eventually(look, "a session waits for a lock")


def test_two_nodes_number_events_side_by_side(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two, session(database) as other:
            await want(one)
            for _ in range(20):
                await other.execute(SLOW)
                await asyncio.gather(number(one), number(two))
            found = await behind(two, 0)
            ends = await answer(two.engine, ShowLogEnds())
            assert [event.number for event in found] == list(range(1, 21))
            assert ends.last == 20
            assert await other.fetchval("SELECT count(*) FROM new_events") == 0

    asyncio.run(test())


def test_the_events_of_a_job_stay_in_order_over_nodes(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two:
            await want(one)
            two.engine.interests.use(one.engine.interests.now)
            (job,) = await leased(one)
            for place in range(6):
                mine, next_one = (one, two) if place % 2 == 0 else (two, one)
                retry = Settlement(job, JobEvent.RETRY, place + 1, due_us=NOW, ended_us=NOW)
                outcome, _ = await asyncio.gather(mine.group(ops.Settle([retry])), number(next_one))
                assert outcome == [set()]
                await next_one.group(ops.Wake(NOW + 1))
                ((claimed,),) = await next_one.group(next_one.claim(1))
                (job,) = claimed
            await number(one)
            attempts = [event.fields["attempt"] for event in await behind(one, 0)]
            assert attempts == [1, 2, 3, 4, 5, 6]
            assert State(job.state) is State.LEASED

    asyncio.run(test())


def test_a_death_that_two_nodes_notice_is_recorded_once(database: str) -> None:
    async def test() -> None:
        async with node(database) as one:
            await want(one, frozenset({types.NODE_JOINED, types.NODE_DEAD}))
            async with node(database, "n2") as two, node(database, "n3") as three, node(database, "n4") as four:
                for term in (one.term, two.term):
                    assert all(await asyncio.gather(*(other.engine.end(term, 0) for other in (three, four))))
                assert await four.engine.end(three.term, 7) is False, "it has beaten meanwhile"
                await number(four)
                found = [(event.type, event.subject) for event in await behind(four, 0)]
                assert found == [
                    *((types.NODE_JOINED, name) for name in ("n2", "n3", "n4")),
                    *((types.NODE_DEAD, name) for name in ("n1", "n2")),
                ]
                assert {event.fields["why"] for event in await behind(four, 3)} == {node_events.SILENT}

    asyncio.run(test())


def test_two_nodes_count_the_dead_letters_of_a_function(database: str) -> None:
    async def test() -> None:
        async with node(database) as one:
            await want(one, frozenset({types.DEAD_LETTERS}))
            async with node(database, "n2") as two:
                for _ in range(12):
                    jobs = [(await leased(each))[0] for each in (one, two)]
                    settlements = [Settlement(job, JobEvent.FAIL, 1, ended_us=NOW) for job in jobs]
                    await asyncio.gather(
                        *(each.group(ops.Settle([s])) for each, s in zip((one, two), settlements, strict=True))
                    )
                await number(two)
                assert [event.fields["number"] for event in await behind(one, 0)] == [1, 10]

    asyncio.run(test())


def test_jobs_and_runs_of_users_transactions_have_events(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as other:
            await want(one, types.JOBS | types.RUNS)
            await one.group(SaveDefinitions([Definition("order", "1")], NOW))
            async with other.transaction():
                won, late = await insert(other), await insert(other, expires_us=NOW + 5)
                run = await insert(other, function=b"order", options=encode_options(Options(tags=("red",))))
            with contextlib.suppress(ZeroDivisionError):
                async with other.transaction():
                    await insert(other)
                    raise ZeroDivisionError
            await take(one)
            await one.group(ops.Wake(NOW + 6), BeginWaiting(b"order", 10, NOW))
            ((job,),) = (await one.group(one.claim()))[0]
            await one.group(ops.Settle([done(job)]))
            await number(one)
            found = await behind(one, 0)
            assert sorted((event.type, event.job) for event in found) == sorted(
                [(types.EXPIRED, late), (types.RUN_STARTED, run), (types.SUCCEEDED, won)]
            )
            assert [[*event.fields["tags"]] for event in found if event.type == types.RUN_STARTED] == [["red"]]

    asyncio.run(test())


def test_the_fast_path_makes_way_for_events_of_successes(database: str) -> None:
    async def test() -> None:
        async with node(database) as one:
            jobs = await leased(one, 3)
            await one.group(ops.Settle([done(jobs[0])]))
            await want(one)
            await one.group(ops.Settle([done(jobs[1])]), ops.Submit([one.job(b"f")]))
            await number(one)
            assert [event.job for event in await behind(one, 0)] == [jobs[1].id]

    asyncio.run(test())
