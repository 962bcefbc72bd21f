"""Jobs that are looked up in a group, and how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sqlite import rows
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs import store as ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job

SMALL = 65_536
"""Results of more bytes are read in the engine's thread: they take the disk's time, and no interpreter."""


def first(tx: Transaction, statement: str, values: tuple[object, ...]) -> ops.Found | None:
    """Return the first job that a statement finds."""
    for row in tx.cursor.execute(statement, values):
        return ops.Found(*row)
    return None


def find_job(tx: Transaction, job_id: int) -> Job | None:
    """Look a job up, without its result."""
    if job_id > rows.LARGEST_ID:
        return None
    jobs = rows.stored(tx.cursor.execute(SQL["find"], (job_id,)), tx.functions)
    return jobs[0] if jobs else None


def find(tx: Transaction, operations: Sequence[ops.Find]) -> list[dict[int, Job]]:
    """Look jobs up; see ``Find``. Of each result there is one copy in a group."""
    outcomes = []
    results: dict[int, bytes] = {}
    large: dict[int, list[Job]] = {}
    for operation in operations:
        looked_up = (find_job(tx, job_id) for job_id in operation.ids)
        found = {job.id: job for job in looked_up if job is not None}
        for job in ops.fitting(found, operation.room):
            if job.output_size > SMALL:
                large.setdefault(job.id, []).append(job)
                continue
            if job.id not in results:
                ((results[job.id],),) = tx.cursor.execute(SQL["result"], (job.id,))
            job.result = results[job.id]
        outcomes.append(found)
    tx.large.extend(large.values())
    return outcomes


def read_large(tx: Transaction) -> None:
    """Read the large results that the group has looked up: one step that does not hold the interpreter, and one copy of each."""
    jobs, tx.large = tx.large, []
    for same in jobs:
        with tx.cursor.connection.blob_open("main", "jobs", "result", same[0].id, False) as blob:
            result = blob.read()
        for job in same:
            job.result = result


def find_unique(tx: Transaction, operations: Sequence[ops.FindUnique]) -> list[list[ops.Found | None]]:
    """Look live jobs up; see ``FindUnique``."""
    return [[_find_unique(tx, *key) for key in operation.keys] for operation in operations]


def _find_unique(tx: Transaction, function: bytes | None, unique: bytes) -> ops.Found | None:
    if function is None:
        return first(tx, SQL["live_anywhere"], (unique,))
    number = tx.functions.find(function)
    return None if number is None else first(tx, SQL["live"], (number, unique))


def count(tx: Transaction, operations: Sequence[ops.Count]) -> list[dict[tuple[bytes, int, int], int]]:
    """Read the counts; see ``Count``."""
    tx.write_counts()
    counts = {
        (tx.functions.name(function)[1], state, priority): number
        for function, state, priority, number in tx.cursor.execute(SQL["counts"])
    }
    return [counts for _ in operations]


def count_live(tx: Transaction, operations: Sequence[ops.CountLive]) -> list[ops.Counted]:
    """Read the counts of some functions; see ``CountLive``."""
    tx.write_counts()
    return [_counts_of(tx, operation.functions) for operation in operations]


def _counts_of(tx: Transaction, functions: Sequence[bytes]) -> ops.Counted:
    counts = {}
    for name in functions:
        function = tx.functions.find(name)
        if function is not None:
            for state, priority, number in tx.cursor.execute(SQL["counts_of"], (function,)):
                counts[name, state, priority] = number
    return ops.Counted(counts)
