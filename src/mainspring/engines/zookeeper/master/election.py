"""Who is the master: whoever has created ``/master``, which is gone with its session.

The version of ``/master_term`` rises with each one, in the same multi. A master writes nothing without checking it, so a
deposed one that does not know of it yet does no harm.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import Entry, Fenced
from mainspring.engines.zookeeper.master.reign import DeposedError, Reign
from mainspring.engines.zookeeper.tree import Create, Delete, Write

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.zookeeper.session import Session
    from mainspring.engines.zookeeper.tree import Change
    from mainspring.events.relay import Message


async def stand(session: Session, tell: Callable[[int, Message], None]) -> Reign:
    """Wait until this node is the master.

    Raises DeposedError where its term is over, SessionEndedError.
    """
    while True:
        changed = asyncio.Event()
        node = await Reign.read(lambda: session.tree.get(paths.MASTER, changed.set))  # noqa: B023 - awaited here
        if node is not None and node.owner == session.tree.session:
            # This node's last term has ended, and its session goes on: nobody would see the end of that reign.
            await session.committer.commit([Entry([Delete(paths.MASTER, node.version)])])
            continue
        if node is not None:
            await changed.wait()
            continue
        term = await Reign.read(lambda: session.tree.get(paths.MASTER_TERM))
        assert term is not None, "the roots are there"
        who = records.encode({"worker": session.who})
        changes: list[Change] = [Create(paths.MASTER, who, ephemeral=True), Write(paths.MASTER_TERM, who, term.version)]
        (verdict,) = await session.committer.commit([Entry(changes)])
        if isinstance(verdict, Fenced):
            raise DeposedError(f"the term of {session.who} is over")
        if verdict is None:
            return Reign(session, term.version + 1, tell)


async def deposed(reign: Reign) -> None:
    """Return once this reign is over, as far as can be seen from its node in the tree: somebody has deleted it.

    What is not seen in time is refused where it writes.
    """
    session = reign.session
    while True:
        changed = asyncio.Event()
        node = await Reign.read(lambda: session.tree.get(paths.MASTER, changed.set))  # noqa: B023 - awaited here
        if node is None or node.owner != session.tree.session or records.decode(node.data)["worker"] != session.who:
            return
        await changed.wait()
