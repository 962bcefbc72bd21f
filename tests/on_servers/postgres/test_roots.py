"""Root jobs and jobs of runs on a store of several nodes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.ground import Do, InPostgres

from mainspring.engines.postgres import partitions
from mainspring.engines.postgres.claiming import SCAN_SHARE
from mainspring.engines.postgres.engine import PostgresEngine
from mainspring.engines.postgres.partitions import DAY_US, DEAD, ENDED, Kind, Retired
from mainspring.events import Settled
from mainspring.jobs import store as ops
from mainspring.jobs.model import RUNS, Job, Options, State, StopRequest
from mainspring.jobs.owners import Ended
from mainspring.jobs.rules import Event, Settlement

from .a_fleet import NOW, Node, eventually, node, session
from .test_jobs_floors import slow
from .test_partitions import OLD, places

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mainspring.jobs.owners import Notice

RUN = Options(run=(42, 7), ref=3)
NEWER = b"\x93\xc1"


@asynccontextmanager
async def fleet(database: str, *names: str) -> AsyncIterator[list[Node]]:
    """Open nodes whose slice does what a test wants."""
    nodes = [Node(PostgresEngine(database, slices=[InPostgres([])]), name) for name in names]
    try:
        for one in nodes:
            await one.open()
        yield nodes
    finally:
        for one in nodes:
            await one.engine.close()


def notices(one: Node) -> list[Notice]:
    (own,) = one.engine.slices
    assert isinstance(own, InPostgres)
    return own.notices


async def do(one: Node, work: Any) -> Any:
    (outcome,) = await one.group(Do(work))
    return outcome


async def begun(one: Node, number: int = 1, **values: Any) -> list[Job]:
    jobs = [one.job(**values) for _ in range(number)]
    for job in jobs:
        job.started_us = NOW
    assert await do(one, lambda ground: ground.begin_roots(jobs)) == {}
    return jobs


async def ended(
    one: Node, *jobs: Job, state: State = State.SUCCEEDED, at_us: int = NOW, result: bytes = b""
) -> list[Job]:
    ends = [Job(job.id, b"", b"", state=state, ended_us=at_us, result=result) for job in jobs]
    found = await do(one, lambda ground: ground.end_roots(ends))
    assert isinstance(found, list)
    return found


async def subscribe(one: Node, *jobs: Job) -> None:
    await one.group(ops.Subscribe(one.term, [job.id for job in jobs]))


async def end_term(one: Node, of: Node) -> None:
    await one.engine.end(of.term)


# ---- nodes that are gone ----


def test_a_node_that_recovers_anothers_jobs_leaves_root_jobs_alone(database: str) -> None:
    async def test() -> None:
        async with fleet(database, "a", "b") as (one, two):
            roots = await begun(one, 3, foreground=True)
            held = await one.submitted(2, state=State.LEASED)
            await end_term(two, one)
            assert await two.engine.abandoned() == [one.term]
            (recovered,) = await two.group(ops.Recover(two.term, [one.term, RUNS, 0]))
            assert (recovered.number, recovered.more) == (2, False)
            assert await two.states(*roots, *held) == [State.RUNNING] * 3 + [State.PENDING] * 2
            assert {job.term for job in (await two.find(*(job.id for job in roots))).values()} == {RUNS}
            assert await two.engine.abandoned() == []
            assert await two.group(ops.Recover(two.term)) == [ops.Recovered(0, {})]
            assert await two.states(*roots) == [State.RUNNING] * 3
            assert await two.counts() == {(b"f", 1, 1): 2, (b"f", 2, 1): 3}
            assert [job.id for job in await ended(two, *roots, result=b"r")] == [job.id for job in roots]
            assert await two.states(*roots) == [State.SUCCEEDED] * 3
            assert await two.counts() == {(b"f", 1, 1): 2, (b"f", 4, 1): 3}

    asyncio.run(test())


def test_a_request_to_stop_a_job_holds_for_the_node_that_recovers_it(database: str) -> None:
    async def test() -> None:
        async with fleet(database, "a", "b") as (one, two):
            stopped, other, given = await one.submitted(3, state=State.LEASED, options=RUN)
            request = StopRequest(NOW, b"{}")
            held = [(job.id, one.term) for job in (stopped, given)]
            assert await do(two, lambda ground: ground.request_stop(held, request)) == {stopped.id, given.id}
            settlement = Settlement(given, Event.RELEASE, 0)
            assert await one.group(ops.Settle([settlement])) == [set()]
            assert settlement.event is Event.CANCEL
            await end_term(two, one)
            (recovered,) = await two.group(ops.Recover(two.term, [one.term]))
            assert (recovered.number, recovered.pending) == (1, {(b"f", 1): 1})
            assert await two.states(stopped, other, given) == [State.CANCELLED, State.PENDING, State.CANCELLED]
            assert [one.id for one in notices(two) if isinstance(one, Ended)] == [stopped.id]
            assert await two.counts() == {(b"f", 1, 1): 1, (b"f", int(State.CANCELLED), 1): 2}

    asyncio.run(test())


# ---- waiting clients ----


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
def test_clients_at_other_nodes_are_notified_of_the_end(database: str, state: State) -> None:
    async def test() -> None:
        async with fleet(database, "a", "b") as (one, two):
            (job,) = await begun(one)
            await subscribe(two, job)
            await ended(one, job, state=state)
            await two.wait_for(lambda messages: Settled([job.id]) in messages)
            async with session(database) as other:
                assert await other.fetch("SELECT FROM waits") == []

    asyncio.run(test())


def test_the_client_of_a_foreground_job_waits_at_its_node_and_may_leave(database: str) -> None:
    async def test() -> None:
        async with fleet(database, "a", "b") as (one, two):
            left, job = await begun(one, 2, foreground=True)
            assert await one.group(ops.Unsubscribe(one.term, [left.id])) == [set()]
            await ended(two, left, job)
            await one.wait_for(lambda messages: Settled([job.id]) in messages)
            assert await one.states(left, job) == [State.SUCCEEDED] * 2

    asyncio.run(test())


def test_clients_at_other_nodes_are_notified_of_a_withdrawn_job(database: str) -> None:
    async def test() -> None:
        async with fleet(database, "a", "b") as (one, two):
            (job,) = await one.submitted()
            await subscribe(two, job)
            withdrawn = await do(one, lambda ground: ground.withdraw([job.id]))
            assert [gone.id for gone in withdrawn] == [job.id]
            await two.wait_for(lambda messages: Settled([job.id]) in messages)
            assert await two.find(job.id) == {}
            assert await two.counts() == {}

    asyncio.run(test())


# ---- taking jobs that wait ----


def test_nodes_that_take_pending_jobs_at_once_take_each_once(database: str) -> None:
    async def test() -> None:
        async with fleet(database, "a", "b") as nodes:
            jobs = await nodes[0].submitted(60)
            rounds = [
                asyncio.ensure_future(do(one, lambda ground: ground.take_pending(b"f", 10, NOW))) for one in nodes
            ]
            taken = [job.id for found in await asyncio.gather(*rounds) for job in found]
            while found := await do(nodes[0], lambda ground: ground.take_pending(b"f", 10, NOW)):
                taken += [job.id for job in found]
            assert sorted(taken) == [job.id for job in jobs]
            assert await nodes[1].counts() == {(b"f", 2, 1): 60}

    asyncio.run(test())


@pytest.mark.parametrize("is_slow", [False, True])
def test_jobs_that_cannot_be_read_wait_and_keep_none_behind_them(database: str, *, is_slow: bool) -> None:
    async def test() -> None:
        async with fleet(database, "a") as (one,), session(database) as other:
            jobs = await one.submitted(10, options=RUN)
            unread = [job.id for job in jobs[:5]]
            clock = slow(one) if is_slow else None
            await other.execute("UPDATE jobs SET options = $1 WHERE id = ANY ($2)", NEWER, unread)
            for number in (2, 3):
                taken = await do(one, lambda ground, most=number: ground.take_pending(b"f", most, NOW))
                expected, jobs[5:] = jobs[5 : 5 + number], jobs[5 + number :]
                assert [job.id for job in taken] == [job.id for job in expected]
            assert await do(one, lambda ground: ground.take_pending(b"f", 2, NOW)) == []
            await other.execute("UPDATE jobs SET options = NULL WHERE id = ANY ($1)", unread)
            if clock is not None:
                clock.now += SCAN_SHARE * clock.scan
            taken = await do(one, lambda ground: ground.take_pending(b"f", 9, NOW))
            assert [job.id for job in taken] == unread
            assert await one.counts() == {(b"f", 2, 1): 10}

    asyncio.run(test())


def test_a_submission_of_the_inbox_is_taken(database: str) -> None:
    async def test() -> None:
        async with fleet(database, "a") as (one,), session(database) as other:
            job_id = await other.fetchval("INSERT INTO inbox (function, payload) VALUES ('f', 'in') RETURNING id")
            (taken,) = await do(one, lambda ground: ground.take_waiting([job_id], NOW))
            assert (taken.id, taken.payload) == (job_id, b"in")
            assert (await one.find(job_id))[job_id].term == RUNS
            assert await one.counts() == {(b"f", 2, 1): 1}

    asyncio.run(test())


# ---- ends ----


def test_a_rejected_root_job_is_an_ordinary_job(database: str) -> None:
    async def test() -> None:
        async with fleet(database, "a", "b") as (one, two):
            (job,), (other,) = await begun(one, options=RUN), await one.submitted(state=State.LEASED)
            await subscribe(two, job)
            ends = [
                Job(job_id, b"", payload, state=State.FAILED, ended_us=NOW, error=b"{}")
                for job_id, payload in ((job.id, b"p"), (job.id, b"q"), (other.id, b"p"), (1, b"p"))
            ]
            (rejected,) = await do(one, lambda ground: ground.reject_roots(ends))
            assert rejected == (await one.find(job.id))[job.id]
            values = (rejected.state, rejected.term, rejected.attempt, rejected.started_us, rejected.error)
            assert values == (State.FAILED, 0, 0, 0, b"{}")
            assert notices(one) == [Ended.of(rejected)]
            await two.wait_for(lambda messages: Settled([job.id]) in messages)
            assert await one.counts() == {(b"f", 2, 1): 1, (b"f", 5, 1): 1}
            (redriven,) = await one.group(ops.Redrive(job.id))
            assert redriven.redriven
            (((claimed,),),) = await one.group(one.claim())
            assert (claimed.id, claimed.payload) == (job.id, b"p")

    asyncio.run(test())


def test_nothing_takes_a_checked_lease_away(database: str) -> None:
    async def test() -> None:
        async with fleet(database, "a", "b") as (one, two):
            (job,) = await two.submitted(state=State.LEASED)
            checked, settled = asyncio.Event(), asyncio.Event()

            async def check(ground: Any) -> bool:
                held = await ground.is_held(job.id, two.term)
                checked.set()
                await asyncio.sleep(0.1)
                assert not settled.is_set()
                return bool(held)

            async def settle() -> None:
                await checked.wait()
                assert await two.group(two.settle(job)) == [set()]
                settled.set()

            held, _ = await asyncio.gather(do(one, check), settle())
            assert held

    asyncio.run(test())


# ---- retention ----


@pytest.mark.parametrize(("kind", "state"), [(ENDED, State.SUCCEEDED), (DEAD, State.FAILED), (DEAD, State.CANCELLED)])
def test_root_jobs_stay_when_the_partition_of_their_time_goes(database: str, kind: Kind, state: State) -> None:
    async def test() -> None:
        async with fleet(database, "a") as (one,), session(database) as other:
            for day in (OLD, OLD + 7):
                await partitions.attach(other, kind, day)
            roots = await begun(one, 3)
            await ended(one, *roots, state=state, at_us=OLD * DAY_US + 5, result=b"r")
            (job,) = await one.submitted(state=State.LEASED)
            event = Event.SUCCEED if state is State.SUCCEEDED else Event.FAIL
            await one.group(ops.Settle([Settlement(job, event, 1, ended_us=OLD * DAY_US)]))
            before = await one.find(*(root.id for root in roots))

            days, memory = (OLD + 7, OLD + 7), Retired()
            await partitions.retire(other, days, memory)
            assert not memory.left
            kept = f"{kind.table}_roots_{kind.name(OLD)[-8:]}"
            assert await places(other, kind.table) == {kept: 3}
            assert await one.find(job.id, *(root.id for root in roots)) == before
            assert await one.counts() == {(b"f", int(state), 1): 3}
            for _ in range(2):
                await one.group(ops.Sweep(NOW, NOW))
                await partitions.retire(other, days, memory)
            assert await one.find(*(root.id for root in roots)) == before

            ids = [root.id for root in roots]
            assert await do(one, lambda ground: ground.forget_roots(ids[:2])) == 2
            await partitions.retire(other, days, memory)
            assert await places(other, kind.table) == {kept: 1}
            assert await do(one, lambda ground: ground.forget_roots(ids)) == 1
            await partitions.retire(other, days, memory)
            assert await other.fetchval("SELECT to_regclass($1)", kept) is None
            assert await one.counts() == {}

    asyncio.run(test())


def test_a_reader_postpones_the_drop_of_an_empty_partition_of_root_jobs(database: str) -> None:
    async def test() -> None:
        async with fleet(database, "a") as (one,), session(database) as other, session(database) as reader:
            await partitions.attach(other, ENDED, OLD)
            (root,) = await begun(one)
            await ended(one, root, at_us=OLD * DAY_US)
            memory, days = Retired(), (OLD + 1, OLD + 1)
            await partitions.retire(other, days, memory)
            await do(one, lambda ground: ground.forget_roots([root.id]))
            await reader.execute("BEGIN; SELECT count(*) FROM ended")
            await partitions.retire(other, days, memory)
            assert memory.left
            await reader.execute("COMMIT")
            await partitions.retire(other, days, memory)
            assert not memory.left
            assert await other.fetchval("SELECT count(*) FROM pg_class WHERE relname LIKE 'ended_roots_2%'") == 0

    asyncio.run(test())


def test_the_root_jobs_of_new_partitions_are_found_by_an_index(database: str) -> None:
    async def test() -> None:
        async with node(database), session(database) as other:
            for kind in (ENDED, DEAD):
                await partitions.attach(other, kind, OLD)
                query = "SELECT count(*) FROM pg_indexes WHERE tablename = $1 AND indexdef LIKE '%WHERE (term < 0)'"
                assert await other.fetchval(query, kind.name(OLD)) == 1

    asyncio.run(test())


def test_jobs_that_leave_nothing_are_settled_step_by_step(database: str) -> None:
    """The fast path would store them as ended."""

    async def test() -> None:
        async with fleet(database, "a") as (one,), session(database) as other:
            await one.submitted()  # its function has a number now
            (job,) = await one.submitted(state=State.LEASED, options=Options(forget=True))
            await subscribe(one, job)
            assert await one.group(one.settle(job)) == [set()]
            assert await one.states(job) == [None]
            assert await one.counts() == {(b"f", 1, 1): 1}

            async def nobody() -> bool:
                return not await other.fetch("SELECT FROM waits")

            await eventually(nobody, "the waiting client is notified")

    asyncio.run(test())
