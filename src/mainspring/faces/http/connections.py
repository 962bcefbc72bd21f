"""The places that a port has for connections.

A connection is accepted only once it has a place, so a port holds no more descriptors and buffers than it has places. Where
none is free, the connection that has been idle longest is ended. Idle is one that is not *working*: it has sent no whole
request yet, or its last answer is out. Only some of the places may be working, so there is always an idle connection that can
make way for a new one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from mainspring.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable

TOLD_EVERY = 60.0
"""Seconds between two lines of the log about the same trouble."""
log = structlog.get_logger("mainspring.server")


class Connections:
    """The connections of a port: ``limit`` at a time, of which ``working`` may have a request under way.

    ``port`` names it in the log. Each socket of the port takes a place for the connection that it waits for, so ``limit`` is
    larger than ``working`` and their number together.
    """

    def __init__(self, limit: int, working: int, *, port: str) -> None:
        self.limit = limit
        self.most_working = working
        self._port = port
        self._taken: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        """The one that has been idle longest comes first."""
        self._working: set[Connection] = set()
        self._ending: set[Connection] = set()
        self._left = asyncio.Event()
        self._ended = LogLimit(TOLD_EVERY)
        self._refused = LogLimit(TOLD_EVERY)

    def __len__(self) -> int:
        """Return how many places are taken; a socket that waits for its next connection has one."""
        return len(self._taken)

    async def place(self) -> Connection:
        """Return a place for the next connection as soon as one is free; an idle connection is ended for it."""
        while len(self._taken) >= self.limit:
            self._left.clear()
            if not self._ending:
                self._end_oldest()
            await self._left.wait()
        connection = Connection(self)
        self._taken.add(connection)
        return connection

    def _end_oldest(self) -> None:
        connection = next(iter(self._idle), None)
        if connection is None:
            return  # another socket of the port waits for a connection: it will be idle at first
        del self._idle[connection]
        self._ending.add(connection)
        if self._ended.left_out(asyncio.get_running_loop().time()) is not None:
            log.warning("idle connections are ended for new ones", port=self._port, connections=self.limit)
        connection.end()

    def rest(self, connection: Connection) -> None:
        """A connection is idle from now on."""
        if connection in self._taken and connection not in self._ending:
            self._working.discard(connection)
            self._idle.pop(connection, None)
            self._idle[connection] = None

    def work(self, connection: Connection) -> bool:
        """A connection has a request; return whether it may be answered, or too many others are under way."""
        if connection in self._idle:
            if len(self._working) >= self.most_working:
                if self._refused.left_out(asyncio.get_running_loop().time()) is not None:
                    log.warning("requests are refused", port=self._port, under_way=self.most_working)
                return False
            del self._idle[connection]
            self._working.add(connection)
        return True

    def leave(self, connection: Connection) -> None:
        """A connection has ended: its place is free."""
        for among in (self._taken, self._working, self._ending):
            among.discard(connection)
        self._idle.pop(connection, None)
        self._left.set()


def _nothing() -> None:
    """Nobody has connected yet."""


class Connection:
    """One place, and what its connection tells about itself."""

    __slots__ = ("_connections", "_end")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._end: Callable[[], object] = _nothing

    def begin(self, end: Callable[[], object]) -> None:
        """The connection is there, and idle; ``end`` ends it at once, so that it leaves."""
        self._end = end
        self.rest()

    def end(self) -> None:
        """End it at once, where it is there."""
        self._end()

    def rest(self) -> None:
        """See Connections."""
        self._connections.rest(self)

    def work(self) -> bool:
        """See Connections."""
        return self._connections.work(self)

    def leave(self) -> None:
        """See Connections."""
        self._connections.leave(self)
