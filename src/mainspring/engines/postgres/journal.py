"""The journal of groups and the counts that it is folded into.

Each group appends one row: the proof that it was committed, and what it changed in the counts. Nothing that all groups write is
ever updated, so a transaction elsewhere that keeps dead rows alive for minutes costs nothing. Every few seconds one node sums the
rows up and removes them. The newest row of a term that has not ended stays: a second attempt of that group must meet it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres.statements import load

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from mainspring.engines.postgres.transaction import Transaction

_SQL = load("engine.sql")


def entry(tx: Transaction, number: int) -> str:
    """Return the statements that end a group. They hold nothing but integers, and go to the server in one piece."""
    deltas = [(*key, delta) for key, delta in tx.deltas.items() if delta]
    columns = zip(*deltas, strict=True) if deltas else ((),) * 4
    arrays = ",".join("'{" + ",".join(map(str, column)) + "}'" for column in columns)
    return f"INSERT INTO journal VALUES ({tx.term},{number},{arrays}); COMMIT"  # noqa: S608 - integers, all of them


async def counts(tx: Transaction) -> dict[tuple[int, int, int], int]:
    """Return the counts as they are, with what the group under way has changed: (function, state, priority) to a number."""
    found = {(row[0], row[1], row[2]): row[3] for row in await tx.connection.fetch(_SQL["counts"])}
    for key, delta in tx.deltas.items():
        found[key] = found.get(key, 0) + delta
    return {key: number for key, number in found.items() if number}


async def fold(connection: Connection[Record], checksum: int) -> int:
    """Fold the journal into the counts, unless another node does so at the moment; returns how many groups were folded."""
    folded: int = await connection.fetchval(_SQL["fold"], checksum)
    return folded


async def forget_terms(connection: Connection[Record]) -> None:
    """Mark the terms that nothing is left of, so that nobody looks at them again."""
    await connection.execute(_SQL["forget_terms"])
