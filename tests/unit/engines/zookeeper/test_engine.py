"""The engine between two terms of its node."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from tests.zookeeper.memory import MemoryContent, MemoryTree

from mainspring.engines.zookeeper import committer, paths
from mainspring.engines.zookeeper import engine as engine_module
from mainspring.engines.zookeeper import master as master_module
from mainspring.engines.zookeeper.engine import ZookeeperEngine
from mainspring.engines.zookeeper.tree import Write
from mainspring.errors import SettingsError, StoreFencedError, StoreUnavailableError
from mainspring.events import Settled
from mainspring.ids import NodeId
from mainspring.nodes.model import NodeRow
from mainspring.quantities import parse_duration
from mainspring.storage.engine import Probe

from .a_master import eventually
from .a_session import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.events import Message

T = TypeVar("T")
N1 = NodeId("n1")


def test_a_term_that_does_not_begin_at_once_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # A keeper ends the last term before it begins the next, each time that it tries.
    async def check() -> None:
        content = MemoryContent()
        engine = ZookeeperEngine(lambda: MemoryTree(content))
        first = await engine.open(N1, asyncio.get_running_loop().call_soon)
        begin = engine_module.next_term

        async def away(*_: Any) -> int:
            raise StoreUnavailableError("the ensemble is away")

        assert await engine.end(first.term)
        monkeypatch.setattr(engine_module, "next_term", away)
        with pytest.raises(StoreUnavailableError):
            await engine.open(N1, asyncio.get_running_loop().call_soon)
        monkeypatch.setattr(engine_module, "next_term", begin)
        assert await engine.end(first.term)
        assert await engine.rows() == []
        second = await engine.open(N1, asyncio.get_running_loop().call_soon)
        assert second.term > first.term
        assert content.names(paths.WORKERS) == [f"n1-{second.term}"]
        await engine.close()

    run(check())


@pytest.mark.parametrize(("granted", "lease"), [(10.0, "10s"), (2.5, "2.5s"), (0.4, "400ms")])
def test_a_lease_that_no_session_lasts_is_refused_with_one_that_will_do(granted: float, lease: str) -> None:
    async def check() -> None:
        tree = MemoryTree(MemoryContent(), session_timeout=granted)
        engine = ZookeeperEngine(lambda: tree, lease=15)
        with pytest.raises(SettingsError, match=rf"--lease {re.escape(lease)},"):
            await engine.open(N1, asyncio.get_running_loop().call_soon)
        await engine.close()
        fitting = ZookeeperEngine(
            lambda: MemoryTree(MemoryContent(), session_timeout=granted), lease=parse_duration(lease)
        )
        await fitting.open(N1, asyncio.get_running_loop().call_soon)
        await fitting.close()

    run(check())


def loops() -> list[str]:
    """Return the names of the running background tasks of engines."""
    return sorted({name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("zookeeper ")})


async def opened_master(content: MemoryContent, node: NodeId = N1) -> tuple[ZookeeperEngine, NodeRow]:
    """Return an engine whose node is the master, and its row."""
    engine = ZookeeperEngine(lambda: MemoryTree(content))
    opened = await engine.open(node, asyncio.get_running_loop().call_soon)
    row = NodeRow(term=opened.term, name=node, counter=1)
    await engine.beat(row)
    await eventually(lambda: "zookeeper waking" in loops())
    return engine, row


def test_each_loop_that_ends_ends_the_term_or_the_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose loops have ended must not look alive, or stay the master: others would wait for it for ever."""
    monkeypatch.setattr(master_module, "RESIGN_PAUSE", 0.0)

    async def names() -> list[str]:
        engine, _ = await opened_master(MemoryContent())
        found = loops()
        await engine.close()
        return found

    async def check(name: str) -> None:
        content = MemoryContent()
        engine, row = await opened_master(content)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == name]
        before = content.read(paths.MASTER_TERM)
        assert before is not None
        task.cancel()

        async def is_noticed() -> bool:
            after = content.read(paths.MASTER_TERM)
            assert after is not None
            if after.version > before.version:
                return True  # it has resigned, and was elected again
            try:
                await engine.beat(row)
            except StoreFencedError:
                return True
            return False

        await eventually(is_noticed, name)
        reopened = await engine.open(N1, asyncio.get_running_loop().call_soon)
        assert await engine.beat(NodeRow(term=reopened.term, name=N1, counter=1))
        await engine.close()

    found = run(names())
    assert len(found) >= 10, found
    for name in found:
        run(check(name))


