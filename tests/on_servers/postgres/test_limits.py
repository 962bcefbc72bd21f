"""Two nodes on one PostgreSQL store: limits, also of keys, hold for both together."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

from mainspring.callbacks import awaited
from mainspring.jobs.held import Ability, Held, Worker
from mainspring.jobs.model import Job
from mainspring.resources.rules import Limits, Rate

from .whole_nodes import open_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.server.node import Node


class Hand:
    """A streaming worker of the function ``f`` that runs each job for some time."""

    def __init__(self, node: Node, seconds: float, running: dict[bytes, int], seen: Callable[[], None]) -> None:
        self.node, self.seconds, self.running, self.seen = node, seconds, running, seen
        self.tasks: set[asyncio.Task[None]] = set()
        self.worker = Worker(self)
        node.service.workers.register(self.worker, b"f", Ability())
        node.service.workers.ready(self.worker, 10)

    def wake(self) -> None: ...

    def no_job(self) -> None: ...

    def name(self) -> str:
        return "hand"

    def stop(self, held: Held, reason: bytes) -> None:
        raise AssertionError(f"{held.handle!r} is to be stopped: {reason!r}")

    def assign(self, held: Held) -> None:
        task = asyncio.get_running_loop().create_task(self._run(held))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, held: Held) -> None:
        key = held.job.key
        self.running[key] = self.running.get(key, 0) + 1
        self.seen()
        await asyncio.sleep(self.seconds)
        self.running[key] -= 1
        self.node.service.settling.succeeded(held, b"", lambda recorded: None)
        self.node.service.workers.ready(self.worker, 1)


class Pair:
    """Two nodes with a worker each, and the observed runs of their jobs."""

    def __init__(self) -> None:
        self.running: dict[bytes, int] = {}
        self.most = self.most_of_a_key = 0
        self.starts: list[float] = []
        self.changed = asyncio.Event()

    def see(self) -> None:
        self.most = max(self.most, sum(self.running.values()))
        self.most_of_a_key = max(self.most_of_a_key, *self.running.values())
        self.starts.append(time.monotonic())
        self.changed.set()

    async def started(self, number: int) -> None:
        while len(self.starts) < number or any(self.running.values()):
            self.changed.clear()
            await asyncio.sleep(0.01)


def run(database: str, limits: Limits, keys: list[str], seconds: float) -> Pair:
    """Run jobs with these keys, submitted at both nodes."""

    async def test() -> Pair:
        pair = Pair()
        async with AsyncExitStack() as stack:
            nodes = []
            for name in ("n1", "n2"):
                node = await open_whole(database, name, stack)
                nodes.append(node)
                if name == "n1":
                    await _limit(node, limits)
            hands = [Hand(node, seconds, pair.running, pair.see) for node in nodes]
            for at, node in enumerate(nodes):
                jobs = [Job(node.service.table.next_id(), b"f", b"", key=key.encode()) for key in keys[at::2]]
                stored: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
                node.service.intake.submit(jobs, lambda ids, _, to=stored: to.set_result(ids), stored.set_exception)  # type: ignore[misc]
                await stored
            await pair.started(len(keys))
            for hand in hands:
                await asyncio.gather(*hand.tasks)
            for node in nodes:
                await node.drain()
        return pair

    return asyncio.run(_in_time(test()))


async def _in_time(work: Coroutine[None, None, Pair]) -> Pair:
    return await asyncio.wait_for(work, 60)


async def _limit(node: Node, limits: Limits) -> None:
    await awaited(
        node.service.functions.change(b"f", lambda limited, _: msgspec.structs.replace(limited, commanded=limits))
    )


def test_no_more_run_at_once_than_the_limit(database: str) -> None:
    pair = run(database, Limits(concurrency=3), [""] * 120, 0.005)
    assert pair.most == 3
    assert len(pair.starts) == 120


def test_no_more_of_a_key_run_at_once_than_the_limit(database: str) -> None:
    keys = ["hot"] * 20 + [f"k{number % 15}" for number in range(60)]
    pair = run(database, Limits(concurrency_per_key=1), keys, 0.005)
    assert pair.most_of_a_key == 1
    assert pair.most > 1
    assert len(pair.starts) == 80


def test_a_rate_is_kept(database: str) -> None:
    pair = run(database, Limits(rate=Rate(50, 1_000_000, 20)), [""] * 80, 0)
    starts = pair.starts
    for first, begin in enumerate(starts):
        for last in range(first, len(starts)):
            assert last - first + 1 <= 50 * (starts[last] - begin + 0.1) + 20
    assert starts[-1] - starts[0] < 5
