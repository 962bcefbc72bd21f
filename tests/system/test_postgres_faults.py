"""Whatever happens to the server or to the way there: what was acknowledged is there, once, and the node goes on by itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING

import pytest
from tests.on_servers.postgres.a_fleet import NOW, Node, eventually, node, session
from tests.postgres.proxy import Direction, Proxy
from tests.postgres.server import PostgresServer, name_of, several

from mainspring.engines.postgres import connection, watch, writer
from mainspring.errors import StoreFencedError
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import succeeded
from mainspring.queries.jobs import ListJobs
from mainspring.testing.conformance.paging import everything

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

MARK = b"a mark in a group that is one statement"
NEVER = b"what no server says"


@pytest.fixture
def own(postgres_programs: Path) -> Iterator[PostgresServer]:
    """Return a server that may be disturbed."""
    with PostgresServer() as server:
        yield server


class Load:
    """Groups one after the other, and what their answers promise."""

    def __init__(self, on: Node) -> None:
        self.node = on
        self.live: set[int] = set()
        self.settled: set[int] = set()
        self.claimed: set[int] = set()
        self.groups = 0
        self.more = asyncio.Event()
        self.enough = False

    async def group(self) -> None:
        """Submit leased and pending jobs, claim the pending ones, settle all but one, in three groups."""
        one = self.node
        leased = [one.job(state=State.LEASED) for _ in range(3)]
        pending = [one.job() for _ in range(3)]
        assert await one.group(one.submit(*leased, *pending)) == [{}]
        self.live.update(job.id for job in leased + pending)
        ((claimed,),) = await one.group(one.claim(2))
        assert self.claimed.isdisjoint(job.id for job in claimed), "no job is claimed twice"
        self.claimed.update(job.id for job in claimed)
        done = [*leased[1:], *claimed]
        assert await one.group(one.settle(*done)) == [set()], "a settlement counts once"
        self.settled.update(job.id for job in done)
        self.live.difference_update(self.settled)
        self.groups += 1
        self.more.set()

    async def run(self) -> None:
        while not self.enough:
            await self.group()

    async def goes_on(self, groups: int = 5) -> None:
        """Wait for further groups."""
        async with asyncio.timeout(60):
            goal = self.groups + groups
            while self.groups < goal:
                self.more.clear()
                await self.more.wait()

    async def is_kept(self, by: Node) -> None:
        """Assert that all that was promised is there, and nothing else."""
        (counts,) = await by.group(ops.Count())
        jobs = await everything(by.engine, ListJobs(limit=1_000_000))
        states = {job.id: job.state for job in jobs}
        assert len(states) == len(jobs), "no job is there twice"
        assert {job_id for job_id, state in states.items() if state == State.SUCCEEDED} == self.settled
        assert {job_id for job_id, state in states.items() if state != State.SUCCEEDED} == self.live
        assert sum(counts.values()) == len(jobs)
        assert sum(number for (_, state, _), number in counts.items() if state == State.SUCCEEDED) == len(self.settled)


@contextlib.asynccontextmanager
async def under_load(one: Node) -> AsyncIterator[Load]:
    """Commit groups all the while, to the end of the last one."""
    load = Load(one)
    running = asyncio.ensure_future(load.run())
    try:
        await load.goes_on()
        yield load
        await load.goes_on()
    finally:
        load.enough = True
        await asyncio.wait_for(running, 60)


# ---- one answer ----


@pytest.mark.parametrize("lost", ["answer", "request"])
@pytest.mark.parametrize("kind", ["submit", "claim", "settle"])
def test_a_commit_whose_outcome_is_unknown_happens_once(proxy: Proxy, database: str, kind: str, lost: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as one, node(database, "b") as two:
            jobs = await two.submitted(6)
            ((held,),) = await one.group(one.claim(2))
            operations = {
                "submit": one.submit(*[one.job(unique=MARK + b"%d" % number) for number in range(3)]),
                "claim": one.claim(2),
                "settle": ops.Settle([succeeded(job, MARK, NOW, NOW) for job in held]),
            }
            last = b"COMMIT" if kind == "claim" else MARK  # the others are one statement, which commits
            trap = proxy.lose_answer(to=last) if lost == "answer" else proxy.lose_request(of=last)
            (outcome,) = await one.group(operations[kind])
            assert trap.has_sprung
            counts = await two.counts()
            numbers = {State(state).name: number for (_, state, _), number in counts.items()}
            if kind == "submit":
                assert outcome == {}
                assert numbers == {"PENDING": 7, "LEASED": 2}
            elif kind == "claim":
                (claimed,) = outcome
                assert numbers == {"PENDING": 2, "LEASED": 4}, "not two others the second time"
                assert [job.id for job in claimed] == [job.id for job in jobs[2:4]]
                assert await two.states(*claimed) == [State.LEASED] * 2
            else:
                assert outcome == set(), "not stale the second time"
                assert numbers == {"PENDING": 4, "SUCCEEDED": 2}

    asyncio.run(test())


def test_a_commit_that_comes_late_and_its_repetition_exclude_each_other(
    proxy: Proxy, database: str, postgres: PostgresServer
) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as one, node(database, "b") as two, session(database) as other:
            await two.submitted(6)
            await one.group(one.claim(1))
            # The COMMIT has reached the server and waits there; then the node's connection is lost, and the server's is not.
            await other.execute("BEGIN; LOCK TABLE journal IN EXCLUSIVE MODE")
            group = one.begin(one.claim(2))
            await eventually(lambda: waiting_for(database, "journal"), "the group is at its end")
            proxy.forget()
            one.engine._writer.give_up()
            await asyncio.sleep(0.1)  # whatever the repetition does while the first attempt is still there
            await other.execute("COMMIT")
            ((claimed,),) = await asyncio.wait_for(group, 30)
            counts = await two.counts()
            assert {State(state).name: number for (_, state, _), number in counts.items()} == {
                "PENDING": 3,
                "LEASED": 3,
            }
            assert await two.states(*claimed) == [State.LEASED] * 2

    asyncio.run(test())


async def waiting_for(database: str, table: str) -> int:
    """Return how many sessions wait for a lock on a table."""
    async with session(database) as other:
        number: int = await other.fetchval(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = to_regclass($1)", table
        )
        return number


def test_who_was_fenced_while_the_outcome_was_unknown_hears_what_was_committed(proxy: Proxy, database: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as one, node(database, "b") as two:
            trap = proxy.lose_answer()
            job = one.job()
            group = one.begin(one.submit(job))
            await asyncio.to_thread(trap.wait)
            proxy.refuse()
            assert await two.engine.end(one.term)
            proxy.heal()
            assert await group == [{}], "it was committed before the end"
            assert await two.states(job) == [State.PENDING]
            with pytest.raises(StoreFencedError):
                await one.submitted()

    asyncio.run(test())


def test_who_was_fenced_while_cut_off_has_committed_nothing(proxy: Proxy, database: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as one, node(database, "b") as two:
            await one.submitted()
            proxy.refuse()
            job = one.job()
            group = one.begin(one.submit(job))
            assert await two.engine.end(one.term)
            assert not group.done(), "nobody knows yet"
            proxy.heal()
            with pytest.raises(StoreFencedError):
                await asyncio.wait_for(group, 30)
            assert await two.states(job) == [None]
            await one.open()
            await one.submitted()

    asyncio.run(test())


def test_a_new_term_may_begin_while_a_group_of_the_old_one_is_under_way(proxy: Proxy, database: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database), slow=60.0) as one, node(database, "b") as two:
            proxy.freeze(Direction.TO_SERVER)
            job = one.job()
            group = one.begin(one.submit(job))
            behind: list[asyncio.Future[list[object]]] = []
            group.add_done_callback(lambda _: behind.append(one.begin(one.submit(job))))
            assert await two.engine.end(one.term)
            opening = asyncio.ensure_future(one.open())
            proxy.heal()
            await asyncio.wait_for(opening, 30)
            for refused in (group, *behind):
                with pytest.raises(StoreFencedError):
                    await refused
            assert len(behind) == 1
            assert await one.states(job) == [None]
            await one.submitted()

    asyncio.run(test())


# ---- the way ----


@pytest.mark.parametrize("direction", Direction)
def test_connections_that_end_at_any_byte(proxy: Proxy, database: str, direction: Direction) -> None:
    chance = random.Random(direction.value)

    async def test() -> None:
        async with node(proxy.through(database)) as one:
            load = Load(one)
            await load.group()
            before = proxy.carried(direction)
            await load.group()
            length = proxy.carried(direction) - before
            for _ in range(40):
                trap = proxy.cut_after(chance.randrange(length), direction)
                await load.group()
                proxy.heal()
                del trap
            await load.is_kept(one)

    asyncio.run(test())


def test_connections_that_are_cut_all_the_time(proxy: Proxy, database: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as one:
            async with under_load(one) as load:
                for _ in range(15):
                    proxy.cut()
                    await load.goes_on(1)
            await load.is_kept(one)

    asyncio.run(test())


def test_a_way_that_swallows_everything_is_left(proxy: Proxy, database: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database), slow=0.3) as one:
            async with under_load(one) as load:
                proxy.forget()
                began = time.monotonic()
                await load.goes_on(1)
                assert time.monotonic() - began < 20
            await load.is_kept(one)

    asyncio.run(test())


def test_a_session_that_waits_for_us_within_a_statement_is_left(proxy: Proxy, database: str) -> None:
    # The server takes what it has been asked so far for a part of a statement, and counts the session as active.
    async def test() -> None:
        async with node(proxy.through(database), slow=0.3) as one:
            proxy.lose_answer(b"FROM dead WHERE id = ANY", until=NEVER)
            assert await one.find(1) == {}

    asyncio.run(test())


@pytest.mark.parametrize("anew", [False, True])
def test_a_way_that_is_dead_when_the_next_term_begins_is_left(
    proxy: Proxy, database: str, monkeypatch: pytest.MonkeyPatch, *, anew: bool
) -> None:
    monkeypatch.setattr(writer, "ANSWER", 0.3)

    async def test() -> None:
        async with node(proxy.through(database), slow=60.0) as one:
            if anew:
                one.engine._writer.give_up()
            proxy.lose_answer(b"pg_try_advisory_lock" if anew else b"pg_advisory_unlock_all", until=NEVER)
            began = time.monotonic()
            async with asyncio.timeout(30):
                await one.open()
            assert time.monotonic() - began >= writer.ANSWER, "there was an answer"
            assert await one.group(one.submit(one.job())) == [{}]

    asyncio.run(test())


def test_a_way_that_is_dead_when_a_group_is_undone_is_left(
    proxy: Proxy, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ANSWER", 0.3)
    monkeypatch.setitem(connection.SETTINGS, "lock_timeout", "50ms")
    monkeypatch.setitem(connection.SETTINGS, "idle_in_transaction_session_timeout", "0")

    async def test() -> None:
        async with node(proxy.through(database), slow=60.0) as one, session(database) as other:
            await other.execute("BEGIN; LOCK TABLE jobs IN EXCLUSIVE MODE")
            proxy.lose_answer(b"ROLLBACK", until=NEVER)
            group = one.begin(one.submit(one.job()))
            pid = one.engine._writer.pid
            await eventually(lambda: another(one, pid), "the connection is given up")
            await other.execute("COMMIT")
            assert await asyncio.wait_for(group, 30) == [{}]

    async def another(one: Node, pid: int | None) -> bool:
        return one.engine._writer.pid not in {None, pid}

    asyncio.run(test())


def test_a_group_that_the_server_works_at_is_not_given_up(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "AGAIN", 0.01)

    async def test() -> None:
        async with node(database, slow=60.0) as one, session(database) as other:
            await other.execute("BEGIN; LOCK TABLE jobs IN EXCLUSIVE MODE")
            group = one.begin(one.submit(one.job()))
            pid = one.engine._writer.pid
            assert pid is not None
            await eventually(lambda: waiting_for(database, "jobs"), "the group waits for the table")
            for _ in range(5):
                assert not await one.engine._watch.look(one.engine._writer.attempts)
            assert one.engine._writer.pid == pid
            await other.execute("COMMIT")
            assert await group == [{}]

    asyncio.run(test())


# ---- the server ----


def test_a_server_that_is_killed_and_restarted_in_the_middle(own: PostgresServer) -> None:
    async def test() -> None:
        async with node(own.dsn()) as one:
            async with under_load(one) as load:
                for _ in range(3):
                    await asyncio.to_thread(own.kill)
                    await asyncio.to_thread(own.start)
                    await load.goes_on()
                await asyncio.to_thread(own.restart)
            await load.is_kept(one)

    asyncio.run(test())


def test_a_server_that_stands_still_for_a_while(own: PostgresServer) -> None:
    async def test() -> None:
        async with node(own.dsn(), slow=0.3) as one:
            async with under_load(one) as load:
                own.pause()
                groups = load.groups
                await asyncio.sleep(2)
                assert load.groups <= groups + 1
                own.resume()
            await load.is_kept(one)

    asyncio.run(test())


def test_too_many_connections_are_waited_for(postgres_programs: Path) -> None:
    with PostgresServer(max_connections=7, superuser_reserved_connections=0, max_wal_senders=0) as small:

        async def test() -> None:
            async with node(small.dsn()) as one, contextlib.AsyncExitStack() as others:
                await one.submitted()
                for _ in range(4):
                    await others.enter_async_context(session(small.dsn()))
                one.engine._writer.give_up()
                await others.enter_async_context(await free_place(small.dsn()))
                group = one.begin(one.submit(one.job()))
                await asyncio.wait({group}, timeout=0.5)
                assert not group.done()
                await others.aclose()
                assert await asyncio.wait_for(group, 30) == [{}]

        asyncio.run(test())


async def free_place(dsn: str) -> contextlib.AsyncExitStack:
    """Take the one place that is about to become free."""
    while True:
        stack = contextlib.AsyncExitStack()
        try:
            await stack.enter_async_context(session(dsn))
        except Exception:  # noqa: BLE001 - not free yet
            await asyncio.sleep(0.01)
        else:
            return stack


def test_a_standby_that_takes_over_has_all_that_was_acknowledged(own: PostgresServer) -> None:
    dsn = own.create_database()
    with own.replica() as standby:

        async def test() -> None:
            both = several(name_of(dsn), own, standby)
            async with node(both) as one:
                async with under_load(one) as load:
                    await asyncio.to_thread(own.kill)
                    await asyncio.to_thread(standby.promote)
                await load.is_kept(one)

        asyncio.run(test())


@pytest.mark.parametrize("state", ["running", "paused", "killed", "stopped"])
def test_closing_takes_a_few_seconds_at_most(own: PostgresServer, state: str) -> None:
    async def test() -> None:
        async with node(own.dsn()) as one:
            await one.submitted()
            if state != "running":
                {"paused": own.pause, "killed": own.kill, "stopped": own.stop}[state]()
            began = time.monotonic()
            await one.engine.close()
            assert time.monotonic() - began < 5
            assert len(asyncio.all_tasks()) == 1, "all that it had started has ended"
            await one.engine.close()

    asyncio.run(test())


def test_a_node_that_is_closed_in_the_middle_of_a_group_leaves_it_whole_or_not_at_all(database: str) -> None:
    async def test() -> None:
        async with node(database, "b") as two:
            for wait in (0.0, 0.0005, 0.001, 0.002, 0.005):
                async with node(database) as one:
                    jobs = [one.job() for _ in range(20)]
                    group = one.begin(one.submit(*jobs))
                    await asyncio.sleep(wait)
                    await one.engine.close()
                    states = set(await two.states(*jobs))
                    assert len(states) == 1
                    group.cancel()

    asyncio.run(test())
