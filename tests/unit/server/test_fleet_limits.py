"""Limits of several nodes on one store: they apply to all together, and no job waits for ever."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.callbacks import awaited
from mainspring.jobs import token_grants
from mainspring.jobs.held import Ability
from mainspring.jobs.model import Job
from mainspring.resources.rules import Limits, Rate

from .test_fleet import Client, Hand, LocalFleet, local_fleet, run, stop_renewal

if TYPE_CHECKING:
    import pytest

    from mainspring.jobs.held import Held
    from mainspring.server.node import Node

SECOND = 1_000_000


async def limit(node: Node, limits: Limits | None, *, paused: bool = False) -> None:
    """Set the limits of the function ``f`` by command."""
    await awaited(
        node.service.functions.change(
            b"f", lambda function, _: msgspec.structs.replace(function, commanded=limits, paused=paused)
        )
    )


async def nodes(fleet: LocalFleet, number: int, limits: Limits) -> list[Node]:
    """Start nodes on a store that has the limits."""
    first = await fleet.node("n1")
    await limit(first, limits)
    return [first, *[await fleet.node(f"n{at}") for at in range(2, number + 1)]]


async def submit(node: Node, *keys: str, payload: bytes = b"") -> list[int]:
    stored: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    jobs = [Job(node.service.table.next_id(), b"f", payload, key=key.encode()) for key in keys]
    node.service.intake.submit(jobs, lambda ids, _: stored.set_result(ids), stored.set_exception)
    return await stored


class Works:
    """Workers at several nodes that run jobs for a time, and records of their runs."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.running: Counter[bytes] = Counter()
        self.most = 0
        self.most_of_a_key = 0
        self.starts: list[tuple[float, str]] = []
        self.done: asyncio.Queue[Held] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    def hand(self, node: Node, places: int = 10) -> Hand:
        works = self

        class Worker(Hand):
            def assign(self, held: Held) -> None:
                task = asyncio.get_running_loop().create_task(works._run(self, held))
                works._tasks.add(task)
                task.add_done_callback(works._tasks.discard)

        return Worker(node, places)

    async def _run(self, hand: Hand, held: Held) -> None:
        self.starts.append((time.monotonic(), hand.node.settings.name))
        self.running[held.job.key] += 1
        self.most = max(self.most, self.running.total())
        self.most_of_a_key = max(self.most_of_a_key, *self.running.values())
        await asyncio.sleep(self.seconds)
        self.running[held.job.key] -= 1
        if await hand.done(held, b""):
            self.done.put_nowait(held)
        hand.node.service.workers.ready(hand.worker, 1)

    async def all(self, number: int) -> None:
        for _ in range(number):
            await self.done.get()


def test_a_concurrency_limit_applies_to_all_nodes_together() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            three = await nodes(fleet, 3, Limits(concurrency=4))
            works = Works(0.01)
            for node in three:
                works.hand(node)
            for node in three:
                await submit(node, *[""] * 40)
            await works.all(120)
            assert works.most == 4

    run(test())


def test_a_concurrency_limit_per_key_applies_to_all_nodes_together() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            two = await nodes(fleet, 2, Limits(concurrency_per_key=1))
            works = Works(0.01)
            for node in two:
                works.hand(node)
            for node in two:
                await submit(node, *["a"] * 8, *[f"k{number}" for number in range(20)])
            await works.all(56)
            assert works.most_of_a_key == 1
            assert works.most > 2, "different keys run beside each other"

    run(test())


def test_no_job_of_a_key_waits_for_time_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs go to the node with their key's tokens, or tokens to the node with free workers; no review or pause is needed."""
    for name in ("MIN_PAUSE_US", "MAX_PAUSE_US", "REVIEW_INTERVAL_US"):
        monkeypatch.setattr(token_grants, name, 3600 * SECOND)
    for name in ("sharing.BACKLOG_INTERVAL", "claiming.STALLED_AFTER"):
        monkeypatch.setattr(f"mainspring.jobs.{name}", 3600.0)

    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await nodes(fleet, 2, Limits(concurrency_per_key=1))
            works = Works(0.005)
            works.hand(first, 2)
            works.hand(second, 2)
            keys = ["k0", "k1", "k2", "k3", "k4"]
            for _ in range(3):
                await submit(first, *keys * 5)
                await submit(second, *keys * 5)
                await works.all(50)  # the first node or the second one still has the unused tokens of some keys
                for key in keys:
                    for node in (first, second):
                        await submit(node, key)
                        await works.all(1)
            assert works.most_of_a_key == 1

    run(test())


def test_unused_tokens_of_a_node_without_a_free_worker_go_to_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_grants, "MIN_PAUSE_US", 3600 * SECOND)
    monkeypatch.setattr(token_grants, "REVIEW_INTERVAL_US", 3600 * SECOND)
    monkeypatch.setattr("mainspring.jobs.sharing.BACKLOG_INTERVAL", 3600.0)

    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await nodes(fleet, 2, Limits(concurrency_per_key=1))
            busy, other = Hand(first), Hand(second, 5)
            await submit(first, "a")
            assert await busy.done(await busy.jobs.get(), b"")
            first.service.workers.ready(busy.worker, 1)
            await submit(first, "b")
            assert (await busy.jobs.get()).job.key == b"b", "the token of a is still here, and no worker is free"
            await submit(second, "a", "a")
            assert (await other.jobs.get()).job.key == b"a"

    run(test())


