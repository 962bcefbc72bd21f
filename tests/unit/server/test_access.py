"""The credentials of a node whose store keeps none."""

from __future__ import annotations

import asyncio

from mainspring.access.roles import EVERY_NAMESPACE, Permission
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.server.access import build_access
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads
from mainspring.testing import ManualClock


class WithoutAccess(MemoryEngine):
    access = False


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
