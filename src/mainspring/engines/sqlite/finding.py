"""Lookups and counts of jobs in a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sqlite import rows
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs import store as ops
from mainspring.jobs.model import read_options
from mainspring.namespaces import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job

SMALL_RESULT = 65_536
"""Bytes up to which results are read with the group. The engine's thread reads larger ones, which wait for the disk and not for
the interpreter."""


def first(tx: Transaction, statement: str, values: tuple[object, ...]) -> ops.Found | None:
    """Return the first job in the rows of a statement."""
    for row in tx.cursor.execute(statement, values):
        return ops.Found(*row)
    return None


def find_job(tx: Transaction, job_id: int, namespace: str = ANY) -> Job | None:
    """Return a job of a namespace, without its result."""
    if job_id > rows.LARGEST_ID:
        return None
    statement, values = ("find", (job_id,)) if namespace == ANY else ("find_of", (job_id, namespace))
    jobs = rows.stored(tx.cursor.execute(SQL[statement], values), tx.functions, read_options)
    return jobs[0] if jobs else None


def find_short(tx: Transaction, job_id: int, namespace: str) -> Job | None:
    """Return a job of a namespace, without its result, or None if it is long or not there."""
    if job_id > rows.LARGEST_ID:
        return None
    jobs = rows.stored(tx.cursor.execute(SQL["find_short"], (job_id, namespace)), tx.functions, read_options)
    return jobs[0] if jobs else None


def find(tx: Transaction, operations: Sequence[ops.Find]) -> list[dict[int, Job]]:
    """Return jobs by their ids; see ``Find``. A group has one copy of each result."""
    outcomes = []
    results: dict[int, bytes] = {}
    large: dict[int, list[Job]] = {}
    for operation in operations:
        looked_up = (find_job(tx, job_id, operation.namespace) for job_id in operation.ids)
        found = {job.id: job for job in looked_up if job is not None}
        for job in ops.fitting(found, operation.room):
            if job.output_size > SMALL_RESULT:
                large.setdefault(job.id, []).append(job)
                continue
            if job.id not in results:
                ((results[job.id],),) = tx.cursor.execute(SQL["result"], (job.id,))
            job.result = results[job.id]
        outcomes.append(found)
    tx.large.extend(large.values())
    return outcomes


def read_large(tx: Transaction) -> None:
    """Read the large results that the group needs: without the interpreter lock, and one copy of each."""
    jobs, tx.large = tx.large, []
    for same in jobs:
        with tx.cursor.connection.blob_open("main", "jobs", "result", same[0].id, False) as blob:
            result = blob.read()
        for job in same:
            job.result = result


def find_unique(tx: Transaction, operations: Sequence[ops.FindUnique]) -> list[list[ops.Found | None]]:
    """Return live jobs by their uniques; see ``FindUnique``."""
    return [[_find_unique(tx, *key) for key in operation.keys] for operation in operations]


def _find_unique(tx: Transaction, function: bytes | ops.InNamespace, unique: bytes) -> ops.Found | None:
    if isinstance(function, ops.InNamespace):
        return first(tx, SQL["live_anywhere"], (unique, function.namespace))
    number = tx.functions.find(function)
    return None if number is None else first(tx, SQL["live"], (number, unique))


def count(tx: Transaction, operations: Sequence[ops.Count]) -> list[dict[tuple[bytes, int, int], int]]:
    """Return the counts; see ``Count``."""
    tx.write_counts()
    counts = {
        (tx.functions.key(function), state, priority): number
        for function, state, priority, number in tx.cursor.execute(SQL["counts"])
    }
    return [counts for _ in operations]


def count_live(tx: Transaction, operations: Sequence[ops.CountLive]) -> list[ops.Counted]:
    """Return the counts of some functions; see ``CountLive``."""
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
