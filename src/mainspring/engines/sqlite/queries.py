"""The read side on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sqlite import rows
from mainspring.engines.sqlite.statements import SQL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.queries.jobs import ListJobs


def list_jobs(tx: Transaction, operations: Sequence[ListJobs]) -> list[list[Job]]:
    """List jobs, newest first."""
    return [_list(tx, operation) for operation in operations]


def _list(tx: Transaction, operation: ListJobs) -> list[Job]:
    which = operation.filter
    function = None
    if which.function is not None:
        function = tx.functions.numbers.get(("default", which.function))
        if function is None:
            return []
    values = (which.before, which.state, function, which.unique, which.limit)
    return rows.stored(tx.cursor.execute(SQL["list"], values), tx.functions.names)
