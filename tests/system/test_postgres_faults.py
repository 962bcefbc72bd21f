"""Faults of the PostgreSQL server and its connections: acknowledged operations are kept exactly once, and the node recovers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING

import pytest
from tests.conformance.suite.paging import everything
from tests.on_servers.postgres.a_fleet import NOW, Node, eventually, node, session
from tests.postgres.proxy import Direction, Proxy
from tests.postgres.server import PostgresServer, name_of, several

from mainspring.engines.postgres import connections, writer
from mainspring.errors import StoreFencedError
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import succeeded
from mainspring.queries import QueryJobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

GROUP_MARK = b"text in a group that is one statement"
ABSENT_TEXT = b"text that no server sends"


@pytest.fixture
def own(postgres_programs: Path) -> Iterator[PostgresServer]:
    """Return a server that the test may disturb."""
    with PostgresServer() as server:
        yield server


class Load:
    """Commits groups one after another, and records the promises in their answers."""

    def __init__(self, on: Node) -> None:
        self.node = on
        self.live: set[int] = set()
        self.settled: set[int] = set()
        self.claimed: set[int] = set()
        self.groups = 0
        self.more = asyncio.Event()
        self.enough = False

    async def group(self) -> None:
        """Submit leased and pending jobs, claim the pending ones, and settle all but one, in three groups."""
        node_a = self.node
        leased = [node_a.job(state=State.LEASED) for _ in range(3)]
        pending = [node_a.job() for _ in range(3)]
        assert await node_a.group(node_a.submit(*leased, *pending)) == [{}]
        self.live.update(job.id for job in leased + pending)
        ((claimed,),) = await node_a.group(node_a.claim(2))
        assert self.claimed.isdisjoint(job.id for job in claimed), "no job is claimed twice"
        self.claimed.update(job.id for job in claimed)
        done = [*leased[1:], *claimed]
        assert await node_a.group(node_a.settle(*done)) == [set()], "a settlement counts once"
        self.settled.update(job.id for job in done)
        self.live.difference_update(self.settled)
        self.groups += 1
        self.more.set()

    async def run(self) -> None:
        while not self.enough:
            await self.group()

    async def await_groups(self, groups: int = 5) -> None:
        """Wait for further groups."""
        async with asyncio.timeout(60):
            goal = self.groups + groups
            while self.groups < goal:
                self.more.clear()
                await self.more.wait()

    async def assert_kept(self, by: Node) -> None:
        """Assert that the store has exactly the promised jobs."""
        (counts,) = await by.group(ops.Count())
        jobs = await everything(by.engine, QueryJobs(limit=1_000_000))
        states = {job.id: job.state for job in jobs}
        assert len(states) == len(jobs), "no job is there twice"
        assert {job_id for job_id, state in states.items() if state == State.SUCCEEDED} == self.settled
        assert {job_id for job_id, state in states.items() if state != State.SUCCEEDED} == self.live
        assert sum(counts.values()) == len(jobs)
        assert sum(number for (_, state, _), number in counts.items() if state == State.SUCCEEDED) == len(self.settled)


@contextlib.asynccontextmanager
async def under_load(node_a: Node) -> AsyncIterator[Load]:
    """Commit groups continuously until the block ends; the last group is awaited."""
    load = Load(node_a)
    running = asyncio.ensure_future(load.run())
    try:
        await load.await_groups()
        yield load
        await load.await_groups()
    finally:
        load.enough = True
        await asyncio.wait_for(running, 60)


# ---- single lost answers


@pytest.mark.parametrize("lost", ["answer", "request"])
@pytest.mark.parametrize("kind", ["submit", "claim", "settle"])
def test_a_commit_with_an_unknown_outcome_happens_once(proxy: Proxy, database: str, kind: str, lost: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as node_a, node(database, "b") as node_b:
            jobs = await node_b.submitted(6)
            ((held,),) = await node_a.group(node_a.claim(2))
            operations = {
                "submit": node_a.submit(*[node_a.job(unique=GROUP_MARK + b"%d" % number) for number in range(3)]),
                "claim": node_a.claim(2),
                "settle": ops.Settle([succeeded(job, GROUP_MARK, NOW, NOW) for job in held]),
            }
            last = b"COMMIT" if kind == "claim" else GROUP_MARK  # the other groups are one statement, which commits
            trap = proxy.lose_answer(to=last) if lost == "answer" else proxy.lose_request(of=last)
            (outcome,) = await node_a.group(operations[kind])
            assert trap.has_sprung
            counts = await node_b.counts()
            numbers = {State(state).name: number for (_, state, _), number in counts.items()}
            if kind == "submit":
                assert outcome == {}
                assert numbers == {"PENDING": 7, "LEASED": 2}
            elif kind == "claim":
                (claimed,) = outcome
                assert numbers == {"PENDING": 2, "LEASED": 4}, "not two others the second time"
                assert [job.id for job in claimed] == [job.id for job in jobs[2:4]]
                assert await node_b.states(*claimed) == [State.LEASED] * 2
            else:
                assert outcome == set(), "not stale the second time"
                assert numbers == {"PENDING": 4, "SUCCEEDED": 2}

    asyncio.run(test())


def test_a_late_commit_and_its_repetition_exclude_each_other(
    proxy: Proxy, database: str, postgres: PostgresServer
) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as node_a, node(database, "b") as node_b, session(database) as other:
            await node_b.submitted(6)
            await node_a.group(node_a.claim(1))
            # The COMMIT waits at the server; then the node loses its connection, but the server keeps its end.
            await other.execute("BEGIN; LOCK TABLE journal IN EXCLUSIVE MODE")
            group = node_a.begin(node_a.claim(2))
            await eventually(lambda: waiting_for(database, "journal"), "the group is about to commit")
            proxy.forget()
            node_a.engine._writer.give_up()
            await asyncio.sleep(0.1)  # let the repetition run while the first attempt is still open
            await other.execute("COMMIT")
            ((claimed,),) = await asyncio.wait_for(group, 30)
            counts = await node_b.counts()
            assert {State(state).name: number for (_, state, _), number in counts.items()} == {
                "PENDING": 3,
                "LEASED": 3,
            }
            assert await node_b.states(*claimed) == [State.LEASED] * 2

    asyncio.run(test())


async def waiting_for(database: str, table: str) -> int:
    """Return the number of sessions that wait for a lock on a table."""
    async with session(database) as other:
        number: int = await other.fetchval(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = to_regclass($1)", table
        )
        return number


def test_a_node_that_is_fenced_before_it_reads_the_outcome_receives_the_committed_one(
    proxy: Proxy, database: str
) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as node_a, node(database, "b") as node_b:
            trap = proxy.lose_answer()
            job = node_a.job()
            group = node_a.begin(node_a.submit(job))
            await asyncio.to_thread(trap.wait)
            proxy.refuse()
            assert await node_b.engine.end(node_a.term)
            proxy.heal()
            assert await group == [{}], "it was committed before the end"
            assert await node_b.states(job) == [State.PENDING]
            with pytest.raises(StoreFencedError):
                await node_a.submitted()

    asyncio.run(test())


def test_a_node_that_is_fenced_while_cut_off_has_committed_nothing(proxy: Proxy, database: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as node_a, node(database, "b") as node_b:
            await node_a.submitted()
            proxy.refuse()
            job = node_a.job()
            group = node_a.begin(node_a.submit(job))
            assert await node_b.engine.end(node_a.term)
            assert not group.done(), "the outcome is unknown"
            proxy.heal()
            with pytest.raises(StoreFencedError):
                await asyncio.wait_for(group, 30)
            assert await node_b.states(job) == [None]
            await node_a.open()
            await node_a.submitted()

    asyncio.run(test())


def test_a_new_term_may_begin_while_a_group_of_the_old_one_is_under_way(proxy: Proxy, database: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database), slow=60.0) as node_a, node(database, "b") as node_b:
            proxy.freeze(Direction.TO_SERVER)
            job = node_a.job()
            group = node_a.begin(node_a.submit(job))
            behind: list[asyncio.Future[list[object]]] = []
            group.add_done_callback(lambda _: behind.append(node_a.begin(node_a.submit(job))))
            assert await node_b.engine.end(node_a.term)
            opening = asyncio.ensure_future(node_a.open())
            proxy.heal()
            await asyncio.wait_for(opening, 30)
            for refused in (group, *behind):
                with pytest.raises(StoreFencedError):
                    await refused
            assert len(behind) == 1
            assert await node_a.states(job) == [None]
            await node_a.submitted()

    asyncio.run(test())


# ---- the connection


@pytest.mark.parametrize("direction", Direction)
def test_a_connection_may_end_at_any_byte(proxy: Proxy, database: str, direction: Direction) -> None:
    chance = random.Random(direction.value)

    async def test() -> None:
        async with node(proxy.through(database)) as node_a:
            load = Load(node_a)
            await load.group()
            before = proxy.carried(direction)
            await load.group()
            length = proxy.carried(direction) - before
            for _ in range(40):
                trap = proxy.cut_after(chance.randrange(length), direction)
                await load.group()
                proxy.heal()
                del trap
            await load.assert_kept(node_a)

    asyncio.run(test())


def test_connections_may_be_cut_continuously(proxy: Proxy, database: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as node_a:
            async with under_load(node_a) as load:
                for _ in range(15):
                    proxy.cut()
                    await load.await_groups(1)
            await load.assert_kept(node_a)

    asyncio.run(test())


def test_a_connection_without_answers_is_replaced(proxy: Proxy, database: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database), slow=0.3) as node_a:
            async with under_load(node_a) as load:
                proxy.forget()
                began = time.monotonic()
                await load.await_groups(1)
                assert time.monotonic() - began < 20
            await load.assert_kept(node_a)

    asyncio.run(test())


def test_a_session_that_waits_for_the_rest_of_a_statement_is_replaced(proxy: Proxy, database: str) -> None:
    # The server treats the bytes so far as part of a statement, and counts the session as active.
    async def test() -> None:
        async with node(proxy.through(database), slow=0.3) as node_a:
            proxy.lose_answer(b"FROM dead WHERE id = ANY", until=ABSENT_TEXT)
            assert await node_a.find(1) == {}

    asyncio.run(test())


@pytest.mark.parametrize("new_connection", [False, True])
def test_a_dead_connection_is_replaced_when_the_next_term_begins(
    proxy: Proxy, database: str, monkeypatch: pytest.MonkeyPatch, *, new_connection: bool
) -> None:
    monkeypatch.setattr(writer, "COMMAND_TIMEOUT", 0.3)

    async def test() -> None:
        async with node(proxy.through(database), slow=60.0) as node_a:
            if new_connection:
                node_a.engine._writer.give_up()
            proxy.lose_answer(
                b"pg_try_advisory_lock" if new_connection else b"pg_advisory_unlock_all", until=ABSENT_TEXT
            )
            began = time.monotonic()
            async with asyncio.timeout(30):
                await node_a.open()
            assert time.monotonic() - began >= writer.COMMAND_TIMEOUT, "the node must have waited for an answer"
            assert await node_a.group(node_a.submit(node_a.job())) == [{}]

    asyncio.run(test())


def test_a_dead_connection_is_replaced_when_a_group_is_rolled_back(
    proxy: Proxy, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "COMMAND_TIMEOUT", 0.3)
    monkeypatch.setitem(connections.SESSION_SETTINGS, "lock_timeout", "50ms")
    monkeypatch.setitem(connections.SESSION_SETTINGS, "idle_in_transaction_session_timeout", "0")

    async def test() -> None:
        async with node(proxy.through(database), slow=60.0) as node_a, session(database) as other:
            await other.execute("BEGIN; LOCK TABLE jobs IN EXCLUSIVE MODE")
            proxy.lose_answer(b"ROLLBACK", until=ABSENT_TEXT)
            group = node_a.begin(node_a.submit(node_a.job()))
            pid = node_a.engine._writer.pid
            await eventually(lambda: replaced(node_a, pid), "the connection is given up")
            await other.execute("COMMIT")
            assert await asyncio.wait_for(group, 30) == [{}]

    async def replaced(node_a: Node, pid: int | None) -> bool:
        return node_a.engine._writer.pid not in {None, pid}

    asyncio.run(test())


def test_a_group_that_the_server_executes_is_not_given_up(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "RECHECK_DELAY", 0.01)

    async def test() -> None:
        async with node(database, slow=60.0) as node_a, session(database) as other:
            await other.execute("BEGIN; LOCK TABLE jobs IN EXCLUSIVE MODE")
            group = node_a.begin(node_a.submit(node_a.job()))
            pid = node_a.engine._writer.pid
            assert pid is not None
            await eventually(lambda: waiting_for(database, "jobs"), "the group waits for the table")
            for _ in range(5):
                assert not await node_a.engine._watch.check(node_a.engine._writer.attempts)
            assert node_a.engine._writer.pid == pid
            await other.execute("COMMIT")
            assert await group == [{}]

    asyncio.run(test())


# ---- the server ----


def test_a_node_survives_a_server_that_is_killed_and_restarted(own: PostgresServer) -> None:
    async def test() -> None:
        async with node(own.dsn()) as node_a:
            async with under_load(node_a) as load:
                for _ in range(3):
                    await asyncio.to_thread(own.kill)
                    await asyncio.to_thread(own.start)
                    await load.await_groups()
                await asyncio.to_thread(own.restart)
            await load.assert_kept(node_a)

    asyncio.run(test())


def test_a_node_survives_a_server_that_pauses(own: PostgresServer) -> None:
    async def test() -> None:
        async with node(own.dsn(), slow=0.3) as node_a:
            async with under_load(node_a) as load:
                own.pause()
                groups = load.groups
                await asyncio.sleep(2)
                assert load.groups <= groups + 1
                own.resume()
            await load.assert_kept(node_a)

    asyncio.run(test())


def test_a_node_waits_while_there_are_too_many_connections(postgres_programs: Path) -> None:
    with PostgresServer(max_connections=7, superuser_reserved_connections=0, max_wal_senders=0) as small:

        async def test() -> None:
            async with node(small.dsn()) as node_a, contextlib.AsyncExitStack() as others:
                await node_a.submitted()
                for _ in range(4):
                    await others.enter_async_context(session(small.dsn()))
                node_a.engine._writer.give_up()
                await others.enter_async_context(await take_free_connection(small.dsn()))
                group = node_a.begin(node_a.submit(node_a.job()))
                await asyncio.wait({group}, timeout=0.5)
                assert not group.done()
                await others.aclose()
                assert await asyncio.wait_for(group, 30) == [{}]

        asyncio.run(test())


async def take_free_connection(dsn: str) -> contextlib.AsyncExitStack:
    """Open the connection that is about to become free."""
    while True:
        stack = contextlib.AsyncExitStack()
        try:
            await stack.enter_async_context(session(dsn))
        except Exception:  # noqa: BLE001 - none is free yet
            await asyncio.sleep(0.01)
        else:
            return stack


def test_a_standby_that_takes_over_has_all_acknowledged_jobs(own: PostgresServer) -> None:
    dsn = own.create_database()
    with own.replica() as standby:

        async def test() -> None:
            both = several(name_of(dsn), own, standby)
            async with node(both) as node_a:
                async with under_load(node_a) as load:
                    await asyncio.to_thread(own.kill)
                    await asyncio.to_thread(standby.promote)
                await load.assert_kept(node_a)

        asyncio.run(test())


@pytest.mark.parametrize("state", ["running", "paused", "killed", "stopped"])
def test_closing_takes_a_few_seconds_at_most(own: PostgresServer, state: str) -> None:
    async def test() -> None:
        async with node(own.dsn()) as node_a:
            await node_a.submitted()
            if state != "running":
                {"paused": own.pause, "killed": own.kill, "stopped": own.stop}[state]()
            began = time.monotonic()
            await node_a.engine.close()
            assert time.monotonic() - began < 5
            assert len(asyncio.all_tasks()) == 1, "the engine's tasks have ended"
            await node_a.engine.close()

    asyncio.run(test())


def test_a_node_that_is_closed_in_the_middle_of_a_group_commits_all_or_nothing(database: str) -> None:
    async def test() -> None:
        async with node(database, "b") as node_b:
            for wait in (0.0, 0.0005, 0.001, 0.002, 0.005):
                async with node(database) as node_a:
                    jobs = [node_a.job() for _ in range(20)]
                    group = node_a.begin(node_a.submit(*jobs))
                    await asyncio.sleep(wait)
                    await node_a.engine.close()
                    states = set(await node_b.states(*jobs))
                    assert len(states) == 1
                    group.cancel()

    asyncio.run(test())
