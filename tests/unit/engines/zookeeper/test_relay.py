"""Messages between nodes arrive in order: a job's progress before its end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.zookeeper.memory import Fate

from mainspring.engines.zookeeper import cluster as module
from mainspring.engines.zookeeper import paths, sessions
from mainspring.engines.zookeeper.cluster import Relay
from mainspring.engines.zookeeper.engine import HANDLERS, handle
from mainspring.engines.zookeeper.tree import Delete
from mainspring.events import Ask, Direct, FollowLog, Logged, Pending, Progress, Running, Settled, Stop, StopRequested
from mainspring.jobs import store as ops
from mainspring.jobs.rules import Event, Settlement

from .a_session import NOW, fleet, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.zookeeper.memory import MemoryContent

    from mainspring.engines.zookeeper.tree import Change
    from mainspring.events import Message

    from .a_session import Node


def test_messages_are_decoded_as_they_were_encoded() -> None:
    messages: list[Message] = [
        Settled([1, 2]),
        Pending([b"f\xff"]),
        Progress(3, "status", b"\0", b"2"),
        Stop(4, "stop"),
        Ask(5, 6),
        StopRequested(5, 7),
        Direct(8, "drain"),
        FollowLog(8, 9),
        Logged([10]),
        Running(5, 7, 1, "w", b"1", b"\xff"),
    ]
    assert module.decode_letter(module.encode_letter(7, map(module.encode_message, messages))) == messages


def test_messages_of_a_newer_version_are_left_out() -> None:
    letter = b'{"from":7,"messages":[["telegram",1],["direct",8,"dance"],["stop",4],["stop",4,"stop"]]}'
    assert module.decode_letter(letter) == [Stop(4, "stop")]


class Ear:
    """The messages that a node has received."""

    def __init__(self, node: Node) -> None:
        self.received: list[Message] = []
        self._arrived = asyncio.Event()
        self.relay = Relay(
            node.tree, node.session.who, partial(sessions.worker_of, node.tree, node.session.nodes), self
        )

    def __call__(self, message: Message) -> None:
        self.received.append(message)
        self._arrived.set()

    async def wait_for(self, number: int) -> list[Message]:
        """Wait until this many messages have arrived."""
        while len(self.received) < number:
            self._arrived.clear()
            await self._arrived.wait()
        return self.received


async def emptied(content: MemoryContent, box: str) -> None:
    """Wait until no letter is left."""
    while content.names(box):  # noqa: ASYNC110 - the content has no event
        await asyncio.sleep(0.001)


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


def test_own_messages_are_delivered_after_earlier_letters() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            here, there = Ear(one), Ear(two)
            word = Progress(7, "data", b"half")
            async with running(there):
                there.relay.send(one.session.term, word)
                await there.relay.flush_progress()
            async with running(here):
                here.relay.send(one.session.term, Settled([7]))
                assert await here.wait_for(2) == [word, Settled([7])]

    run(check())


@pytest.mark.parametrize("fates", [[fate] for fate in Fate] + [[fate, None, fate] for fate in Fate])
def test_a_letter_is_delivered_once_for_any_fate_of_its_deletion(
    fates: list[Fate | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_DELAY", 0.001)

    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            here, there = Ear(one), Ear(two)
            words = [Progress(7, "data", b"%d" % number) for number in range(5)]
            box = paths.mail(one.session.who)
            left = list(fates)
            one.tree.before = lambda changes: left.pop(0) if left and isinstance(changes[0], Delete) else None
            async with running(here, there):
                for number, word in enumerate(words, 1):
                    there.relay.send(one.session.term, word)
                    await here.wait_for(number)
                await emptied(nodes.content, box)
            assert here.received == words
            assert left == []

    run(check())


def test_a_deletion_that_comes_late_costs_no_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after the letters were read again, so that the whole of the next deletion is refused."""
    monkeypatch.setattr(module, "RETRY_DELAY", 0.001)

    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            here, there = Ear(one), Ear(two)
            words = [Progress(7, "data", b"%d" % number) for number in range(3)]
            box = paths.mail(one.session.who)
            late: list[Sequence[Change]] = []

            def before(changes: Sequence[Change]) -> Fate | None:
                if not isinstance(changes[0], Delete) or not changes[0].path.startswith(box):
                    return None
                if not late:
                    late.append(changes)
                    there.relay.send(one.session.term, words[1])
                    return Fate.REQUEST_LOST
                if late[0]:
                    nodes.content.apply(late[0])
                    late[0] = ()
                return None

            one.tree.before = before
            async with running(here, there):
                there.relay.send(one.session.term, words[0])
                await here.wait_for(2)
                there.relay.send(one.session.term, words[2])
                await here.wait_for(3)
                await emptied(nodes.content, box)
            assert here.received == words

    run(check())


def test_progress_counts_as_sent_once_it_is_in_its_box() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            there = Ear(two)
            box = paths.mail(one.session.who)
            there.relay.send(one.session.term, Settled([1]))
            await asyncio.wait_for(there.relay.flush_progress(), 1)
            there.relay.send(one.session.term, Progress(7, "data", b"half"))
            waiting = asyncio.ensure_future(there.relay.flush_progress())
            await asyncio.sleep(0)
            assert not waiting.done()
            async with running(there):
                await waiting
                assert await one.tree.children(box)

    run(check())


def test_a_flush_of_an_ended_relay_returns() -> None:
    async def check() -> None:
        async with fleet() as nodes:
            one, two = await nodes.join("n1"), await nodes.join("n2")
            ear = Ear(two)
            async with running(ear):
                ear.relay.send(one.session.term, Progress(7, "data", b"half"))
            await ear.relay.flush_progress()
            ear.relay.send(one.session.term, Progress(7, "data", b"more"))
            await ear.relay.flush_progress()

    run(check())


def test_a_settlement_waits_for_what_was_said_of_the_job() -> None:
    async def check() -> None:
        async with fleet() as nodes:

            async def sent() -> None:
                await ear.relay.flush_progress()

            one, two = await nodes.join("n1"), await nodes.join("n2", flush_progress=sent)
            job = await two.held()
            await one.one(ops.Subscribe(one.session.term, [job.id]))
            ear = Ear(two)
            order: list[Any] = []

            def watched(place: int, terms: Any) -> None:
                assert place == 1
                assert terms == {job.id: [one.session.term]}
                ear.relay.send(one.session.term, Progress(job.id, "data", b"half"))
                order.append(nodes.content.read(paths.running(task)) is not None)

            task = paths.task_name(job.function, job.unique, job.id)
            settle = ops.Settle([Settlement(job, Event.SUCCEED, 1, ended_us=NOW)])
            question = ops.FindSubscribers(two.session.term, [job.id])
            async with running(ear):
                outcomes = await handle(HANDLERS, two.session, [settle, question], watched)
            assert outcomes[0] == set()
            # Asked in the group of the end itself, it was answered before the end, and sent before it too.
            assert order == [True]
            assert nodes.content.names(paths.mail(one.session.who))

    run(check())
