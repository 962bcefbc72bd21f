"""A group whose answer does not come: the server is still at it, or the connection is dead and neither side knows.

A dead way swallows packets for a quarter of an hour before the operating system gives up. The server is asked over the control
connection: while it works for the group's session, or waits for a lock or a standby, so do we. Where it waits for us instead, or
has no such session, the connection is dropped and the group runs again on another.
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

SLOW: Final = 5.0
"""Seconds after which a group's server is asked."""
AGAIN: Final = 1.0
"""Seconds between two looks: what both show is no answer that is on its way."""


class Watch:
    """Looks after the group under way, from time to time."""

    def __init__(self, control: Control, writer: Writer, *, slow: float = SLOW) -> None:
        self._control = control
        self._writer = writer
        self._slow = slow

    async def run(self) -> None:
        """Watch, until cancelled. A turn of the loop now and then, and a question only where one group takes very long."""
        while True:
            seen = self._writer.attempts
            await asyncio.sleep(self._slow)
            if self._writer.busy and self._writer.attempts == seen:
                await self.look(seen)

    async def look(self, attempt: int) -> bool:
        """Give the writer's connection up where the server waits for us on it; says whether it was so."""
        idle: list[Any] = []
        for _ in range(2):
            pid = self._writer.pid
            if pid is None:
                return False  # it connects, with time-outs of its own
            try:
                row = await self._control.run(partial(_activity, pid=pid), self._slow)
            except StoreError:
                return False  # the store is away for both
            if row is not None and not row["waits"]:
                return False
            idle.append((pid, row and row["state_change"]))
            await asyncio.sleep(AGAIN)
        if idle[0] != idle[1] or not self._writer.busy or self._writer.attempts != attempt:
            return False
        log.warning("a group has no answer, and the server is not at work for it: connecting anew")
        self._writer.give_up()
        return True


async def _activity(connection: Connection[Record], pid: int) -> Record | None:
    return await connection.fetchrow(_SQL["activity"], pid)
