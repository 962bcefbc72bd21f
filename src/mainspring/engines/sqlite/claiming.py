"""Leases of due jobs on SQLite, and the records that their attempts run."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from mainspring.engines.sqlite import rows
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs.model import Job, State
from mainspring.jobs.owners import Started, note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs import store as ops

_PENDING: Final = int(State.PENDING)
_LEASED: Final = int(State.LEASED)


def claim(tx: Transaction, operations: Sequence[ops.Claim]) -> list[list[list[Job]]]:
    """Lease due jobs; see ``Claim``."""
    return [[_claim(tx, operation.term, want) for want in operation.wants] for operation in operations]


def _claim(tx: Transaction, term: int, want: ops.ClaimRequest) -> list[Job]:
    function = tx.functions.find(want.function)
    if function is None:
        return []  # never submitted: workers may request any name, and only submitted functions have a number
    claimed = rows.claimed(tx.cursor.execute(SQL["claim"], (term, function, want.limit)), want.function, term)
    claimed.sort(key=attrgetter("priority", "id"))
    numbers: dict[int, int] = {}
    for job in claimed:
        numbers[job.priority] = numbers.get(job.priority, 0) + 1
    for priority, number in numbers.items():
        tx.count(function, _PENDING, priority, -number)
        tx.count(function, _LEASED, priority, number)
    return claimed


def assign(tx: Transaction, operations: Sequence[ops.Assign]) -> list[None]:
    """Record jobs as running; see ``Assign``."""
    jobs = [job for operation in operations for job in operation.jobs]
    tx.cursor.executemany(SQL["assign"], [_running(job) for job in jobs if job.options is None])
    for job in jobs:
        if job.options is not None:
            tx.cursor.execute(SQL["assign"], _running(job))
            if tx.cursor.connection.changes():
                note(tx.notices, Started.of(job))
    return [None] * len(operations)


def _running(job: Job) -> rows.Row:
    return (job.attempt, job.id, job.term)
