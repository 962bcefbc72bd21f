"""Transactional submits: users' transactions insert rows into the inbox, and nodes move them into the queue.

The inbox has no index on uniques, so no node ever waits for a user's open transaction. Uniques are resolved when a row is moved;
a row that joins another job leaves an alias, by which its id leads to that job.
"""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import asyncpg
import structlog
from msgspec.structs import replace

from mainspring import namespaces
from mainspring.engines.postgres.floors import Floors
from mainspring.engines.postgres.functions import columns, key_of
from mainspring.engines.postgres.rows import PORTION_BYTES, SQL, decode_stored_options
from mainspring.engines.postgres.submitting import store
from mainspring.errors import UsageError
from mainspring.ids import TERM_SPAN
from mainspring.jobs import store as ops
from mainspring.jobs.model import NO_UNIQUE, Job, Options, State
from mainspring.jobs.retry import MAX_WAIT
from mainspring.jobs.retry import check as check_retry
from mainspring.jobs.store.nodes import REFUSED_REMEDY
from mainspring.jobs.tags import check_tags
from mainspring.namespaces import SEPARATOR
from mainspring.resources.limit_specs import MAX_CONCURRENCY_KEY_BYTES
from mainspring.sizes import CANNOT_READ

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction

log = structlog.get_logger("mainspring.postgres")
_PENDING, _SCHEDULED = int(State.PENDING), int(State.SCHEDULED)
_DAY_US: Final = 86_400_000_000
LATEST_US: Final = int(MAX_WAIT * 1_000_000) + _DAY_US
"""Microseconds from now within which a job may become due or expire. The inbox refuses later times, by the server's clock."""
REFUSED_INTERVAL: Final = 10.0
"""Seconds between two counts of the refused rows."""
REFUSED_US: Final = 30 * _DAY_US
"""Microseconds for which refused rows are kept."""
FORGED: Final = "they have fields that only nodes set, such as the run or the schedule of a job"
_FAULTS: Final = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.InterfaceError,
    ValueError,
    OverflowError,
)
"""Errors of a value. Others, such as a lost connection or a lock, have nothing to do with the row."""


async def drain_inbox(tx: Transaction, operations: Sequence[ops.DrainInbox]) -> list[ops.DrainedInbox]:
    """Move committed submissions into the queue; see ``DrainInbox``."""
    return [await _drain(tx, operation.rows) for operation in operations]


async def _drain(tx: Transaction, limit: int) -> ops.DrainedInbox:
    floors = tx.memory(Floors)
    floor = floors.inbox
    now = floors.clock()
    whole, (place,) = floor.begin(now)
    records = await tx.connection.fetch(SQL["take_inbox"], limit, place, PORTION_BYTES)
    if whole:
        floor.scans.note_cost(now, floors.clock() - now)
    if floor.scans.slow and records:
        # Ids are allocated before their transactions commit; a full scan finds late ones.
        floor.rise(max(record[0] for record in records) + 1 - limit)
        tx.after_rollback(floor.forget)
    stored = await _move(tx, records)
    pending = Counter((job.function, job.priority) for job in stored if job.state == _PENDING)
    next_us = min((job.due_us for job in stored if job.state == _SCHEDULED), default=0)
    # The first row of those that follow may be too large for this portion.
    more = len(records) == limit or sum(len(record[9]) for record in records) > PORTION_BYTES // 2
    return ops.DrainedInbox(dict(pending), next_us, more)


async def admit(tx: Transaction, ids: Iterable[int]) -> None:
    """Move those of these submissions that are in the inbox into the queue now."""
    wanted = _submitted(ids)
    if wanted:
        await _move(tx, await tx.connection.fetch(SQL["take_from_inbox"], wanted))


