"""Three nodes with random operations on schedules: the content stays consistent."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.zookeeper.memory import Fate

from mainspring.jobs import store as job_ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event
from mainspring.schedules import store as ops
from mainspring.schedules.model import Overlap

from .a_schedule import MINUTE, START, Scheduler, schedulers
from .a_session import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

ROUNDS = 12
FAMILY = ("a", "b", "c", "d")
NAMES = (*FAMILY, "q", "r", "u", "x")


async def plan(a: Scheduler) -> None:
    """Add schedules of all kinds."""
    await a.add("a", overlap=Overlap.QUEUE, wait_for_children=True)
    await a.add("b", parents=("a",), overlap=Overlap.QUEUE)
    await a.add("c", parents=("a",), overlap=Overlap.FORBID)
    await a.add("d", parents=("b", "c"), overlap=Overlap.QUEUE, wait_for_children=True)
    await a.add("q", overlap=Overlap.QUEUE, unique=b"q")
    await a.add("r", overlap=Overlap.REPLACE)
    await a.add("u", unique=b"u")
    await a.add("x", overlap=Overlap.FORBID, expires=90.0)


async def ends(nodes: Sequence[Scheduler], rng: Random, portion: float) -> list[Awaitable[Any]]:
    """Claim some pending jobs, and return the settlements of them."""
    found: dict[int, list[Any]] = {}
    for job in await nodes[0].node.listed():
        if job.state == State.PENDING and rng.random() < portion:
            place = rng.randrange(len(nodes))
            held = await nodes[0].node.assign_to(job, nodes[place].node)
            nodes[0].node.session.assignments.pop(job.id, None)
            event = Event.SUCCEED if rng.random() < 0.8 else Event.FAIL
            found.setdefault(place, []).append(nodes[place].settlement(held, event))
    return [nodes[place].ask(job_ops.Settle(some)) for place, some in found.items()]


@pytest.mark.parametrize("seed", range(6))
def test_concurrent_operations_of_three_nodes_stay_consistent(seed: int) -> None:
    rng = Random(seed)

    async def step() -> None:
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)

    def lose(_: object) -> Fate | None:
        return rng.choice(list(Fate)) if rng.random() < 0.02 else None

    async def play() -> None:
        async with schedulers("n1", "n2", "n3") as nodes:
            a = nodes[0]
            await plan(a)
            a.node.tree.content.step = step
            for minute in range(ROUNDS):
                for node in nodes:
                    node.now_us = START + minute * MINUTE
                doing: list[Awaitable[Any]] = await ends(nodes, rng, 0.6)
                doing += [node.ask(await node.firing()) for node in nodes if rng.random() < 0.8]
                doing += [node.mend() for node in nodes if rng.random() < 0.3]
                if rng.random() < 0.3:
                    name = rng.choice(["q", "u", "b"])
                    doing.append(a.ask(ops.TriggerSchedule(name, a.now_us + rng.randrange(5))))
                if rng.random() < 0.3:
                    kind = rng.choice(["pause", "resume"])
                    doing.append(nodes[1].save(ops.Change(kind, rng.choice("qu"))))  # type: ignore[arg-type]
                for node in nodes:
                    node.node.tree.before = lose
                rng.shuffle(doing)
                await asyncio.gather(*doing)
                for node in nodes:
                    node.node.tree.before = None
                await a.check(*nodes[1:])
                # A task has at most one unpublished end: the next one waits for a master.
                await a.publish()
            await finish(nodes, rng)

    async def finish(nodes: Sequence[Scheduler], rng: Random) -> None:
        a = nodes[0]
        for name in "qu":
            await a.save(ops.Change("resume", name))
        for _ in range(200):
            await a.ask(job_ops.Wake(a.now_us + MINUTE))
            await a.publish()
            doing = await ends(nodes, rng, 1.0)
            await asyncio.gather(*doing)
            if not await a.mend() and not doing:
                break
        await a.check(*nodes[1:])
        rows = {name: await a.rows(name) for name in NAMES}
        assert [row for name in NAMES for row in rows[name] if not row.finished] == []
        for name in FAMILY[1:]:
            assert {row.fire_us for row in rows["a"]} <= {row.fire_us for row in rows[name]}

    run(play())
