"""Two nodes fire, end and follow the same schedules at once, each on a connection of its own."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

from mainspring.jobs import store as job_ops
from mainspring.jobs.rules import Event, Settlement
from mainspring.queries.schedules import ListFires
from mainspring.schedules import store as ops
from mainspring.schedules.model import Every, Fire, Overlap, Reason, Schedule

from .a_fleet import Node, ignore, node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.postgres.server import PostgresServer

    from mainspring.jobs.model import Job
    from mainspring.storage.operation import Operation

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
FAILING = 0.1
"""The share of runs that fail."""


class Part:
    """A node's side of the jobs that its groups make."""

    def __init__(self, one: Node) -> None:
        self.next_id = one.new_id
        self.live = Counter[int]()
        self.committed: list[int] = []
        one.engine.followers = self

    def coming(self, job: Job) -> bool:
        self.live[job.id] += 1
        return True

    def stored(self, jobs: Sequence[Job]) -> None:
        self.committed += [job.id for job in jobs]

    def dropped(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.live[job.id] -= 1

    def stop(self, ids: Sequence[int]) -> None:
        raise AssertionError(ids)

    def check(self) -> None:
        """What was heard of jobs is what was committed."""
        assert sorted(job_id for job_id, number in self.live.items() if number) == sorted(self.committed)
        assert set(self.live.values()) <= {0, 1}


async def save(one: Node, *schedules: Schedule, now_us: int = START) -> None:
    changes = [ops.Change("put", schedule.name, 0, schedule) for schedule in schedules]
    (saved,) = await one.group(ops.SaveSchedules(changes, now_us, ignore, ignore))
    assert saved.error is None


async def due(one: Node, now_us: int) -> list[ops.Due]:
    (found,) = await one.group(ops.FindDue(now_us, ignore, ignore))
    return [each for each, _ in found.due]


async def rows(one: Node, name: str) -> list[Fire]:
    (found,) = await one.group(ListFires(name, ignore, ignore, limit=100_000))
    assert isinstance(found, list)
    return list(reversed(found))


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
    """Fire, claim and end whatever there is, in groups of any size, until nothing is left."""
    held: list[Job] = []
    rests = 0
    while rests < 5:
        dues = await due(one, now_us)
        chance.shuffle(dues)
        operations: list[Operation] = []
        if dues:
            operations.append(ops.FireSchedules(dues[: chance.randrange(1, 12)], now_us, ignore, ignore, limit=2))
        size = chance.randrange(1, 30)
        if held:
            events = [Event.FAIL if chance.random() < FAILING else Event.SUCCEED for _ in held[:size]]
            ends = [
                Settlement(job, event, job.attempt + 1, ended_us=now_us)
                for job, event in zip(held[:size], events, strict=True)
            ]
            operations.append(job_ops.Settle(ends, ignore, ignore))
        operations.append(job_ops.Claim(one.term, [job_ops.Want(b"f", size)], ignore, ignore))
        *_, ((*jobs,),) = await one.group(*operations)
        held = held[size:] + jobs
        chance.shuffle(held)
        rests = 0 if len(operations) > 1 or jobs else rests + 1


def test_parents_that_end_on_two_nodes_at_once_start_their_child_once(database: str, postgres: PostgresServer) -> None:
    number, occasions = 12, 20

    async def test() -> None:
        deadlocks = postgres.log().count("deadlock detected")
        async with node(database, "a") as one, node(database, "b") as two:
            parts = [Part(one), Part(two)]
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
            (mended,) = await one.group(ops.MendSchedules(now_us, ignore, ignore))
            assert mended == 0
        assert postgres.log().count("deadlock detected") == deadlocks, "what is sorted does not wait in a circle"

    asyncio.run(test())


def check(found: dict[str, list[Fire]], schedules: Sequence[Schedule], parts: Sequence[Part]) -> None:
    """Look at what became of all occasions: each child ran once where its parents succeeded, and not where they did not."""
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
