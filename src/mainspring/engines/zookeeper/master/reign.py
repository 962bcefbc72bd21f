"""The time for which a node is the master, and the fence around what it writes meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from mainspring.engines.zookeeper import paths
from mainspring.engines.zookeeper.committer import AGAIN, Fenced
from mainspring.engines.zookeeper.tree import Check
from mainspring.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.zookeeper.committer import Entry, Verdict
    from mainspring.engines.zookeeper.session import Session
    from mainspring.events.relay import Message

T = TypeVar("T")


class DeposedError(Exception):
    """This node is not the master any more: another one is, or will be."""


class Reign:
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

    @staticmethod
    async def read(ask: Callable[[], Awaitable[T]]) -> T:
        """Read something, however long the ensemble is away. Raises SessionEndedError."""
        while True:
            try:
                return await ask()
            except StoreUnavailableError:
                await asyncio.sleep(AGAIN)
