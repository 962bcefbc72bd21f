"""The credentials and the audit of a node, with its settings and its store."""

from __future__ import annotations

import asyncio
import time

from mainspring.access.audit import ListActs
from mainspring.access.caller import EVERY_NAMESPACE, Act, Permission
from mainspring.callbacks import awaited
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.features import Feature
from mainspring.ids import NodeId
from mainspring.server.build import build_access
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads
from mainspring.testing import ManualClock


class WithoutAccess(MemoryEngine):
    lacks = frozenset({Feature.ACCESS})


def test_a_store_without_tokens_has_those_of_the_start_in_the_nodes_memory() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        engine = WithoutAccess()
        commits = CommitQueue(engine, loop.call_soon, loop.call_later)
        access = await build_access(engine, commits, Reads(engine, loop.call_soon), ManualClock())
        caller = await access.caller_of_token(await access.token_of_start())
        assert caller is not None
        assert all(caller.may(permission, EVERY_NAMESPACE) for permission in Permission)
        session = await access.sign_in_by_link(await access.new_link())
        assert session is not None
        assert await access.caller_of_session(session) is not None
        assert engine.tables.credentials == {}
        other = await build_access(engine, commits, Reads(engine, loop.call_soon), ManualClock())
        assert await other.caller_of_token(await access.token_of_start()) is None

    asyncio.run(test())


def test_acts_are_kept_for_the_time_that_the_node_is_given() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        engine = MemoryEngine()
        await engine.open(NodeId("n"), lambda function: function())
        clock = ManualClock(time.time())  # acts have the store's time
        commits = CommitQueue(engine, loop.call_soon, loop.call_later)
        access = await build_access(engine, commits, Reads(engine, loop.call_soon), clock, retention=3600.0)

        async def kept_after(seconds: float) -> int:
            clock.advance(seconds)
            access.tick(clock.monotonic())
            swept = asyncio.Event()
            commits.when_idle(swept.set)
            await swept.wait()
            return len((await awaited(access.list_acts(ListActs(limit=10)))).items)

        await awaited(access.record(Act("marks.add", "ann")))
        assert await kept_after(3000.0) == 1
        assert await kept_after(1000.0) == 0

    asyncio.run(test())
