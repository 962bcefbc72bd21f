"""Claims on SQLite: leases of due jobs, also in turns between keys, and the stored limits of functions.

Nothing grants tokens here: a file has one node, which has all of them.
"""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring import namespaces
from mainspring.engines.sqlite import transaction
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Job, State
from mainspring.jobs.owners import Started, note
from mainspring.resources import store as ops
from mainspring.resources.rules import decode_limits, encode_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.resources.rules import FunctionLimits
    from mainspring.storage.engine import Operation

_PENDING: Final = int(State.PENDING)
_LEASED: Final = int(State.LEASED)


def claim(tx: Transaction, operations: Sequence[job_ops.Claim]) -> list[list[list[Job]]]:
    """Lease due jobs; see ``Claim``."""
    return [[_claim(tx, operation.term, want) for want in operation.wants] for operation in operations]


def _claim(tx: Transaction, term: int, want: job_ops.ClaimRequest) -> list[Job]:
    function = tx.functions.find(want.function)
    if function is None:
        return []  # never submitted: workers may request any name, and only submitted functions have a number
    claimed = transaction.claimed_jobs(
        tx.cursor.execute(SQL["claim"], (term, function, want.limit)), want.function, term
    )
    claimed.sort(key=attrgetter("priority", "id"))
    numbers: dict[int, int] = {}
    for job in claimed:
        numbers[job.priority] = numbers.get(job.priority, 0) + 1
    for priority, number in numbers.items():
        tx.count(function, _PENDING, priority, -number)
        tx.count(function, _LEASED, priority, number)
    return claimed


def assign(tx: Transaction, operations: Sequence[job_ops.Assign]) -> list[None]:
    """Record jobs as running; see ``Assign``."""
    jobs = [job for operation in operations for job in operation.jobs]
    tx.cursor.executemany(SQL["assign"], [_running(job) for job in jobs if job.options is None])
    for job in jobs:
        if job.options is not None:
            tx.cursor.execute(SQL["assign"], _running(job))
            if tx.cursor.connection.changes():
                note(tx.notices, Started.of(job))
    return [None] * len(operations)


def _running(job: Job) -> transaction.Row:
    return (job.attempt, job.id, job.term)


def save_limits(tx: Transaction, operations: Sequence[ops.SaveLimits]) -> list[FunctionLimits]:
    """Write the limits of functions; see ``SaveLimits``."""
    return [_save_limits(tx, operation.limits) for operation in operations]


def _save_limits(tx: Transaction, limits: FunctionLimits) -> FunctionLimits:
    columns = namespaces.split(limits.function)
    for version, stored in tx.cursor.execute(SQL["limits_of"], columns):
        if version != limits.version:
            return decode_limits(stored, limits.function, version)
    limits = msgspec.structs.replace(limits, version=limits.version + 1)
    tx.cursor.execute(SQL["save_limits"], (*columns, limits.version, encode_limits(limits)))
    return limits


# ---- claims ----


def claim_by_key(tx: Transaction, operations: Sequence[job_ops.ClaimByKey]) -> list[job_ops.ClaimedByKey]:
    """Lease due jobs, taking turns between their keys; see ``ClaimByKey``."""
    return [_claim_by_key(tx, operation) for operation in operations]


def _claim_by_key(tx: Transaction, operation: job_ops.ClaimByKey) -> job_ops.ClaimedByKey:
    function = tx.functions.find(operation.want.function)
    ids: list[int] = []
    after = list(operation.after)
    more = False
    if function is None:
        return job_ops.ClaimedByKey([], operation.after, more)
    for priority in range(3):
        before = len(ids)
        for met, key in enumerate(_keys(tx, function, priority, after[priority])):
            if len(ids) >= operation.want.limit or met >= job_ops.KEYS_PER_CLAIM:
                more = True
                break
            if key not in operation.enough:
                most = min(operation.want.limit - len(ids), operation.per_key)
                found = tx.cursor.execute(SQL["ids_of_key"], (function, priority, key or None, most))
                ids += [job_id for (job_id,) in found]
            after[priority] = key
        tx.count(function, _PENDING, priority, before - len(ids))
        tx.count(function, _LEASED, priority, len(ids) - before)
    more = more or len(ids) >= operation.want.limit
    return job_ops.ClaimedByKey(_claim_these(tx, operation, ids), (after[0], after[1], after[2]), more)


def _claim_these(tx: Transaction, operation: job_ops.ClaimByKey, ids: list[int]) -> list[Job]:
    """Lease these jobs, and return them in this order. One statement: each costs as much as the lookup of a few keys."""
    if not ids:
        return []
    claimed = tx.cursor.execute(SQL["claim_these"], (operation.term, json.dumps(ids)))
    jobs = {job.id: job for job in transaction.claimed_jobs(claimed, operation.want.function, operation.term)}
    return [jobs[job_id] for job_id in ids]


def _keys(tx: Transaction, function: int, priority: int, after: bytes | None) -> Iterator[bytes]:
    """Yield the keys that have jobs, from the first after ``after`` once around; also the empty key, even without jobs."""
    yield from _rising(tx, function, priority, after)
    if after is not None:
        for key in _rising(tx, function, priority, None):
            if key > after:
                return
            yield key


def _rising(tx: Transaction, function: int, priority: int, after: bytes | None) -> Iterator[bytes]:
    if after is None:
        yield b""
    key = after or b""
    while found := list(tx.cursor.execute(SQL["next_key"], (function, priority, key))):
        ((key,),) = found
        yield key


RESOURCE_HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], list[Any]]] = {
    ops.SaveLimits: save_limits,
    job_ops.ClaimByKey: claim_by_key,
}
