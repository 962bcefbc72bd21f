"""The watch on a group without an answer: the server still works on it, or the connection is dead.

A dead connection swallows packets for a quarter of an hour before the operating system gives up. The watch asks the server over
the control connection. While the server works for the group's session, or that session waits for a lock or a standby, the watch
does nothing. If the session waits for this node, or does not exist, the watch drops the connection and the group runs again on
another.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from mainspring.engines.postgres.statements import load
from mainspring.errors import StoreError

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from mainspring.engines.postgres.control import Control
    from mainspring.engines.postgres.writer import Writer

log = structlog.get_logger("mainspring.postgres")
_SQL = load("engine.sql")

SLOW_GROUP: Final = 5.0
"""Seconds without an answer after which the server is asked."""
RECHECK_DELAY: Final = 1.0
"""Seconds between two checks: an answer under way arrives in between."""


class Watch:
    """Checks the group under way from time to time."""

    def __init__(self, control: Control, writer: Writer, *, slow: float = SLOW_GROUP) -> None:
        self._control = control
        self._writer = writer
        self._slow = slow

    async def run(self) -> None:
        """Watch, until cancelled: one wake-up per interval, and a query only for a group that takes very long."""
        while True:
            seen = self._writer.attempts
            await asyncio.sleep(self._slow)
            if self._writer.busy and self._writer.attempts == seen:
                await self.check(seen)

    async def check(self, attempt: int) -> bool:
        """Drop the writer's connection if the server waits for this node on it; return whether it did."""
        idle: list[Any] = []
        for _ in range(2):
            pid = self._writer.pid
            if pid is None:
                return False  # it is connecting, with time-outs of its own
            try:
                row = await self._control.run(partial(_activity, pid=pid), self._slow)
            except StoreError:
                return False  # the store is unavailable for both connections
            if row is not None and not row["waits"]:
                return False
            idle.append((pid, row and row["state_change"]))
            await asyncio.sleep(RECHECK_DELAY)
        if idle[0] != idle[1] or not self._writer.busy or self._writer.attempts != attempt:
            return False
        log.warning("a group has no answer, and the server does not work on it: connecting again")
        self._writer.give_up()
        return True


async def _activity(connection: Connection[Record], pid: int) -> Record | None:
    return await connection.fetchrow(_SQL["activity"], pid)
