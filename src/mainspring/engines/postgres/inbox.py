"""Transactional submits: users' transactions insert rows into the inbox, and nodes move them into the queue.

The inbox has no index on uniques, so no node ever waits for a user's open transaction. Uniques are resolved when a row is moved;
a row that joins another job leaves an alias, by which its id leads to that job.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from mainspring import namespaces
from mainspring.engines.postgres.floors import Floors
from mainspring.engines.postgres.rows import SQL, decode_stored_options
from mainspring.engines.postgres.submitting import store
from mainspring.errors import UsageError
from mainspring.ids import TERM_SPAN
from mainspring.jobs import store as ops
from mainspring.jobs.model import NO_UNIQUE, Job, State
from mainspring.jobs.tags import check_tags

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncpg import Record

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Options

log = structlog.get_logger("mainspring.postgres")
_PENDING, _SCHEDULED = int(State.PENDING), int(State.SCHEDULED)


async def drain_inbox(tx: Transaction, operations: Sequence[ops.DrainInbox]) -> list[ops.DrainedInbox]:
    """Move committed submissions into the queue; see ``DrainInbox``."""
    return [await _drain(tx, operation.rows) for operation in operations]


async def _drain(tx: Transaction, limit: int) -> ops.DrainedInbox:
    floors = tx.memory(Floors)
    floor = floors.inbox
    now = floors.clock()
    whole, (place,) = floor.begin(now)
    records = await tx.connection.fetch(SQL["take_inbox"], limit, place)
    if whole:
        floor.scans.note_cost(now, floors.clock() - now)
    if floor.scans.slow and records:
        # Ids are allocated before their transactions commit; a full scan finds late ones.
        floor.rise(max(record[0] for record in records) + 1 - limit)
        tx.after_rollback(floor.forget)
    stored = await _move(tx, records)
    pending = Counter((job.function, job.priority) for job in stored if job.state == _PENDING)
    next_us = min((job.due_us for job in stored if job.state == _SCHEDULED), default=0)
    return ops.DrainedInbox(dict(pending), next_us, len(records) == limit)


async def admit(tx: Transaction, ids: Iterable[int]) -> None:
    """Move those of these submissions that are in the inbox into the queue now."""
    wanted = _submitted(ids)
    if wanted:
        await _move(tx, await tx.connection.fetch(SQL["take_from_inbox"], wanted))


async def _move(tx: Transaction, records: Sequence[Record]) -> list[Job]:
    """Store rows of the inbox as jobs; return the stored jobs, without those that joined others."""
    if not records:
        return []
    jobs = await _jobs(tx, records)
    joined = await store(tx, jobs, [0] * len(jobs))
    if joined:
        aliases = [(job.id, joined[job.id].id, job.created_us) for job in jobs if job.id in joined]
        await tx.connection.fetch(SQL["alias"], *(list(column) for column in zip(*aliases, strict=True)))
    return [job for job in jobs if job.id not in joined]


async def _jobs(tx: Transaction, records: Sequence[Record]) -> list[Job]:
    now_us = await tx.connection.fetchval(SQL["now"])
    jobs = []
    for job_id, namespace, function, unique, priority, created, due, expires, options, payload in sorted(
        map(tuple, records)
    ):
        job_options, key = _options(job_id, options)
        jobs.append(
            Job(
                job_id,
                _key(namespace, function),
                payload,
                unique or NO_UNIQUE,
                priority,
                _SCHEDULED if due > now_us else _PENDING,
                created,
                due,
                expires,
                job_options,
                input_size=len(payload),
                key=key,
            )
        )
    return jobs


def _key(namespace: str, function: bytes) -> bytes:
    """Return the key of a row's function, which is always one of the row's namespace.

    ``submit`` has checked both, but users may also insert rows by themselves.
    """
    try:
        return namespaces.key(namespaces.check(namespace), function.removeprefix(namespaces.prefix(namespace)))
    except UsageError:  # in the default namespace, then, under a name that no worker can have
        return namespaces.key(namespaces.DEFAULT, namespace.encode() + namespaces.SEPARATOR + function)


def _options(job_id: int, data: bytes | None) -> tuple[Options | None, bytes]:
    """Decode a submission's options, and its key.

    Unreadable options are left out, so that the job blocks neither itself nor the rows behind it.
    """
    try:
        options, key = decode_stored_options(data)
        if options is not None and options.tags:
            options = replace(options, tags=check_tags(options.tags))
        return options, key  # noqa: TRY300 - both lines above may fail
    except (ValueError, UsageError) as error:  # a MsgspecError, text that is not UTF-8, or invalid tags
        log.warning("the options of a submission cannot be read: it runs without them", id=job_id, error=str(error))
        return None, b""


async def peek(tx: Transaction, ids: Iterable[int], namespace: str) -> list[Job]:
    """Return submissions of a namespace that are still in the inbox as the jobs that they become, without payloads."""
    wanted = _submitted(ids)
    records = await tx.connection.fetch(SQL["peek_inbox"], wanted, namespace) if wanted else ()
    if not records:
        return []
    jobs = await _jobs(tx, records)
    await tx.nodes.load(wanted)
    for job in jobs:
        job.payload = b""
    return jobs


async def aliases(tx: Transaction, ids: Iterable[int]) -> dict[int, int]:
    """Return the jobs that submissions of the inbox have joined, by the submissions' ids."""
    wanted = _submitted(ids)
    found = await tx.connection.fetch(SQL["aliases"], wanted) if wanted else ()
    return {row[0]: row[1] for row in found}


def _submitted(ids: Iterable[int]) -> list[int]:
    """Return those of some ids that the inbox has allocated."""
    return sorted({job_id for job_id in ids if 0 < job_id < TERM_SPAN})
