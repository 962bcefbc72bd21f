"""Due times follow the store's clock: a node with a wrong clock fires nothing early, and gets the right next time."""

from __future__ import annotations

import asyncio
import time

from mainspring.jobs import store as ops
from mainspring.jobs.model import State

from .a_fleet import Node, node

HOUR = 3600 * 1_000_000


async def wake(one: Node, now_us: int) -> ops.Woken:
    (woken,) = await one.group(ops.Wake(now_us))
    assert isinstance(woken, ops.Woken)
    return woken


def test_a_node_whose_clock_is_ahead_fires_nothing_early(database: str) -> None:
    async def test() -> None:
        async with node(database) as one:
            now_us = round(time.time() * 1_000_000)
            scheduled, expiring = now_us + HOUR // 2, now_us + HOUR // 3
            await one.submitted(state=State.SCHEDULED, due_us=scheduled)
            await one.submitted(expires_us=expiring)
            woken = await wake(one, now_us + HOUR)
            assert (woken.due, woken.expired) == ({}, [])
            # In the time of its own clock, so that it does not wake again at once.
            assert abs(woken.next_us - (expiring + HOUR)) < 60_000_000

    asyncio.run(test())


def test_a_node_whose_clock_is_behind_leaves_it_to_the_others(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two:
            now_us = round(time.time() * 1_000_000)
            await one.submitted(state=State.SCHEDULED, due_us=now_us - 1)
            assert await wake(one, now_us - HOUR) == ({}, [], now_us - 1)
            assert sum((await wake(two, now_us)).due.values()) == 1

    asyncio.run(test())


def test_two_nodes_that_wake_at_once_wake_each_job_once(database: str) -> None:
    async def test() -> None:
        async with node(database) as one, node(database, "n2") as two:
            now_us = round(time.time() * 1_000_000)
            await one.submitted(100, state=State.SCHEDULED, due_us=5)
            await one.submitted(100, state=State.SCHEDULED, due_us=now_us + HOUR, expires_us=5)
            woken = await asyncio.gather(wake(one, now_us), wake(two, now_us))
            assert sum(sum(each.due.values()) for each in woken) == 100
            assert sorted(job.id for each in woken for job, _ in each.expired) == sorted(
                {job.id for each in woken for job, _ in each.expired}
            )
            assert await one.counts() == await two.counts() == {(b"f", 1, 1): 100, (b"f", 7, 1): 100}

    asyncio.run(test())
