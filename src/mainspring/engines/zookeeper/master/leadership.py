"""The time for which a node is the master: how it begins and ends, and the fence around what is written meanwhile.

The master is whoever has created ``/master``, which is gone with its session. The version of ``/master_term`` rises with each
one, in the same multi. A master writes nothing without checking it, so a deposed one that does not know of it yet does no harm.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.engines.zookeeper import paths, records
from mainspring.engines.zookeeper.committer import Entry, Fenced
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.zookeeper.committer import Verdict
    from mainspring.engines.zookeeper.session import Session
    from mainspring.engines.zookeeper.tree import Change
    from mainspring.events.relay import Message


class DeposedError(Exception):
    """This node is not the master any more: another one is, or will be."""


class Leadership:
    """One node's time as the master."""

    def __init__(self, session: Session, version: int, tell: Callable[[int, Message], None]) -> None:
        """``version`` is that of ``/master_term`` since this node was elected."""
        self.session = session
        self.tree = session.tree
        self.version = version
        self.guard = Check(paths.MASTER_TERM, version)
        self.tell = tell

    async def commit(self, entries: Sequence[Entry], guards: Sequence[Check] = ()) -> list[Verdict]:
        """Write entries as the master, however long the ensemble is away; returns what became of each.

        A Fenced among them is due to one of ``guards``. Raises DeposedError where the next master may be at work already.
        """
        verdicts = await self.session.committer.commit(entries, (self.guard, *guards))
        for verdict in verdicts:
            if isinstance(verdict, Fenced) and verdict.path in {self.guard.path, paths.worker(self.session.who)}:
                raise DeposedError(f"the version of {verdict.path} is not this master's")
        return verdicts


async def stand(session: Session, tell: Callable[[int, Message], None]) -> Leadership:
    """Wait until this node is the master.

    Raises DeposedError, StoreFencedError where its term is over.
    """
    while True:
        changed = asyncio.Event()
        node = await session.get(paths.MASTER, changed.set)
        if node is not None and node.owner == session.tree.session:
            # This node's last term has ended, and its session goes on: nobody would see the end of that reign.
            await session.committer.commit([Entry([Delete(paths.MASTER, node.version)])])
            continue
        if node is not None:
            await changed.wait()
            continue
        term = await session.get(paths.MASTER_TERM)
        assert term is not None, "the roots are there"
        who = records.encode({"worker": session.who})
        changes: list[Change] = [Create(paths.MASTER, who, ephemeral=True), Write(paths.MASTER_TERM, who, term.version)]
        (verdict,) = await session.committer.commit([Entry(changes)])
        if isinstance(verdict, Fenced):
            raise DeposedError(f"the term of {session.who} is over")
        if verdict is None:
            return Leadership(session, term.version + 1, tell)


async def until_deposed(leadership: Leadership) -> None:
    """Raise DeposedError once this reign is over, as far as can be seen from its node in the tree: somebody has deleted it.

    What is not seen in time is refused where it writes. Raises StoreFencedError where the term is over.
    """
    session = leadership.session
    while True:
        changed = asyncio.Event()
        node = await session.get(paths.MASTER, changed.set)
        if node is None or node.owner != session.tree.session or records.decode(node.data)["worker"] != session.who:
            raise DeposedError("/master is gone, or another's")
        await changed.wait()
