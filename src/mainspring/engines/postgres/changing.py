"""Changes of jobs that no node holds: clients cancel, redrive, reschedule and delete them; they become due or expire.

Operations on many jobs make them step by step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from mainspring.bulk.store import BulkUnit
from mainspring.engines.postgres import settling, submitting, transaction
from mainspring.engines.postgres.claiming import COMMITTED_AFTER, Floors
from mainspring.engines.postgres.lists import look_up
from mainspring.engines.postgres.schedules import PostgresScheduleUnit
from mainspring.engines.postgres.transaction import JOBS_SQL, SQL
from mainspring.engines.sql import deadlines
from mainspring.engines.sql.bulk import BulkRows, BulkSlice
from mainspring.engines.sql.deadlines import DeadlineRows
from mainspring.errors import StoreError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.lateness import redated
from mainspring.jobs.model import State
from mainspring.jobs.owners import Ended, note
from mainspring.jobs.rules import Event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.claiming import Floor
    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.queries import JobFilter
    from mainspring.schedules.rules import Backfill, Backfilled
    from mainspring.storage.engine import Operation

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
        await submitting.admit(tx, wanted)
        aliases = await submitting.aliases(tx, wanted)
        first: dict[int, ops.Cancel] = {}
        for operation in operations:
            first.setdefault(aliases.get(operation.id, operation.id), operation)
        left = [job_id for job_id in transaction.known_ids(first) if job_id not in cancelled]
        columns = [first[job_id].now_us for job_id in left], [first[job_id].error or None for job_id in left]
        gone = await ended(tx, await tx.connection.fetch(JOBS_SQL["cancel"], left, *columns, namespace) if left else ())
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
    jobs = await transaction.stored_jobs(tx, records)
    forgotten = [job.id for job in jobs if settling.forgets(job)]
    if forgotten:
        await tx.connection.fetch(JOBS_SQL["delete_dead"], sorted(forgotten))
    for record, job in zip(records, jobs, strict=True):
        tx.count(record[1], record[_BEFORE], job.priority, -1)
        if not settling.forgets(job):
            tx.count(record[1], job.state, job.priority, 1)
        if job.options is not None:
            note(tx.notices, Ended.of(job))
    await settling.notify_waiters(tx, (record[0] for record in records if record[_WAITED]))
    return [(job, record[_BEFORE]) for job, record in zip(jobs, records, strict=True)]


async def redrive(tx: Transaction, operations: Sequence[ops.Redrive]) -> list[ops.Redriven]:
    """Redrive ended jobs; see ``Redrive``."""
    return await by_namespace(tx, operations, _redrive)


async def _redrive(tx: Transaction, operations: Sequence[ops.Redrive], namespace: str) -> list[ops.Redriven]:
    wanted = [operation.id for operation in operations]
    aliases = await submitting.aliases(tx, wanted)
    ids = list(dict.fromkeys(aliases.get(job_id, job_id) for job_id in wanted))
    stored_ids = transaction.known_ids(ids)
    dead = (
        {row[0]: row for row in await tx.connection.fetch(JOBS_SQL["lock_dead"], stored_ids, namespace)}
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
        for portion in transaction.portions(left, lambda job_id: requests[job_id].size):
            revived += [row[0] for row in await tx.connection.fetch(JOBS_SQL["redrive"], *_columns(portion, requests))]
        await tx.connection.fetch(JOBS_SQL["delete_dead"], revived)
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
            live = {(row[0], row[1]): row[2] for row in await tx.connection.fetch(JOBS_SQL["live"], *keys)}
            rivals.update((row[0], live[row[1], row[5]]) for row in refused if (row[1], row[5]) in live)
    raise StoreError("live jobs with the uniques of redriven jobs came and went too fast; try again")


def _columns(ids: Sequence[int], requests: dict[int, ops.Redrive]) -> transaction.Columns:
    """Return the columns of the statement ``redrive``."""
    after = [int(rules.target(Event.REDRIVE_LATER if requests[job_id].due_us else Event.REDRIVE)) for job_id in ids]
    due = transaction.sparse([requests[job_id].due_us or None for job_id in ids])
    return [ids, after, due, transaction.sparse([requests[job_id].payload for job_id in ids])]


_STATE_BEFORE, _PRIORITY, _PLACE, _DUE_BEFORE = 20, 21, 22, 23
"""The indexes of these columns in the rows of the statement ``reschedule``."""


async def reschedule(tx: Transaction, operations: Sequence[ops.Reschedule]) -> list[ops.Rescheduled]:
    """Reschedule waiting jobs; see ``Reschedule``. Operations on one job follow each other."""
    await submitting.admit(tx, [operation.id for operation in operations])
    aliases = await submitting.aliases(tx, [operation.id for operation in operations])
    return [await _reschedule(tx, aliases.get(operation.id, operation.id), operation) for operation in operations]


async def _reschedule(tx: Transaction, job_id: int, operation: ops.Reschedule) -> ops.Rescheduled:
    job = (await look_up(tx, [job_id], operation.namespace)).get(job_id)
    if job is None:
        return ops.Rescheduled(None, 0, 0)
    if job.state > State.PENDING or operation.is_too_soon(job):
        return ops.Rescheduled(job, max(job.state, State.LEASED), job.priority)
    after = rules.rescheduled(State(job.state), operation.due_us, operation.now_us)
    values = [[value] for value in (job_id, int(after), operation.due_us, operation.priority, operation.expires_us)]
    records = await tx.connection.fetch(JOBS_SQL["reschedule"], *values)
    if not records:  # another node has claimed it meanwhile, or it has ended
        job = (await look_up(tx, [job_id], operation.namespace)).get(job_id)
        return ops.Rescheduled(job, State.LEASED if job is None else max(job.state, State.LEASED), 0)
    (changed,) = await transaction.stored_jobs(tx, records)
    before = replace(changed, due_us=records[0][_DUE_BEFORE] or 0)
    await deadlines.redate(tx, changed, operation.redated(before), transaction.stored_options)
    _count(tx, records[0], changed)
    return ops.Rescheduled(changed, records[0][_STATE_BEFORE], records[0][_PRIORITY])


def _count(tx: Transaction, record: Record, job: Job) -> None:
    """Count a rescheduled job at its new place, and lower the floors so that the next scans find it there."""
    function, before, priority = record[1], record[_STATE_BEFORE], record[_PRIORITY]
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


async def redate(tx: Transaction, operations: Sequence[ops.Redate]) -> list[Job | None]:
    """Change by when jobs should have begun and ended; see ``Redate``. Operations on one job follow each other."""
    ids = [operation.id for operation in operations]
    await submitting.admit(tx, ids)
    aliases = await submitting.aliases(tx, ids)
    return [await _redate(tx, aliases.get(operation.id, operation.id), operation) for operation in operations]


async def _redate(tx: Transaction, job_id: int, operation: ops.Redate) -> Job | None:
    await tx.sql.fetch("lock_live_jobs", transaction.known_ids([job_id]))
    job = (await look_up(tx, [job_id], operation.namespace)).get(job_id)
    if job is not None and job.state < State.SUCCEEDED:
        change = redated(job, operation.start_us, operation.deadline_us)
        await deadlines.redate(tx, job, change, transaction.stored_options)
    return job


class PostgresDeadlines(DeadlineRows):
    """The rows of deadlines."""

    async def live_jobs(self, ids: Collection[int]) -> tuple[dict[int, Job], Collection[int]]:
        mine = {row[0] for row in await self._sql.fetch("lock_late_jobs", sorted(ids))}
        found = {row[0] for row in await self._sql.fetch("live_of", sorted(ids))}
        jobs = await look_up(self._tx, sorted(mine & found))
        return jobs, found - mine


async def delete_ended(tx: Transaction, operations: Sequence[ops.DeleteEnded]) -> list[ops.Deleted]:
    """Delete ended jobs; see ``DeleteEnded``."""
    return await by_namespace(tx, operations, _delete_ended)


async def _delete_ended(tx: Transaction, operations: Sequence[ops.DeleteEnded], namespace: str) -> list[ops.Deleted]:
    wanted = [operation.id for operation in operations]
    aliases = await submitting.aliases(tx, wanted)
    ids = transaction.known_ids(aliases.get(job_id, job_id) for job_id in wanted)
    found = await look_up(tx, ids, namespace)
    ids = sorted(found)
    gone = set()
    for job_id, function, state, priority in await tx.connection.fetch(JOBS_SQL["delete_ended"], ids) if ids else ():
        gone.add(job_id)
        tx.count(function, state, priority, -1)
    if gone:
        await tx.connection.execute(SQL["delete_logs"], list(gone))
    outcomes = []
    for job_id in wanted:
        job_id = aliases.get(job_id, job_id)
        outcomes.append(ops.Deleted(found.get(job_id), deleted=job_id in gone))
        if job_id in gone:
            gone.discard(job_id)
            found.pop(job_id)
    return outcomes


_SCHEDULED, _PENDING = int(State.SCHEDULED), int(State.PENDING)


async def wake(tx: Transaction, operations: Sequence[ops.Wake]) -> list[ops.Woken]:
    """Make due jobs pending and expire late ones; see ``Wake``."""
    return [await _wake(tx, operation) for operation in operations]


async def _wake(tx: Transaction, operation: ops.Wake) -> ops.Woken:
    floors = tx.memory(Floors)
    # A node whose clock is ahead fires nothing early; one whose clock is behind leaves it to the others.
    store_us = await tx.connection.fetchval(JOBS_SQL["now"])
    now_us = min(operation.now_us, store_us)
    late = await _scan(tx, floors.expiring, "expire", now_us, operation.rows, lambda row: row[7])
    expired = await ended(tx, late)
    woken = await _scan(tx, floors.due, "due", now_us, operation.rows, lambda row: row[3])
    due: dict[tuple[bytes, int], int] = {}
    await tx.functions.load_keys({row[0] for row in woken})
    for function, priority, place, _ in woken:
        name = tx.functions.keys[function]
        due[name, priority] = due.get((name, priority), 0) + 1
        tx.count(function, _SCHEDULED, priority, -1)
        tx.count(function, _PENDING, priority, 1)
        tx.pending(name)
        floors.note_returned(function, priority, place)
    next_us = await next_time(tx)
    if next_us:
        next_us += operation.now_us - now_us  # in the node's time
    return ops.Woken(due, expired, next_us)


async def _scan(
    tx: Transaction, floor: Floor, statement: str, now_us: int, limit: int, time_of: Callable[[Record], int]
) -> list[Record]:
    """Take the rows that are due by now; ``floors`` gives the first place."""
    clock = tx.memory(Floors).clock
    began = clock()
    whole, (place,) = floor.begin(began)
    found = await tx.connection.fetch(JOBS_SQL[statement], now_us, place, limit)
    if whole:
        floor.scans.note_cost(began, clock() - began)
    if floor.scans.slow:
        after = max(map(time_of, found)) if len(found) == limit else now_us - round(COMMITTED_AFTER * 1_000_000)
        floor.rise(after)
        tx.after_rollback(floor.forget)
    return found


async def next_time(tx: Transaction) -> int:
    """Return the time of the next due or expiring job, 0 if there is none."""
    floors = tx.memory(Floors)
    (times,) = await tx.connection.fetch(JOBS_SQL["next"], floors.due.place, floors.expiring.place)
    return min((time for time in times if time is not None), default=0)


# ---- many jobs ----

_CHANGES: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]]] = {
    ops.Cancel: cancel,
    ops.Redrive: redrive,
    ops.Reschedule: reschedule,
    ops.DeleteEnded: delete_ended,
}


class PostgresBulk(BulkRows):
    """The tables of operations on many jobs."""

    async def is_over(self, term: int) -> bool:
        (is_over,) = await self._sql.first("is_over", term)
        return bool(is_over)

    async def jobs(self, ids: Sequence[int]) -> Mapping[int, Job]:
        for statement in ("lock_live_jobs", "lock_dead_jobs"):
            await self._sql.fetch(statement, transaction.known_ids(ids))
        return await look_up(self._tx, ids)

    async def perform(self, operations: Sequence[Operation]) -> Sequence[Any]:
        return await _CHANGES[type(operations[0])](self._tx, operations)

    async def near(self, where: JobFilter, after: int, limit: int) -> None:
        """Read nothing ahead: queries have a connection of their own."""

    async def backfill(self, step: Backfill) -> Backfilled:
        return await PostgresScheduleUnit(self._tx).backfill(step)


class PostgresBulkSlice(BulkSlice):
    """The slice of operations on many jobs."""

    def unit(self, tx: Transaction) -> BulkUnit:
        return BulkUnit(PostgresBulk(tx), self._monotonic)
