"""The engine between two terms of its node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.zookeeper.memory import MemoryContent, MemoryTree

from mainspring.engines.zookeeper import beginning, paths
from mainspring.engines.zookeeper.engine import ZookeeperEngine
from mainspring.errors import StoreUnavailableError
from mainspring.ids import NodeId

from .a_session import run

N1 = NodeId("n1")


def test_a_term_that_does_not_begin_at_once_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # A keeper ends the last term before it begins the next, each time that it tries.
    async def check() -> None:
        content = MemoryContent()
        engine = ZookeeperEngine(lambda: MemoryTree(content))
        first = await engine.open(N1, asyncio.get_running_loop().call_soon)
        begin = beginning.next_term

        async def away(*_: Any) -> int:
            raise StoreUnavailableError("the ensemble is away")

        assert await engine.end(first.term)
        monkeypatch.setattr(beginning, "next_term", away)
        with pytest.raises(StoreUnavailableError):
            await engine.open(N1, asyncio.get_running_loop().call_soon)
        monkeypatch.setattr(beginning, "next_term", begin)
        assert await engine.end(first.term)
        assert await engine.rows() == []
        second = await engine.open(N1, asyncio.get_running_loop().call_soon)
        assert second.term > first.term
        assert content.names(paths.WORKERS) == [f"n1-{second.term}"]
        await engine.close()

    run(check())


def test_an_engine_that_is_not_open_says_so() -> None:
    async def check() -> None:
        engine = ZookeeperEngine(lambda: MemoryTree(MemoryContent()))
        with pytest.raises(StoreUnavailableError, match="not open"):
            await engine.rows()

    run(check())
