"""The node's part in work that runs elsewhere: how timeouts, workers and looks change it, and who sees what."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.unit.api.a_node import Node, Side, Store, opened, run

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.handlers.jobs import JobCalls
from mainspring.api.handlers.registry import Api
from mainspring.api.jobs import JobWork, ShowJob
from mainspring.engines.memory.external import MemoryWorkSlice
from mainspring.external.service import IDLE_INTERVAL, LOOK_INTERVAL, Begun, WorkService
from mainspring.external.store import Status
from mainspring.jobs.held import Ability, Held, Worker
from mainspring.jobs.rules import WORKER_LOST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Watching:
    """A node, and a worker that watches the jobs of ``f``."""

    def __init__(self, node: Node, store: Store, ability: Ability) -> None:
        self.node = node
        self.store = store
        keys = iter(f"k{number}" for number in range(1, 100))
        self.works = WorkService(node.commits, node.reads, node.clock, node.service, new_key=lambda: next(keys))
        calls = JobCalls(node.service, None, self.works)
        self.api = Api(calls.handlers)
        self.api.add_objects(calls.objects)
        self.ability = ability
        self.worker = self.connect()

    def connect(self) -> Worker:
        worker = Worker(Side())
        worker.streams = True
        self.node.service.workers.register(worker, b"f", self.ability)
        self.node.service.workers.ready(worker, 1)
        return worker

    async def assigned(self) -> Held:
        """Return the job that the worker has."""
        await self.node.committed()
        (held,) = self.worker.running.values()
        return held

    async def begin(self, held: Held) -> Begun:
        found: list[Begun | None] = []
        self.works.begin([held], found.extend, lambda _: None)
        await self.node.committed()
        assert found[0] is not None
        return found[0]

    async def submitted(self) -> Held:
        """Return a job whose work is submitted."""
        await self.node.submit()
        held = await self.assigned()
        begun = await self.begin(held)
        self.works.record([(held, begun.number, '{"id":"x"}')], lambda _: None, lambda _: None)
        await self.node.committed()
        return held

    def statuses(self) -> list[tuple[int, Status]]:
        return [(number, Status(work.status)) for (_, number), work in sorted(self.store.tables.works.items())]


@asynccontextmanager
async def watching(ability: Ability | None = None) -> AsyncIterator[Watching]:
    store = Store([MemoryWorkSlice()])
    async with opened(store) as node:
        yield Watching(node, store, ability or Ability(elsewhere="cancel"))


@pytest.mark.parametrize(("on_timeout", "status"), [("cancel", Status.CANCEL), ("leave", Status.OVER)])
def test_a_timeout_ends_the_work_as_its_function_says(on_timeout: str, status: Status) -> None:
    async def test() -> None:
        async with watching(Ability(timeout=5.0, requeue=True, elsewhere=on_timeout)) as node:
            held = await node.submitted()
            node.node.clock.advance(5.1)
            node.node.service.tick()
            await node.node.committed()
            assert node.statuses() == [(1, status)]
            node.node.service.workers.ready(node.worker, 1)
            assert (await node.assigned()).job.id == held.job.id
            begun = await node.begin(await node.assigned())
            assert (begun.key, begun.meta, begun.age) == ("k2", "", 0.0)

    run(test())


def test_another_worker_goes_on_within_the_same_time() -> None:
    async def test() -> None:
        async with watching(Ability(timeout=5.0, requeue=True, elsewhere="cancel")) as node:
            await node.submitted()
            node.node.clock.advance(3)
            node.node.service.workers.gone(node.worker)
            await node.node.committed()
            node.worker = node.connect()
            held = await node.assigned()
            begun = await node.begin(held)
            assert (begun.key, begun.meta, begun.age) == ("k1", '{"id":"x"}', 3.0)
            assert (held.job.attempt, held.job.suspects) == (0, WORKER_LOST)
            node.node.clock.advance(1.9)
            node.node.service.tick()
            assert node.worker.running
            node.node.clock.advance(0.2)
            node.node.service.tick()
            assert not node.worker.running

    run(test())


def test_a_delivery_that_has_ended_begins_nothing() -> None:
    async def test() -> None:
        async with watching() as node:
            await node.node.submit()
            held = await node.assigned()
            node.node.service.settling.released(held)
            found: list[Begun | None] = []
            node.works.begin([held, None], found.extend, lambda _: None)
            await node.node.committed()
            assert found == [None, None]
            assert node.statuses() == []

    run(test())


def test_a_node_looks_often_while_there_is_work() -> None:
    async def test() -> None:
        async with watching() as node:
            looks = 0

            def look() -> None:
                nonlocal looks
                looks += 1

            node.works.look = look  # type: ignore[method-assign]
            for _ in range(20):
                node.works.tick()
                node.node.clock.advance(IDLE_INTERVAL / 10)
            assert looks == 2, "at the start, and later"
            await node.submitted()
            node.node.clock.advance(LOOK_INTERVAL)
            node.works.tick()
            assert looks == 3

    run(test())


def test_answers_of_other_systems_need_the_right_to_payloads() -> None:
    async def test() -> None:
        async with watching() as node:
            held = await node.submitted()
            assert held.elsewhere is not None
            node.node.clock.advance(1)
            held.elsewhere.looked_at = node.node.clock.monotonic()
            held.elsewhere.problem = "away"
            handle = held.handle.decode()

            async def shown(*, payloads: bool) -> JobWork:
                caller = Caller("c", (Grant(Role.VIEWER, payloads=payloads),))
                details = await node.api.call(ShowJob(handle), caller=caller)
                assert details.works is not None
                (work,) = details.works
                return work

            work = await shown(payloads=True)
            assert (work.state, work.key, work.submitted, work.meta, work.problem) == (
                "open",
                "k1",
                True,
                {"id": "x"},
                "away",
            )
            assert work.looked_at is not None
            hidden = await shown(payloads=False)
            assert (hidden.meta, hidden.submitted, hidden.key) == (None, True, "k1")

    run(test())
