"""Finding out whether the server takes what is written."""

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
    """Look at the rights to all tables; the group's entry in the journal is what is written."""
    withheld = await tx.connection.fetchval(_SQL["withheld"])
    if withheld is not None:
        # As the server says it of the statement that needs the right: one cause has one text.
        raise asyncpg.InsufficientPrivilegeError(f"permission denied for table {withheld}")
    return [None] * len(operations)
