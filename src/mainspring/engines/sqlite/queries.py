"""The read side on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sqlite import rows
from mainspring.engines.sqlite.rows import LARGEST_ID
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs.model import Priority, State
from mainspring.queries.jobs import MOST_KEYS

if TYPE_CHECKING:
    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.queries.jobs import FirstInLine, ListJobs


def list_jobs(tx: Transaction, operation: ListJobs) -> list[Job]:
    """List jobs, newest first. Where no index helps, this passes over the jobs, from the newest on, until enough match."""
    which = operation.filter
    function = None
    if which.function is not None:
        function = tx.functions.find(which.function)
        if function is None:
            return []
    before = LARGEST_ID if which.before is None else min(which.before, LARGEST_ID)
    statement = SQL["list" if which.state is None else _by_state(tx, which.state, which.limit)]
    values = (before, which.state, function, which.unique, which.limit)
    return rows.stored(tx.cursor.execute(statement, values), tx.functions)


def first_in_line(tx: Transaction, operation: FirstInLine) -> dict[bytes, int]:
    """Read since when the first ones have waited; see ``FirstInLine``."""
    found = {}
    for name in operation.functions:
        function = tx.functions.find(name)
        if function is None:
            continue
        times = [
            time_us
            for priority in Priority
            for (time_us,) in tx.cursor.execute(SQL["first_in_line"], (function, priority, MOST_KEYS))
        ]
        if times:
            found[name] = min(times)
    return found


_INDEXES = {
    State.SCHEDULED: "list_scheduled",
    State.PENDING: "list_queue",
    State.LEASED: "list_queue",
    State.RUNNING: "list_queue",
    State.FAILED: "list_unsuccessful",
    State.CANCELLED: "list_unsuccessful",
    State.EXPIRED: "list_unsuccessful",
}


def _by_state(tx: Transaction, state: State, limit: int) -> str:
    """Choose a statement: the index passes all jobs of the state, the other one as many as it takes to meet enough of them."""
    index = _INDEXES.get(state)
    counted = State.LEASED if state is State.RUNNING else state
    ((number, total),) = tx.cursor.execute(SQL["state_share"], (counted,))
    return index if index is not None and number * number <= limit * total else "list"
