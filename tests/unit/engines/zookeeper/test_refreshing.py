"""No event is the only way to a change: with lost events, each step of a task still happens within a lease."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from tests.simulation.zookeeper.loop import VirtualLoop
from tests.zookeeper.memory import MemoryContent, MemoryTree

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.engine import ZookeeperEngine
from mainspring.engines.zookeeper.tree import STEPS, Create, RefreshedTree, Write
from mainspring.events import Pending, Settled
from mainspring.ids import NodeId, job_ids
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State
from mainspring.jobs.rules import succeeded
from mainspring.storage.engine import DEFERRED

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.events import Message
    from mainspring.storage.engine import Operation

LEASE = 15.0
OTHER = 4.0
"""Seconds of a step that are not due to a lost event: claims, hints and pauses between lists."""
START_US = 1_700_000_000_000_000


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run with virtual time."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(asyncio.wait_for(work, 3600))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def now() -> float:
    return asyncio.get_running_loop().time()


# ---- the registry


def refreshed(content: MemoryContent, *, loses: bool) -> RefreshedTree:
    tree = MemoryTree(content, session_timeout=LEASE)
    tree.loses = lambda _: loses
    return RefreshedTree(tree)


def test_each_watch_is_called_within_the_interval_and_not_all_at_once() -> None:
    async def check() -> None:
        content = MemoryContent()
        tree = refreshed(content, loses=True)
        await tree.open()
        await tree.commit([Create(f"/{number}") for number in range(200)])
        called: dict[str, float] = {}

        def watch(name: str) -> Callable[[], None]:
            return lambda: called.update({name: now()})

        began = now()
        for number in range(200):
            await tree.get(f"/{number}", watch(f"data {number}"))
            await tree.children(f"/{number}", watch(f"children {number}"))
        await tree.get("/missing", watch("missing"))
        await tree.children("/missing", watch("children of missing"))
        await tree.commit([Write(f"/{number}", b"new") for number in range(200)])
        await asyncio.sleep(LEASE)
        assert len(called) == 402
        assert max(called.values()) < began + LEASE
        steps = Counter(round((at - began) / LEASE * STEPS) for at in called.values())
        assert max(steps.values()) < 100, "they are spread"
        await tree.close()

    run(check())


def test_a_watch_is_called_once_also_with_its_event_and_repeated_reads() -> None:
    async def check() -> None:
        content = MemoryContent()
        tree = refreshed(content, loses=False)
        await tree.open()
        called = 0

        def watch() -> None:
            nonlocal called
            called += 1

        for _ in range(3):
            await tree.get("/a", watch)
        await tree.commit([Create("/a")])
        await asyncio.sleep(3 * LEASE)
        assert called == 1
        await tree.get("/a", watch)
        await asyncio.sleep(3 * LEASE)
        await tree.commit([Write("/a", b"")])
        await asyncio.sleep(1)
        assert called == 2, "a refreshed watch that nobody has set again is gone"
        await tree.close()

    run(check())


def test_a_watch_that_fails_holds_up_no_other() -> None:
    async def check() -> None:
        tree = refreshed(MemoryContent(), loses=True)
        await tree.open()
        called = asyncio.Event()

        def fail() -> None:
            raise KeyError("x")

        await tree.get("/a", fail)
        await tree.get("/a", called.set)
        with structlog.testing.capture_logs() as logs:
            await asyncio.wait_for(called.wait(), LEASE)
        assert [line["path"] for line in logs] == ["/a"]
        await tree.close()

    run(check())


# ---- the engine


class Worker:
    """A node whose worker takes all tasks of a function, or which only submits."""

    def __init__(self, content: MemoryContent, name: str, loses: Callable[[str], bool]) -> None:
        self.tree = MemoryTree(content, session_timeout=LEASE)
        self.tree.loses = loses
        self.name = NodeId(name)
        self.works = False
        self.settled: set[int] = set()
        """Jobs whose ends were reported to it."""
        self.engine = ZookeeperEngine(lambda: self.tree, lease=LEASE)
        self.engine.listen(self._receive)
        self._claim_now = asyncio.Event()
        self._groups = asyncio.Lock()

    async def open(self) -> None:
        opened = await self.engine.open(self.name, asyncio.get_running_loop().call_soon)
        self.term = opened.term
        self.new_id = job_ids(self.term)
        self._working = asyncio.create_task(self._work())

    async def close(self) -> None:
        self._working.cancel()
        await asyncio.gather(self._working, return_exceptions=True)
        await self.engine.close()

    async def put(self, operation: Operation) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        late: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answer(_: int, outcome: Any) -> None:
            if not late.done():  # the test has ended
                late.set_result(outcome)

        async with self._groups:
            self.engine.commit([operation], done.set_result, answer)
            (outcome,) = await done
        return await late if outcome is DEFERRED else outcome

    async def submit(self, **fields: Any) -> Job:
        now_us = START_US + round(now() * 1_000_000)
        job = Job(self.new_id(), b"f", b"p", created_us=now_us, **fields)
        await self.put(ops.Submit([job], self.term))
        return job

    def work(self) -> None:
        self.works = True
        self._claim_now.set()

    def _receive(self, message: Message) -> None:
        if isinstance(message, Settled):
            self.settled.update(message.ids)
        elif isinstance(message, Pending) and self.works:
            self._claim_now.set()

    async def _work(self) -> None:
        while True:
            await self._claim_now.wait()
            self._claim_now.clear()
            (jobs,) = await self.put(ops.Claim(self.term, [ops.ClaimRequest(b"f", 10)]))
            at_us = START_US + round(now() * 1_000_000)
            for job in jobs:
                await self.put(ops.Settle([succeeded(job, b"r", at_us, at_us)]))
            if jobs:
                self._claim_now.set()


class Fleet:
    """The master, a node with a worker, and a node with clients."""

    def __init__(self, lost: str) -> None:
        """Events of paths that begin with ``lost`` are lost."""
        self.content = MemoryContent(now_us=lambda: START_US + round(now() * 1_000_000))
        self.master, self.worker, self.client = (
            Worker(self.content, name, lambda path: path.startswith(lost)) for name in ("n1", "n2", "n3")
        )

    async def open(self) -> None:
        for node in (self.master, self.worker, self.client):
            await node.open()
            await asyncio.sleep(3.0)
        await asyncio.sleep(2 * LEASE)
        assert self.leader() == "n1"

    async def close(self) -> None:
        for node in (self.master, self.worker, self.client):
            await node.close()

    def leader(self) -> str:
        node = self.content.read(paths.MASTER)
        return "" if node is None else str(records.decode(node.data)["worker"]).rpartition("-")[0]

    def is_published(self, job: Job) -> bool:
        node = self.content.read(paths.result(job.id, "n3"))
        return node is not None and "state" in records.decode(node.data)


async def within(seconds: float, true: Callable[[], bool]) -> None:
    until = now() + seconds
    while not true():
        assert now() < until
        await asyncio.sleep(0.01)


ONE = [paths.QUEUES, paths.WANTS, paths.PENDING, paths.COMPLETED, paths.DELAYED, paths.MAIL]


@pytest.mark.parametrize(("lost", "steps"), [*((root, 1) for root in ONE), ("/", 6), ("none", 0)])
def test_a_task_ends_although_events_are_lost(lost: str, steps: int) -> None:
    async def check() -> None:
        fleet = Fleet(lost)
        await fleet.open()
        fleet.worker.work()
        await asyncio.sleep(5.0)
        for delay in (0.0, 1.0):
            due_us = START_US + round((now() + delay) * 1_000_000) if delay else 0
            state = int(State.SCHEDULED if delay else State.PENDING)
            job = await fleet.client.submit(due_us=due_us, state=state)
            await within(delay + steps * LEASE + OTHER, lambda job=job: fleet.is_published(job))  # type: ignore[misc]
            await within(min(steps, 1) * LEASE + OTHER, lambda job=job: job.id in fleet.client.settled)  # type: ignore[misc]
        await fleet.close()

    run(check())


@pytest.mark.parametrize("lost", [paths.MASTER, paths.WORKERS, "/"])
def test_a_master_is_followed_although_events_are_lost(lost: str) -> None:
    async def check() -> None:
        fleet = Fleet(lost)
        await fleet.open()
        fleet.worker.work()
        await fleet.master.close()
        await within(LEASE + OTHER, lambda: fleet.leader() not in {"", "n1"})
        job = await fleet.client.submit()
        await within(6 * LEASE + OTHER, lambda: fleet.is_published(job))
        await fleet.close()

    run(check())


@pytest.mark.parametrize("lost", [paths.WORKERS, paths.DRAINING, "/"])
def test_a_node_that_joins_or_drains_is_noticed_although_events_are_lost(lost: str) -> None:
    async def check() -> None:
        fleet = Fleet(lost)
        await fleet.open()
        another = Worker(fleet.content, "n4", lambda path: path.startswith(lost))
        await another.open()
        another.work()
        first = await fleet.client.submit()
        await within(6 * LEASE + OTHER, lambda: fleet.is_published(first))
        await fleet.client.engine.ask_to_drain(another.term)
        await asyncio.sleep(LEASE)
        second = await fleet.client.submit()
        await asyncio.sleep(6 * LEASE)
        assert not fleet.is_published(second), "nobody else works"
        await fleet.client.engine.ask_to_drain(another.term, draining=False)
        await within(6 * LEASE + OTHER, lambda: fleet.is_published(second))
        await another.close()
        await fleet.close()

    run(check())


def test_an_idle_fleet_reads_each_quiet_place_twice_in_a_lease_at_most() -> None:
    async def check() -> None:
        fleet = Fleet("none")
        await fleet.open()
        nodes = fleet.master, fleet.worker, fleet.client
        before = [node.tree.reads for node in nodes]
        commits = fleet.content.commits
        await asyncio.sleep(10 * LEASE)
        master, *others = (node.tree.reads - reads for node, reads in zip(nodes, before, strict=True))
        assert 10 * 2 * len(paths.BUCKETS) < master < 2 * 10 * (2 * len(paths.BUCKETS) + 30)
        assert max(others) < 2 * 10 * 5, "a node that is not the master watches its queue, its mail and the master"
        assert fleet.content.commits == commits
        await fleet.close()

    run(check())
