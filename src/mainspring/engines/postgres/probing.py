"""The probe: checks that the server accepts writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from mainspring.engines.postgres.statements import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.storage.operation import Probe

_SQL = load("engine.sql")


async def probe(tx: Transaction, operations: Sequence[Probe]) -> list[None]:
    """Check the rights to all tables; the group's row in the journal is the write."""
    withheld = await tx.connection.fetchval(_SQL["withheld"])
    if withheld is not None:
        # The server's own text for a statement that needs the right: one cause has one text.
        raise asyncpg.InsufficientPrivilegeError(f"permission denied for table {withheld}")
    return [None] * len(operations)
