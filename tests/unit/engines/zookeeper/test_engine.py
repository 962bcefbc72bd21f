"""The engine between two terms of its node."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from tests.zookeeper.memory import MemoryContent, MemoryTree

from mainspring.engines.zookeeper import bootstrap, committer, paths
from mainspring.engines.zookeeper import engine as engine_module
from mainspring.engines.zookeeper.engine import ZookeeperEngine
from mainspring.errors import SettingsError, StoreUnavailableError
from mainspring.ids import NodeId
from mainspring.quantities import parse_duration

from .a_session import run

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
N1 = NodeId("n1")


def test_a_term_that_does_not_begin_at_once_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # A keeper ends the last term before it begins the next, each time that it tries.
    async def check() -> None:
        content = MemoryContent()
        engine = ZookeeperEngine(lambda: MemoryTree(content))
        first = await engine.open(N1, asyncio.get_running_loop().call_soon)
        begin = bootstrap.next_term

        async def away(*_: Any) -> int:
            raise StoreUnavailableError("the ensemble is away")

        assert await engine.end(first.term)
        monkeypatch.setattr(bootstrap, "next_term", away)
        with pytest.raises(StoreUnavailableError):
            await engine.open(N1, asyncio.get_running_loop().call_soon)
        monkeypatch.setattr(bootstrap, "next_term", begin)
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
