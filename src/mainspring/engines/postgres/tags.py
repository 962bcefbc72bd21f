"""Deletes the tags of deleted jobs. Ended jobs are deleted with their partitions, so nothing names their tags then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from mainspring.engines.postgres.rows import SQL

if TYPE_CHECKING:
    from asyncpg import Connection, Record

ROWS: Final = 1000
"""Rows that one statement examines."""
BUDGET: Final = 0.2
"""Seconds after which a sweep releases the connection for other work."""
_START: Final = ("", "", 0)


class TagSweep:
    """One engine's progress through the table of tags: each sweep continues where the last one ended."""

    def __init__(self) -> None:
        self._place: tuple[str, str, int] = _START

    async def run(self, connection: Connection[Record], budget: float = BUDGET) -> None:
        """Examine the next rows until the budget is spent, or the last row is reached."""
        until = time.monotonic() + budget
        while True:
            found = await connection.fetchrow(SQL["sweep_tags"], *self._place, ROWS)
            if found is None:
                self._place = _START
                return
            self._place = tuple(found)
            if time.monotonic() >= until:
                return
