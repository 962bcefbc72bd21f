"""Leadership: the time for which a node is the master, its election, its end, and the fence around its writes.

The master is the node that has created ``/master``, which is gone with its session. The version of ``/master_term`` rises with
each master, in the same multi. A master checks that version in every write, so a deposed one does no harm before it notices.
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
    from mainspring.engines.zookeeper.sessions import Session
    from mainspring.engines.zookeeper.tree import Change
    from mainspring.events import Message


class DeposedError(Exception):
    """This node is not the master any more: another one is, or will be."""


class Leadership:
    """One node's time as the master."""

    def __init__(self, session: Session, version: int, send: Callable[[int, Message], None]) -> None:
        """``version`` is that of ``/master_term`` since this node was elected."""
        self.session = session
        self.tree = session.tree
        self.version = version
        self.guard = Check(paths.MASTER_TERM, version)
        self.send = send

    async def commit(self, entries: Sequence[Entry], guards: Sequence[Check] = ()) -> list[Verdict]:
        """Write entries as the master, and return the verdicts. While the ensemble is away, it waits.

        A Fenced among them is due to one of ``guards``. Raises DeposedError if another master may be at work already.
        """
        verdicts = await self.session.committer.commit(entries, (self.guard, *guards))
        for verdict in verdicts:
            if isinstance(verdict, Fenced) and verdict.path in {self.guard.path, paths.worker(self.session.who)}:
                raise DeposedError(f"the version of {verdict.path} is not this master's")
        return verdicts


async def await_election(session: Session, send: Callable[[int, Message], None]) -> Leadership:
    """Wait until this node is the master.

    Raises DeposedError or StoreFencedError if its term is over.
    """
    while True:
        changed = asyncio.Event()
        node = await session.get(paths.MASTER, changed.set)
        if node is not None and node.owner == session.tree.session:
            # This node's last term has ended, but its session goes on, so the node would stay.
            await session.write(Delete(paths.MASTER, node.version))
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
            return Leadership(session, term.version + 1, send)


async def resign(leadership: Leadership) -> None:
    """Delete ``/master``, so that another node is elected. Raises StoreFencedError if the term is over."""
    session = leadership.session
    node = await session.get(paths.MASTER)
    if node is not None and node.owner == session.tree.session:
        await session.write(Check(paths.MASTER_TERM, leadership.version), Delete(paths.MASTER, node.version))


async def until_deposed(leadership: Leadership) -> None:
    """Watch ``/master``, and raise DeposedError once it is deleted or belongs to another node.

    An end that is noticed too late does no harm: the master's writes are refused. Raises StoreFencedError if the term is over.
    """
    session = leadership.session
    while True:
        changed = asyncio.Event()
        node = await session.get(paths.MASTER, changed.set)
        if node is None or node.owner != session.tree.session or records.decode(node.data)["worker"] != session.who:
            raise DeposedError("/master is gone, or another node's")
        await changed.wait()
