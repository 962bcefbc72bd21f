"""Tasks become pending in time, and expire in time."""

from __future__ import annotations

import asyncio
import time

from mainspring.engines.zookeeper import paths
from mainspring.jobs.model import State

from .a_master import eventually, fleet, run


def _us(seconds: float) -> int:
    return round((time.time() + seconds) * 1_000_000)


def test_a_delayed_task_is_woken_in_time_and_assigned() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            master = await nodes.master()
            node = await nodes.join("n2")
            assert await node.claim() == []
            late = await node.submitted(state=State.SCHEDULED, due_us=_us(3600))
            reads = master.tree.reads
            due_us = _us(0.3)
            soon = await node.submitted(state=State.SCHEDULED, due_us=due_us)
            await eventually(lambda: node.master.claims.waiting == 1)
            assert 0 <= _us(0) - due_us < 500_000
            (claimed,) = await node.claim()
            assert claimed.id == soon.id
            assert master.tree.reads - reads < 60
            assert await node.state(late.id) is State.SCHEDULED

    run(check())


def test_a_quiet_tree_is_not_read() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            master = await nodes.master()
            node = await nodes.join("n2")
            await node.submitted(state=State.SCHEDULED, due_us=_us(3600))
            await asyncio.sleep(0.3)
            reads = master.tree.reads
            await asyncio.sleep(0.3)
            assert master.tree.reads == reads

    run(check())


def test_an_unclaimed_task_expires() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            await nodes.master()
            node = await nodes.join("n2")
            job = await node.submitted(expires_us=_us(0.1))
            await eventually(lambda: nodes.state(job, "n2") is State.EXPIRED)
            assert nodes.tasks(paths.PENDING) == nodes.tasks(paths.NAMES) == []
            assert await node.counts() == {(b"f", State.EXPIRED, 1): 1}

    run(check())
