"""Submits: new jobs, and joins of jobs with the same unique."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.sqlite import rows
from mainspring.engines.sqlite.finding import first
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.tags import indexed_tags
from mainspring.namespaces import namespace_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job


def submit(tx: Transaction, operations: Sequence[ops.Submit]) -> list[dict[int, ops.Found]]:
    """Store new jobs; see ``Submit``. Jobs without a unique cannot conflict and are stored in one batch."""
    plain: list[rows.Row] = []
    named: list[Job] = []
    tagged: list[Job] = []
    number = tx.functions.number
    numbers: dict[tuple[int, int, int], int] = {}
    for operation in operations:
        for job in operation.jobs:
            if job.unique:
                named.append(job)
            else:
                function = number(job.function)
                plain.append(rows.submitted(job, function))
                key = (function, job.state, job.priority)
                numbers[key] = numbers.get(key, 0) + 1
                if job.options is not None and job.options.tags:
                    tagged.append(job)
    for (function, state, priority), count in numbers.items():
        tx.count(function, state, priority, count)
    if plain:
        tx.cursor.executemany(SQL["submit"], plain)
        if tagged:
            _store_tags(tx, tagged)
    joined = _submit_named(tx, named) if named else {}
    if not joined:
        return [{} for _ in operations]
    return [{job.id: joined[job.id] for job in operation.jobs if job.id in joined} for operation in operations]


def _submit_named(tx: Transaction, named: list[Job]) -> dict[int, ops.Found]:
    joined: dict[int, ops.Found] = {}
    fresh: list[Job] = []
    for job in named:
        kept = _kept(tx, job)
        if kept is None:
            fresh.append(job)
        else:
            # A live job takes precedence over an ended one, even if this group has just submitted it.
            _store_named(tx, fresh, joined)
            fresh = []
            function = tx.functions.number(job.function)
            joined[job.id] = first(tx, SQL["live"], (function, job.unique)) or kept
    _store_named(tx, fresh, joined)
    return joined


def _store_named(tx: Transaction, fresh: list[Job], joined: dict[int, ops.Found]) -> None:
    numbered = [(job, tx.functions.number(job.function)) for job in fresh]
    connection = tx.cursor.connection
    before = connection.total_changes()
    tx.cursor.executemany(SQL["submit_unique"], [rows.submitted(job, function) for job, function in numbered])
    all_stored = connection.total_changes() - before == len(fresh)
    for job, function in numbered:
        if not all_stored:
            (live,) = tx.cursor.execute(SQL["live"], (function, job.unique))
            if live[0] != job.id:
                joined[job.id] = ops.Found(*live)
                continue
        tx.count(function, job.state, job.priority, 1)
        if job.options is not None and job.options.tags:
            _store_tags(tx, [job])


def _store_tags(tx: Transaction, stored: list[Job]) -> None:
    tx.cursor.executemany(
        SQL["tag"], [(namespace_of(job.function), tag, job.id) for job in stored for tag in indexed_tags(job)]
    )


def _kept(tx: Transaction, job: Job) -> ops.Found | None:
    keep = job.options.keep_unique if job.options is not None else None
    if keep is None:
        return None
    function = tx.functions.number(job.function)
    return first(tx, SQL["kept"], (function, job.unique, rules.kept_since(job.created_us, keep)))
