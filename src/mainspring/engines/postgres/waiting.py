"""Waiting clients, at any node: notifies them of ends, and drops foreground jobs without any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres import inbox, rows
from mainspring.engines.postgres.queries import with_results
from mainspring.engines.postgres.rows import SQL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs import store as ops
    from mainspring.jobs.model import Job


async def wait(tx: Transaction, operations: Sequence[ops.Subscribe]) -> list[dict[int, Job]]:
    """Record waiters, and return the jobs; see ``Subscribe``.

    This locks the jobs' rows: a concurrent settlement comes before, and then the job is found ended here, or after, and then it
    finds the record.
    """
    wanted = [job_id for operation in operations for job_id in operation.ids]
    await inbox.admit(tx, wanted)
    aliases = await inbox.aliases(tx, wanted)
    pairs: dict[str, set[tuple[int, int]]] = {}
    for operation in operations:
        for job_id in operation.ids:
            stored = aliases.get(job_id, job_id)
            if 0 < stored <= rows.LARGEST_ID:
                pairs.setdefault(operation.namespace, set()).add((stored, operation.term))
    for namespace, found in sorted(pairs.items()):
        columns = zip(*sorted(found), strict=True)
        await tx.connection.fetch(SQL["wait"], *map(list, columns), namespace)
    return await with_results(tx, operations)


async def leave(tx: Transaction, operations: Sequence[ops.Unsubscribe]) -> list[set[int]]:
    """Remove waiters; see ``Unsubscribe``."""
    wanted = [job_id for operation in operations for job_id in operation.ids]
    aliases = await inbox.aliases(tx, wanted)
    pairs = [(aliases.get(job_id, job_id), operation.term) for operation in operations for job_id in operation.ids]
    dropped = await drop(tx, pairs)
    return [{job_id for job_id in operation.ids if aliases.get(job_id, job_id) in dropped} for operation in operations]


async def drop(tx: Transaction, pairs: Iterable[tuple[int, int]]) -> set[int]:
    """Remove waiters, given as pairs of job and term; return the foreground jobs that are dropped because none is left."""
    pairs = sorted({pair for pair in pairs if 0 < pair[0] <= rows.LARGEST_ID})
    if not pairs:
        return set()
    ids, terms = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    await tx.connection.fetch(SQL["leave"], ids, terms)
    locked = {row[0] for row in await tx.connection.fetch(SQL["lock_foreground"], rows.known_ids(ids))}
    pairs = [pair for pair in pairs if pair[0] in locked]
    if not pairs:
        return set()
    dropped = set()
    for job_id, function, state, priority in await tx.connection.fetch(
        SQL["drop_foreground"], [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ):
        dropped.add(job_id)
        tx.count(function, state, priority, -1)
    return dropped


async def find_subscribers(tx: Transaction, operations: Sequence[ops.FindSubscribers]) -> list[dict[int, list[int]]]:
    """Return the nodes of other waiters; see ``FindSubscribers``."""
    ids = rows.known_ids(job_id for operation in operations for job_id in operation.ids)
    waits: dict[int, list[int]] = {}
    for job_id, term in await tx.connection.fetch(SQL["subscribers"], ids) if ids else ():
        waits.setdefault(job_id, []).append(term)
    outcomes = []
    for operation in operations:
        elsewhere = {
            job_id: [term for term in waits.get(job_id, ()) if term != operation.term] for job_id in operation.ids
        }
        outcomes.append({job_id: terms for job_id, terms in elsewhere.items() if terms})
    return outcomes


async def notify_waiters(tx: Transaction, ids: Iterable[int]) -> None:
    """Notify the nodes of clients that wait for ended jobs, and remove these waiters."""
    wanted = rows.known_ids(ids)
    if wanted:
        for job_id, term in await tx.connection.fetch(SQL["end_waiting"], wanted):
            if term != tx.term:
                tx.settled(term, job_id)
