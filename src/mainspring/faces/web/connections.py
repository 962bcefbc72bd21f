"""The limit on a port's connections.

A connection is accepted only once it has a place, so a port never holds more descriptors and buffers than it has places. If no
place is free, the connection that has been idle longest is closed. A connection is idle if it is not *working*: it has sent no
complete request yet, or its last answer is sent. Only some of the places may be working, so an idle connection can always be
closed for a new one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from mainspring.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable

LOG_INTERVAL = 60.0
"""Seconds between two log lines about the same problem."""
PREFERRED = 2
"""Places that only preferred requests get, such as those for metrics."""
log = structlog.get_logger("mainspring.server")


class Connections:
    """The connections of a port: at most ``limit``, of which at most ``working`` have a request in progress.

    ``port`` is its name in the log. Each socket of the port occupies a place for its next connection, so ``limit`` has to be
    larger than ``working`` plus the number of sockets.
    """

    def __init__(self, limit: int, working: int, *, port: str) -> None:
        self.limit = limit
        self.working_limit = working
        self._port = port
        self._occupied: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        """Idle connections; the one that has been idle longest is first."""
        self._working: set[Connection] = set()
        self._ending: set[Connection] = set()
        self._freed = asyncio.Event()
        self._ended = LogLimit(LOG_INTERVAL)
        self._refused = LogLimit(LOG_INTERVAL)

    def __len__(self) -> int:
        """Return the number of occupied places, including those of sockets that wait for a connection."""
        return len(self._occupied)

    async def place(self) -> Connection:
        """Return a place for the next connection once one is free; close an idle connection for it."""
        while len(self._occupied) >= self.limit:
            self._freed.clear()
            if not self._ending:
                self._end_oldest()
            await self._freed.wait()
        connection = Connection(self)
        self._occupied.add(connection)
        return connection

    def _end_oldest(self) -> None:
        connection = next(iter(self._idle), None)
        if connection is None:
            return  # another socket of the port waits for a connection, which will be idle at first
        del self._idle[connection]
        self._ending.add(connection)
        if self._ended.left_out(asyncio.get_running_loop().time()) is not None:
            log.warning("idle connections are ended for new ones", port=self._port, connections=self.limit)
        connection.end()

    def set_idle(self, connection: Connection) -> None:
        """Mark a connection as idle."""
        if connection in self._occupied and connection not in self._ending:
            self._working.discard(connection)
            self._idle.pop(connection, None)
            self._idle[connection] = None

    def set_working(self, connection: Connection, *, preferred: bool = False) -> bool:
        """Mark a connection as working. Return False if too many other requests are in progress.

        A ``preferred`` request may use `PREFERRED` places more.
        """
        if connection in self._idle:
            if len(self._working) >= self.working_limit + (PREFERRED if preferred else 0):
                if self._refused.left_out(asyncio.get_running_loop().time()) is not None:
                    log.warning("requests are refused", port=self._port, under_way=self.working_limit)
                return False
            del self._idle[connection]
            self._working.add(connection)
        return True

    def release(self, connection: Connection) -> None:
        """Free the place of a connection that has ended."""
        for among in (self._occupied, self._working, self._ending):
            among.discard(connection)
        self._idle.pop(connection, None)
        self._freed.set()


def _nothing() -> None:
    """Do nothing, because there is no connection yet."""


class Connection:
    """One place, with the state of its connection."""

    __slots__ = ("_connections", "_end")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._end: Callable[[], object] = _nothing

    def begin(self, end: Callable[[], object]) -> None:
        """Set the place's connection, which is idle; ``end`` closes it at once."""
        self._end = end
        self.set_idle()

    def end(self) -> None:
        """Close the connection at once, if there is one."""
        self._end()

    def set_idle(self) -> None:
        """Mark the connection as idle."""
        self._connections.set_idle(self)

    def set_working(self, *, preferred: bool = False) -> bool:
        """Mark the connection as working. Return False if too many other requests are in progress."""
        return self._connections.set_working(self, preferred=preferred)

    def release(self) -> None:
        """Free the place."""
        self._connections.release(self)
