"""Two nodes on one PostgreSQL store make and release instances of a managed resource, also when one of them is lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

from mainspring.callbacks import awaited
from mainspring.jobs.held import Ability, Held, Worker
from mainspring.resources.holds import Line, Resource
from mainspring.resources.instance_store import FindInstances
from mainspring.resources.instances import InstanceState
from mainspring.resources.managed import Backoff, Managed
from mainspring.resources.rules import Limits

from .test_holds import open_pair, run, submit

if TYPE_CHECKING:
    from mainspring.server.node import Node

MANAGED = Managed(2, idle_us=2_000_000, backoff=Backoff(3, initial=0.1, maximum=1.0))
RESOURCES = (("s", Resource(managed=MANAGED)),)


class Cloud:
    """The instances that exist, by key, and the jobs that used them."""

    def __init__(self) -> None:
        self.live: set[str] = set()
        self.created: list[str] = []
        self.used: list[str] = []
        self.changed = asyncio.Event()

    async def until(self, *, used: int = 0, created: int = 0) -> None:
        """Wait until so many jobs have used instances, and so many creations were begun."""
        while len(self.used) < used or len(self.created) < created:
            self.changed.clear()
            await self.changed.wait()


class Hand:
    """A worker that uses instances, or does the steps; one that is ``lost`` answers nothing any more."""

    def __init__(self, node: Node, cloud: Cloud, *functions: bytes) -> None:
        self.node, self.cloud = node, cloud
        self.lost = False
        self.worker = Worker(self)
        for function in functions:
            limits = Limits(uses=(Line("s"),)) if function == b"use" else None
            node.service.workers.register(
                self.worker, function, Ability(requeue=False, limits=limits, resources=RESOURCES)
            )
        node.service.workers.ready(self.worker, 10)

    def wake(self) -> None: ...

    def no_job(self) -> None: ...

    def name(self) -> str:
        return "hand"

    def stop(self, held: Held, reason: bytes) -> None: ...

    def assign(self, held: Held) -> None:
        asyncio.get_running_loop().call_soon(self._do, held)

    def _do(self, held: Held) -> None:
        result = b"{}"
        if held.job.function == b"use":
            assert held.slots is not None
            self.cloud.used.append(held.slots.metas[0][2].decode())
            self.cloud.changed.set()
        else:
            order = msgspec.json.decode(held.job.payload)
            if held.job.function == b"s.create":
                self.cloud.live.add(order["key"])
                self.cloud.created.append(order["key"])
                self.cloud.changed.set()
                result = msgspec.json.encode(order["key"])
            else:
                self.cloud.live.discard(order["key"])
        if not self.lost:
            self.node.service.settling.succeeded(held, result, lambda recorded: None)
            self.node.service.workers.ready(self.worker, 1)


async def all_gone(node: Node) -> None:
    """Wait until all instances are released."""
    while True:
        rows = await awaited(node.service.reads.read(FindInstances(("s",))))
        if rows and all(one.state == InstanceState.GONE for one in rows):
            return
        await asyncio.sleep(0.1)


def test_an_instance_is_made_for_a_job_of_the_other_node_and_released_when_it_is_idle(database: str) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            nodes = await open_pair(database, stack)
            cloud = Cloud()
            Hand(nodes[0], cloud, b"use")
            Hand(nodes[1], cloud, b"s.create", b"s.check", b"s.release")
            await submit(nodes[0], b"use", b"1", b"2", b"3")
            await cloud.until(used=3)
            assert 1 <= len(cloud.created) <= MANAGED.most
            assert {msgspec.json.decode(used) for used in cloud.used} <= {*cloud.created}
            await all_gone(nodes[0])
            assert cloud.live == set()
            for node in nodes:
                await node.drain()

    run(test())


def test_a_creation_goes_on_under_its_key_when_its_node_is_lost(database: str) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            first, second = await open_pair(database, stack)
            cloud = Cloud()
            steps = Hand(first, cloud, b"s.create", b"s.check", b"s.release")
            steps.lost = True
            Hand(second, cloud, b"use")
            await submit(second, b"use", b"1")
            await cloud.until(created=1)
            await first.close()
            Hand(second, cloud, b"s.create", b"s.check", b"s.release")
            await cloud.until(used=1)
            assert len(cloud.created) == 2
            assert len({*cloud.created}) == 1, "the same key"
            await all_gone(second)
            assert cloud.live == set()
            await second.drain()

    run(test())
