"""Jobs that nobody holds: cancelled, and put back once they have ended without success."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres import inbox, rows, waiting
from mainspring.engines.postgres.floors import Floors
from mainspring.engines.postgres.queries import look_up
from mainspring.engines.postgres.rows import SQL
from mainspring.errors import StoreError
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended, note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job

_PENDING, _CANCELLED = int(State.PENDING), int(State.CANCELLED)
_BEFORE, _WAITED = 20, 21
"""Where these columns are in the rows of the statements ``cancel`` and ``expire``."""
ROUNDS = 20


async def cancel(tx: Transaction, operations: Sequence[ops.Cancel]) -> list[ops.Cancelled]:
    """Cancel what waits; see ``Cancel``."""
    wanted = [operation.id for operation in operations]
    cancelled: dict[int, ops.Cancelled] = {}
    for _ in range(ROUNDS):
        await inbox.admit(tx, wanted)
        aliases = await inbox.aliases(tx, wanted)
        first: dict[int, ops.Cancel] = {}
        for operation in operations:
            first.setdefault(aliases.get(operation.id, operation.id), operation)
        left = [job_id for job_id in rows.known_ids(first) if job_id not in cancelled]
        columns = [first[job_id].now_us for job_id in left], [first[job_id].error or None for job_id in left]
        gone = await ended(tx, await tx.connection.fetch(SQL["cancel"], left, *columns) if left else ())
        cancelled.update((job.id, ops.Cancelled(job, before)) for job, before in gone)
        found = await look_up(tx, [job_id for job_id in left if job_id not in cancelled])
        # One that was held, or not there yet, may wait by the time it is looked up: told so, a node would take it for cancelled.
        if all(job.state >= State.LEASED for job in found.values()):
            break
    else:
        raise StoreError("the jobs to be cancelled were taken and given back too fast; try again")
    outcomes = []
    for operation in operations:
        job_id = aliases.get(operation.id, operation.id)
        outcome = cancelled.get(job_id)
        if outcome is None:
            job = found.get(job_id)
            outcome = ops.Cancelled(job, 0 if job is None else job.state)
        elif first[job_id] is not operation:
            outcome = ops.Cancelled(outcome.job, _CANCELLED)
        outcomes.append(outcome)
    return outcomes


async def ended(tx: Transaction, records: Sequence[Record]) -> list[tuple[Job, int]]:
    """Count jobs that have ended without being held, and let be told who waits; returns each with its state before."""
    jobs = await rows.stored(tx, records)
    for record, job in zip(records, jobs, strict=True):
        tx.count(record[1], record[_BEFORE], job.priority, -1)
        tx.count(record[1], job.state, job.priority, 1)
        if job.options is not None:
            note(tx.notices, Ended.of(job))
    await waiting.tell(tx, (record[0] for record in records if record[_WAITED]))
    return [(job, record[_BEFORE]) for job, record in zip(jobs, records, strict=True)]


async def redrive(tx: Transaction, operations: Sequence[ops.Redrive]) -> list[ops.Redriven]:
    """Put ended jobs back; see ``Redrive``."""
    wanted = [operation.id for operation in operations]
    aliases = await inbox.aliases(tx, wanted)
    ids = list(dict.fromkeys(aliases.get(job_id, job_id) for job_id in wanted))
    known = rows.known_ids(ids)
    dead = {row[0]: row for row in await tx.connection.fetch(SQL["lock_dead"], known)} if known else {}
    redriven, rivals = await _redrive(tx, [job_id for job_id in ids if job_id in dead], dead)
    found = await look_up(tx, known)
    await tx.nodes.meet(rivals.values())
    outcomes = []
    for job_id in wanted:
        job_id = aliases.get(job_id, job_id)
        outcomes.append(ops.Redriven(found.get(job_id), job_id in redriven, rivals.get(job_id)))
        redriven.discard(job_id)  # asked for again, it has been redriven before
    return outcomes


async def _redrive(tx: Transaction, ids: list[int], dead: dict[int, Record]) -> tuple[set[int], dict[int, int]]:
    """Redrive jobs whose rows are locked; returns them, and the rivals of the others."""
    redriven: set[int] = set()
    rivals: dict[int, int] = {}
    for _ in range(ROUNDS):
        left = [job_id for job_id in ids if job_id not in redriven and job_id not in rivals]
        if not left:
            return redriven, rivals
        stored = [row[0] for row in await tx.connection.fetch(SQL["redrive"], left)]
        await tx.connection.fetch(SQL["undead"], stored)
        redriven.update(stored)
        await tx.functions.meet({dead[job_id][1] for job_id in stored})
        for job_id in stored:
            _, function, state, priority, place, _ = dead[job_id]
            tx.count(function, state, priority, -1)
            tx.count(function, _PENDING, priority, 1)
            tx.memory(Floors).back(function, priority, place)
            tx.pending(tx.functions.names[function][1])
        refused = [dead[job_id] for job_id in left if job_id not in redriven]
        if refused:
            columns = [row[1] for row in refused], [row[5] for row in refused]
            live = {(row[0], row[1]): row[2] for row in await tx.connection.fetch(SQL["live"], *columns)}
            rivals.update((row[0], live[row[1], row[5]]) for row in refused if (row[1], row[5]) in live)
    raise StoreError("the rivals of redriven jobs came and went too fast")
