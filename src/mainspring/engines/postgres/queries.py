"""Operations that only read, after the group's writes. Lists are in `lists`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres import submitting, transaction
from mainspring.engines.postgres.claiming import Floors
from mainspring.engines.postgres.transaction import JOBS_SQL
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State, read_options
from mainspring.namespaces import ANY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mainspring.engines.postgres.transaction import Transaction

_PENDING, _SUCCEEDED = int(State.PENDING), int(State.SUCCEEDED)


async def find(tx: Transaction, operations: Sequence[ops.Find]) -> list[dict[int, Job]]:
    """Return jobs by their ids; see ``Find``."""
    return await with_results(tx, operations)


async def with_results(tx: Transaction, operations: Sequence[ops.Find | ops.Subscribe]) -> list[dict[int, Job]]:
    """Return jobs for operations. A result that fits into any outcome is read once, for all of them."""
    wanted: dict[str, set[int]] = {}
    for operation in operations:
        wanted.setdefault(operation.namespace, set()).update(operation.ids)
    found = {namespace: await look_up(tx, ids, namespace) for namespace, ids in wanted.items()}
    outcomes = [
        {job_id: job for job_id in operation.ids if (job := found[operation.namespace].get(job_id)) is not None}
        for operation in operations
    ]
    fit: dict[int, list[Job]] = {}
    for operation, outcome in zip(operations, outcomes, strict=True):
        for job in ops.fitting(outcome, operation.room):
            fit.setdefault(job.id, []).append(job)
    # An outcome has a job under each requested id: one object, and one copy of its result.
    for job_id, result in await tx.connection.fetch(JOBS_SQL["results"], sorted(fit)) if fit else ():
        for job in fit[job_id]:
            job.result = result or b""
    return outcomes


async def look_up(tx: Transaction, ids: Iterable[int], namespace: str = ANY) -> dict[int, Job]:
    """Return jobs of a namespace by the requested ids, without results. A submission that joined a job stands for that one."""
    wanted = transaction.known_ids(ids)
    found = await find_stored(tx, wanted, namespace)
    missing = [job_id for job_id in wanted if job_id not in found]
    joined = await submitting.aliases(tx, missing)
    if joined:
        others = await find_stored(tx, joined.values(), namespace)
        found.update((job_id, others[other]) for job_id, other in joined.items() if other in others)
    for job in await submitting.peek(tx, (job_id for job_id in missing if job_id not in joined), namespace):
        found[job.id] = job
    return found


async def find_stored(tx: Transaction, ids: Iterable[int], namespace: str) -> dict[int, Job]:
    """Return the jobs of a namespace that are rows of these ids, without results."""
    wanted = transaction.known_ids(ids)
    if not wanted:
        return {}
    records = await tx.connection.fetch(JOBS_SQL["find"], wanted, namespace)
    return {job.id: job for job in await transaction.stored_jobs(tx, records, read_options)}


async def find_unique(tx: Transaction, operations: Sequence[ops.FindUnique]) -> list[list[ops.Found | None]]:
    """Return live jobs by their uniques; see ``FindUnique``."""
    keys = [key for operation in operations for key in operation.keys]
    await tx.functions.load({function for function, _ in keys if isinstance(function, bytes)})
    columns: tuple[list[int | None], list[bytes], list[str | None]] = ([], [], [])
    for function, unique in keys:
        # a function without a number was never submitted, and no row has the number 0
        columns[0].append(tx.functions.numbers.get(function, 0) if isinstance(function, bytes) else None)
        columns[1].append(unique)
        columns[2].append(None if isinstance(function, bytes) else function.namespace)
    found: dict[int, ops.Found] = {}
    for key, job_id, state, attempt in await tx.connection.fetch(JOBS_SQL["find_unique"], *columns) if keys else ():
        found[key - 1] = ops.Found(job_id, state, attempt)
    await tx.nodes.load(other.id for other in found.values())
    ends = iter(range(len(keys)))
    return [[found.get(next(ends)) for _ in operation.keys] for operation in operations]


async def read_backlog(tx: Transaction, operations: Sequence[ops.ReadBacklog]) -> list[ops.Backlog]:
    """Return the backlog; see ``ReadBacklog``."""
    floors = tx.memory(Floors)
    only = None
    if all(operation.functions is not None for operation in operations):
        only = await numbers_of(tx, (name for operation in operations for name in operation.functions or ()))
    records = await tx.connection.fetch(
        JOBS_SQL["read_backlog"],
        floors.due.place,
        floors.expiring.place,
        floors.inbox.place,
        None if only is None else list(only),
    )
    counts = {key: number for key, number in tx.deltas.items() if only is None or key[0] in only}
    times: list[int] = []
    inbox_waits = False
    for function, state, priority, number, expires_us in records:
        if function is None:
            inbox_waits = bool(state)
            times = [time for time in (number, expires_us) if time is not None]
        else:
            key = (function, state, priority)
            counts[key] = counts.get(key, 0) + number
    await tx.functions.load_keys({function for function, _, _ in counts})
    pending: dict[tuple[bytes, int], int] = {}
    live: dict[bytes, int] = {}
    for (function, state, priority), number in counts.items():
        if number > 0 and state < _SUCCEEDED:
            name = tx.functions.keys[function]
            live[name] = live.get(name, 0) + number
            if state == _PENDING:
                pending[name, priority] = pending.get((name, priority), 0) + number
    refused = await submitting.refused(tx, floors)
    return [ops.Backlog(pending, live, min(times, default=0), inbox_waits, refused) for _ in operations]


async def count(tx: Transaction, operations: Sequence[ops.Count]) -> list[dict[tuple[bytes, int, int], int]]:
    """Return the counts; see ``Count``."""
    numbers = await transaction.journal_counts(tx)
    await tx.functions.load_keys({function for function, _, _ in numbers})
    counts: dict[tuple[bytes, int, int], int] = {}
    for (function, state, priority), number in numbers.items():
        key = (tx.functions.keys[function], state, priority)
        counts[key] = counts.get(key, 0) + number
    return [dict(counts) for _ in operations]


async def count_live(tx: Transaction, operations: Sequence[ops.CountLive]) -> list[ops.Counted]:
    """Return the counts of some functions; see ``CountLive``."""
    return [ops.Counted(await live(tx, await numbers_of(tx, operation.functions))) for operation in operations]


async def live(tx: Transaction, names: Mapping[int, bytes]) -> dict[tuple[bytes, int, int], int]:
    """Return the numbers of unfinished jobs of some functions, given by number and name."""
    counts = {key: number for key, number in tx.deltas.items() if key[0] in names and key[1] < _SUCCEEDED}
    for *key, number in await tx.connection.fetch(JOBS_SQL["counts_of"], list(names)) if names else ():
        counts[key[0], key[1], key[2]] = counts.get((key[0], key[1], key[2]), 0) + number
    return {(names[at], state, priority): number for (at, state, priority), number in counts.items() if number}


async def numbers_of(tx: Transaction, functions: Iterable[bytes]) -> dict[int, bytes]:
    """Return the numbers of these functions, as far as they have one, with their names."""
    names = set(functions)
    await tx.functions.load(names)
    numbers = tx.functions.numbers
    return {numbers[name]: name for name in names if name in numbers}
