"""The journal of groups, and the counts that it is folded into.

Each group appends one row: the proof that it was committed, and its changes of the counts. No row that all groups write is ever
updated, so a transaction elsewhere that keeps dead tuples for minutes costs nothing. Every few seconds one node sums the rows up
and deletes them. The newest row of a term that has not ended stays: a second attempt of that group must conflict with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres.statements import load

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from mainspring.engines.postgres.transaction import Transaction

_SQL = load("engine.sql")


def entry(tx: Transaction, number: int) -> str:
    """Return the statements that end a group. They contain only integers, and go to the server in one message."""
    deltas = [(*key, delta) for key, delta in tx.deltas.items() if delta]
    columns = zip(*deltas, strict=True) if deltas else ((),) * 4
    arrays = ",".join("'{" + ",".join(map(str, column)) + "}'" for column in columns)
    return f"INSERT INTO journal VALUES ({tx.term},{number},{arrays}); COMMIT"  # noqa: S608 - only integers


async def counts(tx: Transaction) -> dict[tuple[int, int, int], int]:
    """Return the present counts, with the changes of the group under way: (function, state, priority) to a number."""
    found = {(row[0], row[1], row[2]): row[3] for row in await tx.connection.fetch(_SQL["counts"])}
    for key, delta in tx.deltas.items():
        found[key] = found.get(key, 0) + delta
    return {key: number for key, number in found.items() if number}


async def fold(connection: Connection[Record], checksum: int) -> int:
    """Fold the journal into the counts, unless another node is doing so; return the number of folded groups."""
    folded: int = await connection.fetchval(_SQL["fold"], checksum)
    return folded


async def forget_terms(connection: Connection[Record]) -> None:
    """Mark the ended terms that have neither jobs nor waiters left, so that later checks skip them, and drop their mail."""
    await connection.execute(_SQL["forget_terms"])
    await connection.execute(_SQL["forget_mail"])
