"""Messages between nodes, over NOTIFY."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.engines.postgres import engine
from mainspring.engines.postgres.connections import parse_address
from mainspring.engines.postgres.relay import Relay
from mainspring.events import Pending, Progress, Settled, Stop
from mainspring.jobs import store as ops

from .a_fleet import Node, node

if TYPE_CHECKING:
    import pytest

    from mainspring.events import Message


def test_messages_reach_the_node_that_they_are_for_in_order(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two, node(database, "c") as third:
            sent: list[Message] = [Progress(i, "data", b"%d" % i * 3000) for i in range(40)]
            for message in sent:
                one.engine.send(two.term, message)
            await two.wait_for(lambda messages: len(messages) == len(sent))
            assert two.received == sent
            two.engine.send(third.term, Stop(5, "enough"))
            await third.wait_for(lambda messages: messages == [Stop(5, "enough")])
            assert one.received == []

    asyncio.run(test())


def test_a_loop_of_the_engine_that_ends_begins_again(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "DEFECT_DELAY", 0.0)

    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two:
            for loop in ("messages", "mail", "folding", "partitions", "watch"):
                tasks = [task for task in asyncio.all_tasks() if task.get_name() == f"postgres {loop}"]
                assert len(tasks) == 2, f"each engine has one for its {loop}"
            send_once, defects = Relay.send_once, [ValueError("a defect")]

            async def defective(relay: Relay) -> None:
                if defects:
                    raise defects.pop()
                await send_once(relay)

            monkeypatch.setattr(Relay, "send_once", defective)
            one.engine.send(two.term, Settled([1]))
            while defects:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.001)
            one.engine.send(two.term, Settled([2]))
            await two.wait_for(lambda messages: any(2 in one.ids for one in messages if isinstance(one, Settled)))

    asyncio.run(test())


def test_other_nodes_are_notified_of_pending_jobs_and_waiting_ones_of_ends(database: str) -> None:
    async def test() -> None:
        async with node(database, "a") as one, node(database, "b") as two:
            (job,) = await one.submitted(function=b"g")
            await two.wait_for(lambda messages: Pending([b"g"]) in messages)
            await wait(two, job.id)
            ((claimed,),) = await one.group(one.claim(function=b"g"))
            await one.group(one.settle(*claimed))
            await two.wait_for(lambda messages: Settled([job.id]) in messages)
            assert one.received == []

    asyncio.run(test())


def test_stores_of_one_database_do_not_receive_each_others_messages(database: str) -> None:
    async def test() -> None:
        assert parse_address(database).checksum != parse_address(f"{database}?schema=other").checksum
        async with (
            node(database, "a") as one,
            node(database, "b") as two,
            node(f"{database}?schema=other", "a") as other,
            node(f"{database}?schema=other", "b") as another,
        ):
            await other.submitted(function=b"other")
            await another.wait_for(lambda messages: messages == [Pending([b"other"])])
            await one.submitted(function=b"one")
            await two.wait_for(lambda messages: messages == [Pending([b"one"])])

    asyncio.run(test())


async def wait(one: Node, *ids: int) -> None:
    """Record that clients of a node wait for jobs."""
    await one.group(ops.Subscribe(one.term, list(ids)))
