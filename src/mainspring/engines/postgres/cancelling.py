"""The handlers for jobs that no node holds: cancel them, or redrive them once they have ended without success."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from mainspring.engines.postgres import inbox, rows, waiting
from mainspring.engines.postgres.floors import Floors
from mainspring.engines.postgres.queries import look_up
from mainspring.engines.postgres.rows import SQL
from mainspring.errors import StoreError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended, note
from mainspring.jobs.rules import Event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job

Operations = TypeVar("Operations", ops.Cancel, ops.Redrive, ops.DeleteEnded)
Outcome = TypeVar("Outcome")
_CANCELLED = int(State.CANCELLED)
_BEFORE, _WAITED = 20, 21
"""The indexes of these columns in the rows of the statements ``cancel`` and ``expire``."""
RACE_ROUNDS = 20


async def cancel(tx: Transaction, operations: Sequence[ops.Cancel]) -> list[ops.Cancelled]:
    """Cancel jobs that no node holds; see ``Cancel``."""
    return await by_namespace(tx, operations, _cancel)


async def by_namespace(
    tx: Transaction,
    operations: Sequence[Operations],
    run: Callable[[Transaction, Sequence[Operations], str], Awaitable[list[Outcome]]],
) -> list[Outcome]:
    """Run the operations of each namespace together: nearly always all of them are of one."""
    outcomes: dict[int, Outcome] = {}
    for namespace in dict.fromkeys(operation.namespace for operation in operations):
        places = [at for at, operation in enumerate(operations) if operation.namespace == namespace]
        found = await run(tx, [operations[at] for at in places], namespace)
        outcomes.update(zip(places, found, strict=True))
    return [outcomes[at] for at in range(len(operations))]


async def _cancel(tx: Transaction, operations: Sequence[ops.Cancel], namespace: str) -> list[ops.Cancelled]:
    wanted = [operation.id for operation in operations]
    cancelled: dict[int, ops.Cancelled] = {}
    for _ in range(RACE_ROUNDS):
        await inbox.admit(tx, wanted)
        aliases = await inbox.aliases(tx, wanted)
        first: dict[int, ops.Cancel] = {}
        for operation in operations:
            first.setdefault(aliases.get(operation.id, operation.id), operation)
        left = [job_id for job_id in rows.known_ids(first) if job_id not in cancelled]
        columns = [first[job_id].now_us for job_id in left], [first[job_id].error or None for job_id in left]
        gone = await ended(tx, await tx.connection.fetch(SQL["cancel"], left, *columns, namespace) if left else ())
        cancelled.update((job.id, ops.Cancelled(job, before)) for job, before in gone)
        found = await look_up(tx, [job_id for job_id in left if job_id not in cancelled], namespace)
        # A job that was held or missing above may be pending now. Reported so, the node would take it for cancelled.
        if all(job.state >= State.LEASED for job in found.values()):
            break
    else:
        raise StoreError("the jobs to be cancelled were claimed and released too fast; try again")
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
    """Count jobs that ended while no node held them, and notify the waiters; return each job with its state before."""
    jobs = await rows.stored(tx, records)
    for record, job in zip(records, jobs, strict=True):
        tx.count(record[1], record[_BEFORE], job.priority, -1)
        tx.count(record[1], job.state, job.priority, 1)
        if job.options is not None:
            note(tx.notices, Ended.of(job))
    await waiting.notify_waiters(tx, (record[0] for record in records if record[_WAITED]))
    return [(job, record[_BEFORE]) for job, record in zip(jobs, records, strict=True)]


async def redrive(tx: Transaction, operations: Sequence[ops.Redrive]) -> list[ops.Redriven]:
    """Redrive ended jobs; see ``Redrive``."""
    return await by_namespace(tx, operations, _redrive)


async def _redrive(tx: Transaction, operations: Sequence[ops.Redrive], namespace: str) -> list[ops.Redriven]:
    wanted = [operation.id for operation in operations]
    aliases = await inbox.aliases(tx, wanted)
    ids = list(dict.fromkeys(aliases.get(job_id, job_id) for job_id in wanted))
    stored_ids = rows.known_ids(ids)
    dead = (
        {row[0]: row for row in await tx.connection.fetch(SQL["lock_dead"], stored_ids, namespace)}
        if stored_ids
        else {}
    )
    first: dict[int, ops.Redrive] = {}
    for operation in operations:
        first.setdefault(aliases.get(operation.id, operation.id), operation)
    redriven, rivals = await _redrive_locked(tx, [job_id for job_id in ids if job_id in dead], dead, first)
    found = await look_up(tx, stored_ids, namespace)
    await tx.nodes.load(rivals.values())
    outcomes = []
    for job_id in wanted:
        job_id = aliases.get(job_id, job_id)
        outcomes.append(ops.Redriven(found.get(job_id), job_id in redriven, rivals.get(job_id)))
        redriven.discard(job_id)  # a second request for it finds it redriven
    return outcomes


async def _redrive_locked(
    tx: Transaction, ids: list[int], dead: dict[int, Record], requests: dict[int, ops.Redrive]
) -> tuple[set[int], dict[int, int]]:
    """Redrive jobs whose rows are locked; return their ids, and the live rivals of the others."""
    redriven: set[int] = set()
    rivals: dict[int, int] = {}
    for _ in range(RACE_ROUNDS):
        left = [job_id for job_id in ids if job_id not in redriven and job_id not in rivals]
        if not left:
            return redriven, rivals
        revived = []
        for portion in rows.portions(left, lambda job_id: requests[job_id].size):
            revived += [row[0] for row in await tx.connection.fetch(SQL["redrive"], *_columns(portion, requests))]
        await tx.connection.fetch(SQL["delete_dead"], revived)
        redriven.update(revived)
        await tx.functions.load_keys({dead[job_id][1] for job_id in revived})
        for job_id in revived:
            _, function, state, priority, place, _ = dead[job_id]
            tx.count(function, state, priority, -1)
            due_us = requests[job_id].due_us
            tx.count(function, rules.redriven(State(state), due_us), priority, 1)
            if due_us:
                tx.memory(Floors).due.lower(due_us)
                continue
            tx.memory(Floors).note_returned(function, priority, place)
            tx.pending(tx.functions.keys[function])
        refused = [dead[job_id] for job_id in left if job_id not in redriven]
        if refused:
            keys = [row[1] for row in refused], [row[5] for row in refused]
            live = {(row[0], row[1]): row[2] for row in await tx.connection.fetch(SQL["live"], *keys)}
            rivals.update((row[0], live[row[1], row[5]]) for row in refused if (row[1], row[5]) in live)
    raise StoreError("live jobs with the uniques of redriven jobs came and went too fast; try again")


def _columns(ids: Sequence[int], requests: dict[int, ops.Redrive]) -> rows.Columns:
    """Return the columns of the statement ``redrive``."""
    after = [int(rules.target(Event.REDRIVE_LATER if requests[job_id].due_us else Event.REDRIVE)) for job_id in ids]
    due = rows.sparse([requests[job_id].due_us or None for job_id in ids])
    return [ids, after, due, rows.sparse([requests[job_id].payload for job_id in ids])]
