"""The probe: checks that the file accepts writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sqlite.statements import SQL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.storage.operation import Probe


def probe(tx: Transaction, operations: Sequence[Probe]) -> list[None]:
    """Write a job and delete it again: its pages go to the log with the commit."""
    tx.cursor.execute(SQL["probe"])
    tx.cursor.execute(SQL["probed"])
    return [None] * len(operations)
