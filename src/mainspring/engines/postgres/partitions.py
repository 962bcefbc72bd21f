"""Partitions of what has ended: made ahead, dropped whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncpg import Connection, Record


async def upkeep(connection: Connection[Record]) -> None:
    """Make the partitions that will be needed next; called on the control connection at the start and every hour."""
