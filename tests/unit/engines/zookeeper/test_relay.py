"""What nodes tell each other comes in its order: nobody hears of a job's end before what was said of it until then."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mainspring.engines.zookeeper import handlers, paths
from mainspring.engines.zookeeper.relay import Relay
from mainspring.events.relay import Progress, Settled
from mainspring.jobs import store as ops
from mainspring.jobs.rules import Event, Settlement

from .a_session import NOW, fleet, ignore, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mainspring.events.relay import Message

    from .a_session import Node


class Ear:
    """What a node has heard."""

    def __init__(self, node: Node) -> None:
        self.heard: list[Message] = []
        self._news = asyncio.Event()
        self.relay = Relay(node.tree, node.session.who, node.session.whose, self)

    def __call__(self, message: Message) -> None:
        self.heard.append(message)
        self._news.set()

    async def hears(self, number: int) -> list[Message]:
        """Wait until so many messages were heard."""
        while len(self.heard) < number:
            self._news.clear()
            await self._news.wait()
        return self.heard


@asynccontextmanager
async def running(*ears: Ear) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(ear.relay.run()) for ear in ears]
    try:
        await asyncio.sleep(0)  # a task that has not begun is cancelled without a trace
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_what_a_node_tells_itself_comes_behind_the_letters_that_were_there() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            here, there = Ear(one), Ear(two)
            word = Progress(7, "data", b"half")
            async with running(there):
                there.relay.send(one.session.term, word)
                await there.relay.told()
            async with running(here):
                here.relay.send(one.session.term, Settled([7]))
                assert await here.hears(2) == [word, Settled([7])]

    run(check())


def test_progress_is_told_once_it_is_in_its_box() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            there = Ear(two)
            box = paths.mail(one.session.who)
            there.relay.send(one.session.term, Settled([1]))
            await asyncio.wait_for(there.relay.told(), 1)
            there.relay.send(one.session.term, Progress(7, "data", b"half"))
            waiting = asyncio.ensure_future(there.relay.told())
            await asyncio.sleep(0)
            assert not waiting.done()
            async with running(there):
                await waiting
                assert await one.tree.children(box)

    run(check())


def test_nobody_waits_for_a_relay_that_has_ended() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            ear = Ear(two)
            async with running(ear):
                ear.relay.send(one.session.term, Progress(7, "data", b"half"))
            await ear.relay.told()
            ear.relay.send(one.session.term, Progress(7, "data", b"more"))
            await ear.relay.told()

    run(check())


def test_a_settlement_waits_for_what_was_said_of_the_job() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            job = await two.held()
            await one.one(ops.Wait(one.session.term, [job.id], ignore, ignore))
            ear = Ear(two)
            two.session.told = ear.relay.told
            order: list[Any] = []

            def watched(terms: dict[int, list[int]]) -> None:
                assert terms == {job.id: [one.session.term]}
                ear.relay.send(one.session.term, Progress(job.id, "data", b"half"))
                order.append(nodes.content.read(paths.running(task)) is not None)

            task = paths.task_name(job.function, job.unique, job.id)
            settle = ops.Settle([Settlement(job, Event.SUCCEED, 1, ended_us=NOW)], ignore, ignore)
            question = ops.Watchers(two.session.term, [job.id], watched, ignore)
            async with running(ear):
                outcomes = await handlers.handle(two.session, [settle, question])
            assert outcomes[0] == set()
            # Asked in the group of the end itself, it was answered before the end, and told before it too.
            assert order == [True]
            assert nodes.content.names(paths.mail(one.session.who))

    run(check())
