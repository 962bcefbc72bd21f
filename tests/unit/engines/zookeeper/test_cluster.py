"""The live nodes of a fleet on another store: none is reported as gone without certainty."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.zookeeper.memory import Fate, MemoryContent, MemoryTree

from mainspring.engines.zookeeper import cluster as module
from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.cluster import ZookeeperCluster
from mainspring.engines.zookeeper.tree import Create
from mainspring.events import Pending, Settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    import pytest

    from mainspring.engines.zookeeper.tree import Change
    from mainspring.events import Message

TIMEOUT = 10.0


class Member:
    """A node in it."""

    def __init__(self, content: MemoryContent, name: str, term: int) -> None:
        self.tree = MemoryTree(content)
        self.cluster = ZookeeperCluster(self.tree)
        self.name, self.term = name, term
        self.received: list[Message] = []

    async def join(self, term: int | None = None) -> None:
        self.term = term or self.term
        await self.cluster.join(self.name, self.term)
        await eventually(lambda: self.cluster.joined(self.term))


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


@asynccontextmanager
async def members(content: MemoryContent, *names: str) -> AsyncIterator[list[Member]]:
    found = [Member(content, name, term) for term, name in enumerate(names, 1)]
    try:
        for one in found:
            await one.cluster.open(one.received.append)
            await one.join()
        yield found
    finally:
        for one in found:
            await one.cluster.close()


def test_registered_nodes_are_not_gone_and_unknown_ones_are() -> None:
    async def main() -> None:
        async with members(MemoryContent(), "n1", "n2") as (one, two):
            assert one.cluster.id == two.cluster.id != ""
            assert set(await one.cluster.gone([1, 2])) == set()
            assert set(await one.cluster.gone([2, 3])) == {3}

    asyncio.run(main())


def test_a_node_whose_session_has_ended_is_gone_until_it_registers_again() -> None:
    async def main() -> None:
        content = MemoryContent()
        async with members(content, "n1", "n2") as (one, two):
            two.tree.cut()
            content.expire(two.tree.session)
            assert set(await one.cluster.gone([1, 2])) == {2}
            two.tree.heal()
            await eventually(lambda: content.read(paths.worker("n2-2")) is not None)
            assert set(await one.cluster.gone([1, 2])) == set()

    asyncio.run(main())


def test_loops_of_the_membership_that_end_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEFECT_DELAY", 0.0)

    async def main() -> None:
        content = MemoryContent()
        async with members(content, "n1", "n2") as (one, two):
            await two.cluster.gone([1])  # it has read the members
            (*loops,) = (task for task in asyncio.all_tasks() if task.get_name() == "zookeeper messages")
            assert len(loops) == 2
            for task in loops:
                task.cancel()
            await asyncio.wait(loops)
            await eventually(lambda: two.cluster.send(1, Settled([7])))
            await eventually(lambda: one.received == [Settled([7])])
            get, defects = one.tree.get, [ValueError("a defect")]

            async def defective(path: str, watch: Callable[[], None] | None = None) -> Any:
                if defects:
                    raise defects.pop()
                return await get(path, watch)

            one.tree.get = defective  # type: ignore[method-assign]
            one.tree.expire()
            await eventually(lambda: not defects and content.read(paths.worker("n1-1")) is not None)
            assert set(await two.cluster.gone([1, 2])) == set()

    asyncio.run(main())


def test_foreign_nodes_are_no_members() -> None:
    async def main() -> None:
        content = MemoryContent()
        async with members(content, "n1", "n2") as (one, _):
            content.apply([Create(f"{paths.WORKERS}/strange")])
            assert set(await one.cluster.gone([1, 2, 3])) == {3}

    asyncio.run(main())


def test_a_node_without_a_connection_reports_no_node_as_gone() -> None:
    async def main() -> None:
        content = MemoryContent()
        async with members(content, "n1", "n2") as (one, two):
            content.expire(two.tree.session)
            one.tree.cut()
            assert set(await one.cluster.gone([1, 2])) == set()

    asyncio.run(main())


def test_a_beginning_that_is_interrupted_begins_no_second_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLUSTER_RETRY_DELAY", 0.001)

    async def main() -> None:
        content = MemoryContent()
        one = Member(content, "n1", 1)
        fates: list[Fate | None] = [*Fate, None, *Fate]
        one.tree.before = lambda _: fates.pop(0) if fates else None
        await one.cluster.open(one.received.append)
        await one.join()
        assert fates == []
        assert len(content.sessions) == 1
        await one.cluster.close()
        assert not content.sessions

    asyncio.run(main())


def test_a_node_whose_entry_is_foreign_registers_after_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    # A member of the ensemble that lags behind does not show what the session before has left.
    monkeypatch.setattr(module, "CLUSTER_RETRY_DELAY", 0.001)

    async def main() -> None:
        content = MemoryContent()
        async with members(content, "n1") as (one,):
            place = paths.worker("n1-2")
            left = [Create(place)]

            def before(changes: Sequence[Change]) -> None:
                if left and Create(place, ephemeral=True) in changes:
                    content.apply([left.pop()])

            one.tree.before = before
            await one.join(2)
            node = content.read(place)
            assert node is not None
            assert node.owner == one.tree.session

    asyncio.run(main())


def test_another_term_leaves_nothing_of_the_one_before() -> None:
    async def main() -> None:
        content = MemoryContent()
        async with members(content, "n1", "n2") as (one, two):
            await one.join(7)
            assert set(await two.cluster.gone([1, 7])) == {1}
            assert content.names(paths.MAIL) is not None
            assert sorted(content.names(paths.MAIL) or ()) == ["n1-7", "n2-2"]
            assert not one.cluster.joined(1)
        assert content.names(paths.MAIL) == content.names(paths.WORKERS) == []

    asyncio.run(main())


def test_messages_reach_one_or_all_others() -> None:
    async def main() -> None:
        async with members(MemoryContent(), "n1", "n2", "n3") as (one, two, three):
            await one.cluster.gone([2, 3])
            one.cluster.send(2, Settled([5, 6]))
            one.cluster.broadcast(Pending([b"f\xff"]))
            await eventually(lambda: len(two.received) == 2 and len(three.received) == 1)
            assert two.received == [Settled([5, 6]), Pending([b"f\xff"])]
            assert three.received == [Pending([b"f\xff"])]
            assert one.received == []
            assert not one.cluster.send(99, Settled([1]))
            assert one.cluster.send(3, Settled([2]))
            await eventually(lambda: len(three.received) == 2)

    asyncio.run(main())