def test_a_term_whose_batches_are_refused_ends_with_the_next_heartbeat() -> None:
    async def check() -> None:
        content = MemoryContent()
        first, row = await opened_master(content)
        second = ZookeeperEngine(lambda: MemoryTree(content))
        await second.open(NodeId("n2"), asyncio.get_running_loop().call_soon)
        journal = paths.journal(f"n1-{row.term}")
        before = content.read(journal)
        assert before is not None
        content.apply([Write(journal, before.data)])
        outcomes: list[Any] = []
        first.commit([Probe()], outcomes.append, lambda *_: None)
        await eventually(lambda: len(outcomes) == 1)
        assert isinstance(outcomes[0], StoreFencedError)
        for ask in (lambda: first.beat(row), first.now):
            with pytest.raises(StoreFencedError):
                await ask()
        # As the manager of the lease does then:
        assert await first.end(row.term)
        reopened = await first.open(N1, asyncio.get_running_loop().call_soon)
        first.commit([Probe()], outcomes.append, lambda *_: None)
        await eventually(lambda: len(outcomes) == 2)
        assert outcomes[1] == [None]
        assert await first.beat(NodeRow(term=reopened.term, name=N1, counter=1))
        await eventually(lambda: content.read(paths.MASTER) is not None)
        await first.close()
        await second.close()

    run(check())


def test_a_message_that_the_node_cannot_process_stops_no_other() -> None:
    async def check() -> None:
        content = MemoryContent()
        engine, row = await opened_master(content)
        received: list[Message] = []

        def listener(message: Message) -> None:
            if message == Settled([1]):
                raise ValueError("a defect")
            received.append(message)

        engine.listen(listener)
        other = ZookeeperEngine(lambda: MemoryTree(content))
        await other.open(NodeId("n2"), asyncio.get_running_loop().call_soon)
        for sender in (engine, other):
            received.clear()
            for number in (1, 2):
                sender.send(row.term, Settled([number]))
            await eventually(lambda: received == [Settled([2])])
        await engine.beat(row)
        await engine.close()
        await other.close()

    run(check())


class Shaky(MemoryTree):
    """A tree whose connection is lost once: at so many requests from its opening, and before that one is done or after."""

    def __init__(self, content: MemoryContent, at: int, *, done: bool) -> None:
        super().__init__(content)
        self.left = at
        self._done = done

    async def ask(self, do: Callable[[], T], lost: type[StoreUnavailableError] = StoreUnavailableError) -> T:
        self.left -= 1
        if self.left == 0:
            if self._done:
                await super().ask(do, lost)
            raise lost("the connection was lost")
        return await super().ask(do, lost)


@pytest.mark.parametrize("done", [False, True])
def test_the_connection_is_lost_at_any_step_of_the_beginning(*, done: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "RETRY_DELAY", 0.0)
    monkeypatch.setattr(committer, "RETRY_DELAY", 0.0)

    async def check() -> None:
        at, left = 0, 0
        while left <= 0:
            at += 1
            content = MemoryContent()
            tree = Shaky(content, at, done=done)
            engine = ZookeeperEngine(lambda tree=tree: tree, lease=0.0)  # type: ignore[misc]
            opened = await engine.open(N1, asyncio.get_running_loop().call_soon)
            left = tree.left
            assert content.names(paths.WORKERS) == [f"n1-{opened.term}"]
            assert opened.nodes[opened.term] == "n1"
            await engine.close()
        assert at > len(paths.ROOTS) + 5

    run(check())


def test_an_engine_that_is_not_open_says_so() -> None:
    async def check() -> None:
        engine = ZookeeperEngine(lambda: MemoryTree(MemoryContent()))
        with pytest.raises(StoreUnavailableError, match="not open"):
            await engine.rows()

    run(check())