def test_a_foreground_job_waits_at_its_node_for_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.jobs.claiming.STALLED_AFTER", 3600.0)

    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await nodes(fleet, 2, Limits(concurrency_per_key=1))
            works = Works(0.01)
            works.hand(first, 1)
            works.hand(second, 1)
            await submit(first, *["a"] * 100)
            await works.done.get()
            await Client(second).submit(key=b"a")
            while "n2" not in {name for _, name in works.starts}:
                await works.done.get()
            assert len(works.starts) < 200
            assert works.most == 1

    run(test())


def test_a_rate_applies_to_all_nodes_together() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            two = await nodes(fleet, 2, Limits(rate=Rate(40, SECOND, 10)))
            works = Works(0)
            for node in two:
                works.hand(node)
            began = time.monotonic()
            for node in two:
                await submit(node, *[""] * 25)
            await works.all(50)
            starts = [at for at, _ in works.starts]
            # The bound: rate * T + burst; the burst is at least the number of tokens that a bucket gains until a grant expires.
            for first, begin in enumerate(starts):
                for last in range(first, len(starts)):
                    assert last - first + 1 <= 40 * (starts[last] - begin) + 11.5
            assert starts[-1] - began < 3, "it is used up, more or less"

    run(test())


def test_a_busy_node_leaves_others_their_share() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await nodes(fleet, 2, Limits(concurrency=4))
            works = Works(0.02)
            works.hand(first)
            await submit(first, *[""] * 1000)
            while len(works.starts) < 20:
                await works.done.get()
            began = len(works.starts)
            works.hand(second)
            assert second.service.sharing is not None
            second.service.sharing.look()
            while not any(name == "n2" for _, name in works.starts[began:]):
                await works.done.get()
            since = len(works.starts)
            while len(works.starts) < since + 100:
                await works.done.get()
            share = Counter(name for _, name in works.starts[since:])
            assert min(share.values()) > 20, share
            assert works.most == 4

    run(test())


def test_nodes_use_a_single_token_in_turn() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            two = await nodes(fleet, 2, Limits(concurrency=1))
            works = Works(0.02)
            for node in two:
                works.hand(node)
                await submit(node, *[""] * 150)
            names: set[str] = set()
            while names != {"n1", "n2"}:
                await works.done.get()
                names = {name for _, name in works.starts}
            before = len(works.starts)
            while {name for _, name in works.starts[before:]} != {"n1", "n2"}:
                await works.done.get()
            assert works.most == 1

    run(test())


def test_the_tokens_of_a_dead_node_become_free() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await nodes(fleet, 2, Limits(concurrency=2))
            hand = Hand(first, 5)
            await submit(first, *[""] * 6)
            held = [await hand.jobs.get() for _ in range(2)]
            works = Works(0.01)
            works.hand(second)
            stop_renewal(first)
            await works.all(4)
            assert works.most <= 2
            assert not await hand.done(held[0], b"too late")
            await works.all(2)

    run(test())


def test_unused_tokens_are_released() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            (first,) = await nodes(fleet, 1, Limits(5, 2))
            works = Works(0)
            works.hand(first)
            await submit(first, "a", "b", "c")
            await works.all(3)
            tokens = fleet.content.tables.tokens
            assert tokens
            while any(tokens.values()):  # noqa: ASYNC110 - it is time itself that is waited for
                await asyncio.sleep(0.05)

    run(test())


def test_a_pause_and_a_lowered_limit_apply_at_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.jobs.function_limits.READ_INTERVAL", 0.05)

    async def test() -> None:
        async with local_fleet() as fleet:
            first, second = await nodes(fleet, 2, Limits(concurrency=4))
            works = Works(0.005)
            works.hand(second)
            await limit(first, Limits(concurrency=1))
            while second.service.functions.limits(b"f") != Limits(concurrency=1):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await submit(first, *[""] * 10)
            await works.all(10)
            assert works.most == 1
            await limit(first, None, paused=True)
            while not second.service.functions.limits_of(b"f").paused:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await submit(first, "")
            await limit(first, None)
            await works.all(1)

    run(test())


def test_an_idle_node_requests_no_tokens() -> None:
    async def test() -> None:
        async with local_fleet() as fleet:
            (first,) = await nodes(fleet, 1, Limits(1, 1, Rate(1, SECOND, 1), Rate(1, SECOND, 1)))
            hand = Hand(first, 5)
            first.service.workers.register(hand.worker, b"g", Ability())
            await asyncio.sleep(0.6)  # a few ticks
            assert not any(fleet.content.tables.tokens.values())
            assert not fleet.content.tables.buckets

    run(test())


def test_a_failed_request_for_tokens_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_grants, "MAX_PAUSE_US", 50_000)
    failed: list[Any] = []

    async def test() -> None:
        async with local_fleet() as fleet:
            (first,) = await nodes(fleet, 1, Limits(concurrency=1))
            commit = first.engine.commit

            def fail(group: Any, committed: Any, answer: Any) -> None:
                from mainspring.errors import StoreError
                from mainspring.resources.store import Acquire

                if len(failed) < 2 and any(isinstance(operation, Acquire) for operation in group):
                    failed.append(group)
                    committed(StoreError("not now"))
                else:
                    commit(group, committed, answer)

            monkeypatch.setattr(first.engine, "commit", fail)
            works = Works(0)
            works.hand(first)
            await submit(first, *[""] * 3)
            await works.all(3)
            assert len(failed) == 2

    run(test())