async def _move(tx: Transaction, records: Sequence[Record]) -> list[Job]:
    """Store rows of the inbox as jobs; return the stored jobs, without those that joined others.

    A row that cannot be stored is refused alone: the savepoint is one of all rows, and only if one fails, of each.
    """
    if not records:
        return []
    jobs, refused = await _jobs(tx, records)
    await tx.functions.ensure({job.function for job in jobs})  # numbers from before the savepoint stay
    try:
        stored = await _store_or_undo(tx, jobs)
    except _FAULTS:
        stored = []
        for job in jobs:
            try:
                stored += await _store_or_undo(tx, [job])
            except _FAULTS as error:
                refused[job.id] = str(error) or type(error).__name__
    if refused:
        await _refuse(tx, [record for record in records if record[0] in refused], refused)
    return stored


async def _store_or_undo(tx: Transaction, jobs: Sequence[Job]) -> list[Job]:
    """Store jobs, or nothing of them. Raises what the store raises."""
    if not jobs:
        return []
    deltas, pendings = tx.deltas.copy(), tx.pendings.copy()
    await tx.connection.execute("SAVEPOINT inbox")
    try:
        joined = await store(tx, jobs, [0] * len(jobs))
        if joined:
            aliases = [(job.id, joined[job.id].id, job.created_us) for job in jobs if job.id in joined]
            await tx.connection.fetch(SQL["alias"], *(list(column) for column in zip(*aliases, strict=True)))
    except _FAULTS:
        await tx.connection.execute("ROLLBACK TO SAVEPOINT inbox; RELEASE SAVEPOINT inbox")
        tx.deltas, tx.pendings = deltas, pendings
        raise
    await tx.connection.execute("RELEASE SAVEPOINT inbox")
    return [job for job in jobs if job.id not in joined]


async def _refuse(tx: Transaction, records: Sequence[Record], reasons: dict[int, str]) -> None:
    """Put rows aside, with the reasons: they are out of the inbox, and their jobs are lost."""
    floors = tx.memory(Floors)
    ids = [record[0] for record in records]
    values = [[record[at] for record in records] for at in range(10)]
    await tx.connection.fetch(SQL["refuse_submissions"], *values, [reasons[job_id][:1000] for job_id in ids])

    def warn() -> None:
        floors.look_for_refused_at = 0.0
        log.error(
            "submissions of the inbox cannot become jobs and are set aside, the others go on",
            ids=ids[:10],
            number=len(ids),
            reason=reasons[ids[0]],
            remedy=REFUSED_REMEDY,
        )

    tx.after_commit(warn)


async def refused(tx: Transaction, floors: Floors) -> ops.RefusedSubmissions | None:
    """Count the rows that were put aside, from time to time, and delete those of `REFUSED_US` ago; None: not this time."""
    now = floors.clock()
    if now < floors.look_for_refused_at:
        return None
    ((number, since_us, reason),) = await tx.connection.fetch(SQL["read_refused"], REFUSED_US)
    floors.look_for_refused_at = now + REFUSED_INTERVAL
    return ops.RefusedSubmissions(number, since_us or 0, reason or "")


async def _jobs(tx: Transaction, records: Sequence[Record]) -> tuple[list[Job], dict[int, str]]:
    """Return the jobs of rows, oldest first, and the reasons why others have none, by their ids."""
    now_us = await tx.connection.fetchval(SQL["now"])
    jobs, refused = [], {}
    names: dict[tuple[str, bytes], bytes] = {}
    options_faults: list[tuple[int, str]] = []
    for record in sorted(records, key=itemgetter(0)):
        job_id, namespace, function, unique, priority, created, due, expires, options, payload, *size = record
        if not 0 < job_id < TERM_SPAN:
            refused[job_id] = f"{job_id} is no id of a submission"
            continue
        if (
            not 0 <= created <= now_us + _DAY_US
            or not 0 <= max(due, expires) <= now_us + LATEST_US
            or min(due, expires) < 0
        ):
            refused[job_id] = "a time lies before 1970 or more than a century from now"
            continue
        name = names.get((namespace, function), b"")
        if not name:
            name = names[namespace, function] = _key(namespace, function)
        if SEPARATOR in name and key_of(*columns(name)) != name:
            refused[job_id] = "its function is one of a node's own"
            continue
        job_options, key, fault = _options(options)
        if fault:
            options_faults.append((job_id, fault))
        jobs.append(
            Job(
                job_id,
                name,
                payload,
                unique or NO_UNIQUE,
                priority,
                _SCHEDULED if due > now_us else _PENDING,
                created,
                due,
                expires,
                job_options,
                input_size=size[0] if size else len(payload),
                key=key,
            )
        )
    if options_faults:
        job_id, fault = options_faults[0]
        log.warning(
            "the options of submissions cannot be used: their jobs run without them",
            id=job_id,
            number=len(options_faults),
            error=fault,
        )
    return jobs, refused


