"""The handlers for clients' changes of single jobs: reschedule waiting ones, delete ended ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres import inbox, rows
from mainspring.engines.postgres.cancelling import by_namespace
from mainspring.engines.postgres.floors import Floors
from mainspring.engines.postgres.logs import SQL as LOGS
from mainspring.engines.postgres.queries import look_up
from mainspring.engines.postgres.rows import SQL
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job

_BEFORE, _PRIORITY, _PLACE = 20, 21, 22
"""The indexes of these columns in the rows of the statement ``reschedule``."""


async def reschedule(tx: Transaction, operations: Sequence[ops.Reschedule]) -> list[ops.Rescheduled]:
    """Reschedule waiting jobs; see ``Reschedule``. Operations on one job follow each other."""
    await inbox.admit(tx, [operation.id for operation in operations])
    aliases = await inbox.aliases(tx, [operation.id for operation in operations])
    return [await _reschedule(tx, aliases.get(operation.id, operation.id), operation) for operation in operations]


async def _reschedule(tx: Transaction, job_id: int, operation: ops.Reschedule) -> ops.Rescheduled:
    job = (await look_up(tx, [job_id], operation.namespace)).get(job_id)
    if job is None:
        return ops.Rescheduled(None, 0, 0)
    if job.state > State.PENDING:
        return ops.Rescheduled(job, job.state, job.priority)
    after = rules.rescheduled(State(job.state), operation.due_us, operation.now_us)
    values = [[value] for value in (job_id, int(after), operation.due_us, operation.priority, operation.expires_us)]
    records = await tx.connection.fetch(SQL["reschedule"], *values)
    if not records:  # another node has claimed it meanwhile, or it has ended
        job = (await look_up(tx, [job_id], operation.namespace)).get(job_id)
        return ops.Rescheduled(job, State.LEASED if job is None else max(job.state, State.LEASED), 0)
    (changed,) = await rows.stored(tx, records)
    _count(tx, records[0], changed)
    return ops.Rescheduled(changed, records[0][_BEFORE], records[0][_PRIORITY])


def _count(tx: Transaction, record: Record, job: Job) -> None:
    """Count a rescheduled job at its new place, and lower the floors so that the next scans find it there."""
    function, before, priority = record[1], record[_BEFORE], record[_PRIORITY]
    tx.count(function, before, priority, -1)
    tx.count(function, job.state, job.priority, 1)
    floors = tx.memory(Floors)
    if job.state == State.SCHEDULED:
        floors.due.lower(job.due_us)
    else:
        floors.note_returned(function, job.priority, record[_PLACE])
        tx.pending(job.function)
    if job.expires_us:
        floors.expiring.lower(job.expires_us)


async def delete_ended(tx: Transaction, operations: Sequence[ops.DeleteEnded]) -> list[ops.Deleted]:
    """Delete ended jobs; see ``DeleteEnded``."""
    return await by_namespace(tx, operations, _delete_ended)


async def _delete_ended(tx: Transaction, operations: Sequence[ops.DeleteEnded], namespace: str) -> list[ops.Deleted]:
    wanted = [operation.id for operation in operations]
    aliases = await inbox.aliases(tx, wanted)
    ids = rows.known_ids(aliases.get(job_id, job_id) for job_id in wanted)
    found = await look_up(tx, ids, namespace)
    ids = sorted(found)
    gone = set()
    for job_id, function, state, priority in await tx.connection.fetch(SQL["delete_ended"], ids) if ids else ():
        gone.add(job_id)
        tx.count(function, state, priority, -1)
    if gone:
        await tx.connection.execute(LOGS["delete_logs"], list(gone))
    outcomes = []
    for job_id in wanted:
        job_id = aliases.get(job_id, job_id)
        outcomes.append(ops.Deleted(found.get(job_id), deleted=job_id in gone))
        if job_id in gone:
            gone.discard(job_id)
            found.pop(job_id)
    return outcomes
