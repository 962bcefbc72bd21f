"""Two nodes on one PostgreSQL store: the slots of a resource are shared, and a node that ends lets the other go on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from mainspring.access.audit import ListActs
from mainspring.access.caller import Act
from mainspring.callbacks import awaited
from mainspring.jobs.held import Ability, Held, Worker
from mainspring.jobs.model import Job
from mainspring.resources.hold_store import FindHolds
from mainspring.resources.holds import Line, counted
from mainspring.resources.rules import Limits

from .whole_nodes import open_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.server.node import Node

TOTAL = 3
SMALL = Ability(requeue=False, limits=Limits(uses=(Line("l"),)), resources=(("l", counted(TOTAL)),))
LARGE = Ability(requeue=False, limits=Limits(uses=(Line("l", 3),)), resources=(("l", counted(TOTAL)),))


class Use:
    """The slots in use at all nodes, by what the workers run."""

    def __init__(self) -> None:
        self.units = self.most = 0
        self.ended: list[bytes] = []
        self.numbers: list[int] = []
        self.changed = asyncio.Event()

    async def until(self, condition: Callable[[Use], bool]) -> None:
        """Wait until a condition holds."""
        while not condition(self):
            self.changed.clear()
            await self.changed.wait()


class Hand:
    """A streaming worker that runs each job for some time."""

    def __init__(self, node: Node, use: Use, seconds: float) -> None:
        self.node, self.use, self.seconds = node, use, seconds
        self.tasks: set[asyncio.Task[None]] = set()
        self.stopped: list[tuple[bytes, bytes]] = []
        self.worker = Worker(self)
        node.service.workers.register(self.worker, b"small", SMALL)
        node.service.workers.register(self.worker, b"large", LARGE)
        node.service.workers.ready(self.worker, 6)

    def wake(self) -> None: ...

    def no_job(self) -> None: ...

    def name(self) -> str:
        return "hand"

    def stop(self, held: Held, reason: bytes) -> None:
        self.stopped.append((held.job.payload, reason))
        self.use.changed.set()

    def assign(self, held: Held) -> None:
        task = asyncio.get_running_loop().create_task(self._run(held))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, held: Held) -> None:
        assert held.slots is not None
        assert held.slots.holds is not None
        units = sum(hold.units for hold in held.slots.holds)
        self.use.numbers += [hold.number for hold in held.slots.holds]
        self.use.units += units
        self.use.most = max(self.use.most, self.use.units)
        self.use.changed.set()
        await asyncio.sleep(self.seconds)
        self.use.units -= units
        self.use.ended.append(held.job.payload)
        self.use.changed.set()
        self.node.service.settling.succeeded(held, b"", lambda recorded: None)
        self.node.service.workers.ready(self.worker, 1)


async def open_pair(database: str, stack: AsyncExitStack) -> list[Node]:
    """Open two nodes."""
    nodes = []
    for name in ("n1", "n2"):
        node = await open_whole(database, name, stack)
        nodes.append(node)
    return nodes


async def submit(node: Node, function: bytes, *payloads: bytes) -> None:
    """Submit jobs."""
    jobs = [Job(node.service.table.next_id(), function, payload) for payload in payloads]
    now_us = round(node.service.clock.wall() * 1e6)
    for job in jobs:
        job.created_us = now_us
    stored: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    node.service.intake.submit(jobs, lambda ids, _: stored.set_result(ids), stored.set_exception)
    await stored


def run(test: Coroutine[None, None, None]) -> None:
    """Run a test within a minute."""

    async def in_time() -> None:
        async with asyncio.timeout(60):
            await test

    asyncio.run(in_time())


def test_two_nodes_share_the_slots_and_keep_the_order(database: str) -> None:
    async def test() -> None:
        use = Use()
        async with AsyncExitStack() as stack:
            nodes = await open_pair(database, stack)
            hands = [Hand(node, use, 0.02) for node in nodes]
            await submit(nodes[0], b"small", *(b"s%d" % number for number in range(20)))
            await submit(nodes[1], b"large", b"large")
            await submit(nodes[1], b"small", *(b"s%d" % number for number in range(20, 60)))
            await use.until(lambda use: len(use.ended) == 61)
            for hand in hands:
                await asyncio.gather(*hand.tasks)
            assert use.most == TOTAL
            assert use.ended.index(b"large") < 40, "later small ones waited for it"
            assert len({*use.numbers}) == len(use.numbers)
            for node in nodes:
                await node.drain()

    run(test())


def test_the_other_node_goes_on_when_one_leaves(database: str) -> None:
    async def test() -> None:
        use = Use()
        async with AsyncExitStack() as stack:
            first, second = await open_pair(database, stack)
            slow = Hand(first, use, 3600.0)
            await submit(first, b"small", b"1", b"2", b"3")
            await use.until(lambda use: use.units == TOTAL)
            other = Hand(second, use, 0.0)
            await submit(second, b"small", b"4")
            for task in list(slow.tasks):
                task.cancel()
            use.units = 0
            await first.close()
            await use.until(lambda use: len(use.ended) >= 1)
            await asyncio.gather(*other.tasks)
            await use.until(lambda use: len(use.ended) >= 4)
            assert {*use.ended} == {b"1", b"2", b"3", b"4"}
            await second.drain()
            (shown,) = await awaited(second.service.reads.read(FindHolds(("l",), 0)))
            assert shown.holds == ()

    run(test())


def test_slots_of_a_job_of_another_node_are_taken_away(database: str) -> None:
    async def test() -> None:
        use = Use()
        async with AsyncExitStack() as stack:
            first, second = await open_pair(database, stack)
            slow = Hand(first, use, 3600.0)
            await submit(first, b"large", b"1")
            await use.until(lambda use: use.units == TOTAL)
            for task in list(slow.tasks):
                task.cancel()
            use.units = 0
            other = Hand(second, use, 0.0)
            await submit(second, b"large", b"2")
            (shown,) = await awaited(second.service.reads.read(FindHolds(("l",), 0)))
            act = Act("resources.take", "ann", "l")
            await awaited(second.service.lost_slots.take(shown.holds[0], act, cancel=True))
            await use.until(lambda use: use.ended == [b"2"])
            assert slow.stopped == [(b"1", b"lost")]
            assert use.numbers == [1, 2]
            page = await awaited(second.service.reads.read(ListActs(limit=10)))
            assert [one.act for one in page.items] == [act]
            await asyncio.gather(*other.tasks)
            for node in (first, second):
                await node.drain()

    run(test())
