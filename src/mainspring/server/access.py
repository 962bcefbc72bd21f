"""The credentials of a node, in its store or in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.access.service import AUDIT_RETENTION, AccessService
from mainspring.ids import NodeId
from mainspring.storage.commit_queue import CommitQueue
from mainspring.storage.reads import Reads

if TYPE_CHECKING:
    from mainspring.clock import Clock
    from mainspring.storage.engine import Engine


async def build_access(
    engine: Engine, commits: CommitQueue, reads: Reads, clock: Clock, *, retention: float = AUDIT_RETENTION
) -> AccessService:
    """Return the credentials of a store, with acts of the last ``retention`` seconds.

    If the store keeps none, the credentials are in the node's memory, and end with it.
    """
    if engine.access:
        return AccessService(commits, reads, clock, shared=engine.shared, retention=retention)
    from mainspring.engines.memory.engine import MemoryEngine  # noqa: PLC0415 - other nodes do not need it

    loop = asyncio.get_running_loop()
    private = MemoryEngine()
    await private.open(NodeId("access"), loop.call_soon_threadsafe)
    commits = CommitQueue(private, loop.call_soon, loop.call_later)
    return AccessService(commits, Reads(private, loop.call_soon), clock, shared=False, beside_jobs=False)