def _key(namespace: str, function: bytes) -> bytes:
    """Return the key of a row's function, which is always one of the row's namespace.

    The inbox has checked both. Rows of before, and those of a store whose check was removed, may have anything.
    """
    try:
        name = function.removeprefix(namespaces.prefix(namespaces.check(namespace)))
    except UsageError:  # in the default namespace, then, under a name that no worker can have
        return _outside(namespace.encode() + SEPARATOR + function)
    return namespace.encode() + SEPARATOR + name if SEPARATOR in name else namespaces.key(namespace, name)


def _outside(name: bytes) -> bytes:
    return namespaces.DEFAULT.encode() + SEPARATOR + name


def _options(data: bytes | None) -> tuple[Options | None, bytes, str]:
    """Decode a submission's options, and its key; the last part is the fault of invalid ones, which are left out.

    A user sets options and nothing else: only nodes record that a job is part of a schedule, of a run or of an operation.
    """
    if data is None:
        return None, b"", ""
    try:
        given, key = decode_stored_options(data)
        if given is None:
            return None, _checked_key(key), ""
        if given.retry is not None:
            check_retry(given.retry)
        for name in ("timeout", "heartbeat", "keep_unique"):
            seconds = getattr(given, name)
            if seconds is not None and (not 0 <= seconds < MAX_WAIT or (not seconds and name != "keep_unique")):
                raise UsageError(f"{name} is {seconds}, and takes a number of seconds up to a century")  # noqa: TRY301
        options = Options(given.retry, given.timeout, given.heartbeat, given.keep_unique, tags=check_tags(given.tags))
        return options, _checked_key(key), "" if options == replace(given, tags=options.tags) else FORGED
    except (*CANNOT_READ, UsageError) as error:
        return None, b"", str(error)


def _checked_key(key: bytes) -> bytes:
    if len(key) > MAX_CONCURRENCY_KEY_BYTES:
        raise UsageError(f"a concurrency_key has at most {MAX_CONCURRENCY_KEY_BYTES} bytes, not {len(key)}")
    key.decode()
    return key


async def peek(tx: Transaction, ids: Iterable[int], namespace: str) -> list[Job]:
    """Return submissions of a namespace that are still in the inbox as the jobs that they become, without payloads."""
    wanted = _submitted(ids)
    records = await tx.connection.fetch(SQL["peek_inbox"], wanted, namespace) if wanted else ()
    if not records:
        return []
    jobs, _ = await _jobs(tx, records)
    await tx.nodes.load(wanted)
    return jobs


async def aliases(tx: Transaction, ids: Iterable[int]) -> dict[int, int]:
    """Return the jobs that submissions of the inbox have joined, by the submissions' ids."""
    wanted = _submitted(ids)
    found = await tx.connection.fetch(SQL["aliases"], wanted) if wanted else ()
    return {row[0]: row[1] for row in found}


def _submitted(ids: Iterable[int]) -> list[int]:
    """Return those of some ids that the inbox has allocated."""
    return sorted({job_id for job_id in ids if 0 < job_id < TERM_SPAN})
