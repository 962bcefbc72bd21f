"""Two nodes fire, end and follow the same schedules at once, each on a connection of its own."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.suite.paging import everything
from tests.postgres.proxy import Proxy

from mainspring.engines.postgres.claiming import LOWEST, SCAN_SHARE
from mainspring.engines.postgres.connections import SESSION_SETTINGS
from mainspring.engines.postgres.schedules import DueFloor
from mainspring.engines.postgres.transaction import SQL
from mainspring.errors import StoreFencedError
from mainspring.jobs import store as job_ops
from mainspring.jobs.rules import Event, Settlement
from mainspring.queries import ListFires
from mainspring.schedules import store as ops
from mainspring.schedules.model import Every, Fire, Overlap, Reason, Schedule
from mainspring.schedules.service import ScheduleService
from mainspring.server.fleet import SystemClock
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads
from mainspring.turns_of_loop import Timers

from .a_fleet import Node, Part, node, session
from .test_jobs_floors import slow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.postgres.server import PostgresServer

    from mainspring.errors import StoreError
    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Operation

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
FAILING = 0.1
"""The share of runs that fail."""


async def save(one: Node, *schedules: Schedule, now_us: int = START) -> None:
    changes = [ops.Change("put", schedule.name, 0, schedule) for schedule in schedules]
    (saved,) = await one.group(ops.SaveSchedules(changes, now_us))
    assert saved.error is None


async def due(one: Node, now_us: int) -> list[ops.Due]:
    (found,) = await one.group(ops.FindDue(now_us))
    return [each for each, _ in found.due]


async def rows(one: Node, name: str) -> list[Fire]:
    return (await everything(one.engine, ListFires(name, limit=100_000)))[::-1]


def families(number: int) -> list[Schedule]:
    """Children of two parents, whose names are in no order that those of their parents have; and what comes after them."""
    chance = random.Random(number)
    names = [f"{n:02}" for n in range(number)]
    child_of = dict(zip(names, chance.sample(names, number), strict=True))
    schedules = []
    for name in names:
        child = f"child-{child_of[name]}"
        schedules += [
            Schedule(name=f"a-{name}", function=b"f", trigger=Every(SECOND), misfire="all", wait_for_children=True),
            Schedule(name=f"z-{name}", function=b"f", trigger=Every(SECOND), misfire="all"),
            Schedule(name=child, function=b"f", parents=(f"a-{name}", f"z-{name}")),
            Schedule(name=f"last-{name}", function=b"f", parents=(child,), overlap=Overlap.QUEUE),
        ]
    return schedules


async def work(one: Node, chance: random.Random, now_us: int) -> None:
    """Fire schedules, and claim and end jobs, in groups of any size, until none is left."""
    held: list[Job] = []
    rests = 0
    while rests < 5:
        dues = await due(one, now_us)
        chance.shuffle(dues)
        operations: list[Operation] = []
        if dues:
            operations.append(ops.FireSchedules(dues[: chance.randrange(1, 12)], now_us, limit=2))
        size = chance.randrange(1, 30)
        if held:
            events = [Event.FAIL if chance.random() < FAILING else Event.SUCCEED for _ in held[:size]]
            ends = [
                Settlement(job, event, job.attempt + 1, ended_us=now_us)
                for job, event in zip(held[:size], events, strict=True)
            ]
            operations.append(job_ops.Settle(ends))
        operations.append(job_ops.Claim(one.term, [job_ops.ClaimRequest(b"f", size)]))
        *_, ((*jobs,),) = await one.group(*operations)
        held = held[size:] + jobs
        chance.shuffle(held)
        rests = 0 if len(operations) > 1 or jobs else rests + 1


def test_parents_that_end_on_two_nodes_at_once_start_their_child_once(database: str, postgres: PostgresServer) -> None:
    number, occasions = 12, 20

    async def test() -> None:
        deadlocks = postgres.log().count("deadlock detected")
        async with node(database, "a") as one, node(database, "b") as two:
            parts = [one.part, two.part]
            schedules = families(number)
            await save(one, *schedules)
            now_us = START + (occasions - 1) * SECOND
            await asyncio.gather(*(work(each, random.Random(seed), now_us) for seed, each in enumerate((one, two))))
            found = {schedule.name: await rows(one, schedule.name) for schedule in schedules}
            check(found, schedules, parts)
            jobs = [row.job for each in found.values() for row in each if row.job]
            assert sum((await one.counts()).values()) == len(jobs)
            for name, each in found.items():
                assert [row.fire_us for row in each] == [START + at * SECOND for at in range(occasions)], name
            (mended,) = await one.group(ops.RepairSchedules(now_us))
            assert mended == 0
        assert postgres.log().count("deadlock detected") == deadlocks, "sorted locks do not deadlock"

    asyncio.run(test())


def check(found: dict[str, list[Fire]], schedules: Sequence[Schedule], parts: Sequence[Part]) -> None:
    """Check all occasions: a child ran once if its parents succeeded, and not otherwise."""
    for schedule in schedules:
        for at, row in enumerate(found[schedule.name]):
            assert row.finished, row
            parents = [found[name][at].outcome for name in schedule.parents]
            if all(outcome == "succeeded" for outcome in parents):
                assert row.job, row
            else:
                assert (row.reason, row.job) == (Reason.PARENT, 0)
    jobs = [row.job for each in found.values() for row in each if row.job]
    assert len(set(jobs)) == len(jobs)
    assert sorted(jobs) == sorted(job_id for part in parts for job_id in part.committed)
    for part in parts:
        assert part.committed
        part.check()


# ---- services ----


def noted(_: object) -> None:
    pass


class Racer:
    """The schedules service of a node on a real clock, which fires all schedules first."""

    def __init__(self, one: Node) -> None:
        loop = asyncio.get_running_loop()
        self.part = one.part
        self.ended = False
        self.lost = 0
        self._commits = CommitQueue(one.engine, loop.call_soon, loop.call_later)
        self._timers = Timers(lambda at: loop.call_later(max(at - time.monotonic(), 0), self._run))
        self._service = ScheduleService(
            self._commits, Reads(one.engine, loop.call_soon), SystemClock(), self._timers, lambda: self.ended
        )
        self._commits.put = self._put  # type: ignore[method-assign]

    def _put(
        self, operation: Operation, done: Callable[[Any], None] = noted, failed: Callable[[StoreError], None] = noted
    ) -> None:
        done = self._counted(done) if isinstance(operation, ops.FireSchedules) else done
        CommitQueue.put(self._commits, operation, done, failed)

    def _counted(self, done: Callable[[dict[str, ops.Fired]], None]) -> Callable[[dict[str, ops.Fired]], None]:
        def count(outcome: dict[str, ops.Fired]) -> None:
            self.lost += sum(not fired.won for fired in outcome.values())
            done(outcome)

        return count

    def _run(self) -> None:
        self._service.tick()
        self._timers.run(time.monotonic())
        following = self._timers.next()
        if following is not None and not self.ended:
            asyncio.get_running_loop().call_later(max(following - time.monotonic(), 0), self._run)

    async def race(self, until: float) -> None:
        """Fire due schedules until a time of the clock."""
        self._service.fetch()
        while time.time() < until:
            self._run()
            await asyncio.sleep(0.05)
        self.ended = True
        idle = asyncio.Event()
        self._commits.when_idle(idle.set)
        await asyncio.wait_for(idle.wait(), 30)


def test_each_due_time_has_one_row_whichever_of_three_is_first(database: str, postgres: PostgresServer) -> None:
    number, seconds = 10, 3.0

    async def test() -> None:
        deadlocks = postgres.log().count("deadlock detected")
        async with node(database, "a") as one, node(database, "b") as two, node(database, "c") as third:
            racers = [Racer(each) for each in (one, two, third)]
            now_us = round(time.time() * SECOND)
            trigger = Every(SECOND // 5)
            schedules = [Schedule(name=f"s{at}", function=b"f", trigger=trigger) for at in range(number)]
            await save(one, *schedules, now_us=now_us)
            await asyncio.gather(*(racer.race(time.time() + seconds) for racer in racers))
            jobs = []
            for schedule in schedules:
                found = await rows(two, schedule.name)
                first = -(-now_us // trigger.interval_us) * trigger.interval_us
                times = [first + at * trigger.interval_us for at in range(len(found))]
                assert [row.fire_us for row in found] == times, "no fire time is left out"
                assert len(found) >= (seconds - 1) * 5
                jobs += [row.job for row in found if row.job]
            assert sorted(jobs) == sorted(job_id for racer in racers for job_id in racer.part.committed)
            assert sum((await two.counts()).values()) == len(set(jobs)) == len(jobs), "each has a job of its own"
            assert sum(racer.lost for racer in racers) > 0, "no node has lost a race"
        assert postgres.log().count("deadlock detected") == deadlocks

    asyncio.run(test())


# ---- frozen nodes ----


def test_a_frozen_nodes_locks_delay_only_the_schedules_it_was_firing(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, session(database) as frozen:
            part = one.part
            await save(
                one,
                *(Schedule(name=name, function=b"f", trigger=Every(SECOND)) for name in ("a", "b")),
                Schedule(name="q", function=b"f", trigger=Every(SECOND), overlap=Overlap.QUEUE),
            )
            await frozen.execute("BEGIN; SELECT FROM schedules WHERE name = 'a' FOR UPDATE")
            fire = ops.FireSchedules(await due(one, START), START)
            job = one.job(b"g")
            outcome, joined = await asyncio.wait_for(one.group(fire, one.submit(job)), 5)
            assert joined == {}
            assert outcome["a"] == ops.Fired(won=False, stored=None)
            assert outcome["b"].won
            assert outcome["q"].won
            # No node is notified of an undecided time; a node that comes back finds it.
            assert [each.name for each in await due(one, START)] == ["a"]
            await frozen.execute("ROLLBACK")
            (outcome,) = await one.group(ops.FireSchedules(await due(one, START), START))
            assert outcome["a"].won
            part.check()

    asyncio.run(test())


# ---- unknown outcomes ----


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres.port) as one:
        yield one


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_fire_time_whose_commit_has_no_answer_has_one_job(proxy: Proxy, database: str, lost: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as one:
            part = one.part
            await save(one, Schedule(name="a", function=b"f", trigger=Every(SECOND)))
            fire = ops.FireSchedules(await due(one, START), START)
            trap = proxy.lose_answer() if lost == "answer" else proxy.lose_request()
            (outcome,) = await one.group(fire)
            assert trap.has_sprung
            assert outcome["a"].won
            (row,) = await rows(one, "a")
            assert part.committed == [row.job]
            part.check()

    asyncio.run(test())


def test_a_node_fenced_with_an_unknown_outcome_drops_its_jobs(proxy: Proxy, database: str) -> None:
    async def test() -> None:
        async with node(proxy.through(database)) as one, node(database, "b") as two:
            part = one.part
            await save(one, Schedule(name="a", function=b"f", trigger=Every(SECOND)))
            dues = await due(one, START)
            trap = proxy.lose_request()
            group = one.begin(ops.FireSchedules(dues, START))
            await asyncio.to_thread(trap.wait)
            proxy.refuse()
            assert await two.engine.end(one.term)
            proxy.heal()
            with pytest.raises(StoreFencedError):
                await asyncio.wait_for(group, 30)
            assert await rows(two, "a") == []
            assert part.committed == []
            assert set(part.live.values()) == {0}

    asyncio.run(test())


# ---- with an old snapshot open ----


async def due_names(one: Node, now_us: int) -> list[str]:
    return [each.name for each in await due(one, now_us)]


def test_what_is_due_before_the_floor_is_found_by_the_next_whole_scan(database: str) -> None:
    later = START + 100 * SECOND

    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two:
            clock = slow(one)
            await save(one, Schedule(name="late", function=b"f", trigger=Every(SECOND)), now_us=later)
            assert await due_names(one, later) == ["late"]
            await save(two, Schedule(name="other", function=b"f", trigger=Every(SECOND)))
            assert await due_names(two, later) == ["other", "late"]
            assert await due_names(one, later) == ["late"]
            clock.now += SCAN_SHARE * clock.scan
            assert await due_names(one, later) == ["other", "late"]
            assert await due_names(one, later) == ["other", "late"], "the floor is no obstacle to what was there before"
            await save(
                one, Schedule(name="own", function=b"f", trigger=Every(SECOND), start_us=START - SECOND), now_us=1
            )
            assert await due_names(one, later) == ["own", "other", "late"], "a node knows what it has saved"

    asyncio.run(test())


def test_from_the_floor_no_dead_entries_are_passed(database: str) -> None:
    number, times = 100, 40

    async def test() -> None:
        async with node(database) as one, session(database, **SESSION_SETTINGS) as other, session(database) as pin:
            await save(one, *(Schedule(name=f"s{at}", function=b"f", trigger=Every(SECOND)) for at in range(number)))
            await pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM schedules")
            for _ in range(times):
                await other.execute(f"UPDATE schedules SET next_us = next_us + {SECOND}")
            await other.execute("VACUUM ANALYZE schedules")
            now_us = START + times * SECOND

            async def passed(place: int) -> int:
                explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {SQL['due_schedules']}"
                (row,) = await other.fetch(explain, place, now_us, 1000)
                plan = json.loads(row[0])[0]["Plan"]
                return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

            slow(one)
            assert len(await due_names(one, now_us)) == number
            floor = one.engine._writer.memory[DueFloor]  # noqa: SLF001 - what a node remembers shows nowhere else
            dear, cheap = await passed(LOWEST), await passed(floor.place)
            assert cheap < dear / 2, "those of the last ten seconds are looked at, and no others"

    asyncio.run(test())
