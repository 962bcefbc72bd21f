"""Look-ups and counts, which only read. Lists are in `lists`.

While the ensemble is away, they fail with an error.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper import locating, paths
from mainspring.engines.zookeeper.journal import TOTAL, total
from mainspring.jobs import store as ops
from mainspring.jobs.model import NO_UNIQUE, State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from mainspring.engines.zookeeper.journal import Counts
    from mainspring.engines.zookeeper.session import Handlers, Session
    from mainspring.jobs.model import Job

JOBS_AT_ONCE: Final = 64
"""Jobs read at once for a look-up: each has up to a megabyte."""
_PENDING: Final = int(State.PENDING)


async def find(session: Session, operations: Sequence[ops.Find]) -> list[dict[int, Job]]:
    """Look jobs up; see ``Find``."""

    async def look(ids: Sequence[int]) -> dict[int, Job]:
        return {job_id: seen.job() for job_id, seen in (await locating.look(session, ids)).items()}

    return await look_up(operations, look)


async def look_up(
    operations: Sequence[ops.Find | ops.Subscribe],
    look: Callable[[Sequence[int]], Awaitable[Mapping[int, Job]]],
) -> list[dict[int, Job]]:
    """Look jobs up for operations, by a function that reads a portion.

    A record can only be read with its result. Portions bound the memory before the sizes of the results are known.
    """
    requested = list(dict.fromkeys(job_id for operation in operations for job_id in operation.ids))
    room = sum(operation.room for operation in operations)
    found: dict[int, Job] = {}
    for start in range(0, len(requested), JOBS_AT_ONCE):
        jobs = await look(requested[start : start + JOBS_AT_ONCE])
        ops.leave_unread(jobs, room)
        room -= sum(len(job.result) for job in jobs.values())
        found.update(jobs)
    outcomes = []
    for operation in operations:
        outcome = {job_id: copy(found[job_id]) for job_id in operation.ids if job_id in found}
        ops.leave_unread(outcome, operation.room)
        outcomes.append(outcome)
    return outcomes


async def find_unique(session: Session, operations: Sequence[ops.FindUnique]) -> list[list[ops.Found | None]]:
    """Look live jobs up; see ``FindUnique``."""
    keys = list(dict.fromkeys(key for operation in operations for key in operation.keys))
    found = await _find_unique(session, keys)
    missing = [key for key in keys if key not in found and key[1] != NO_UNIQUE]
    if missing:
        await session.catch_up()
        found.update(await _find_unique(session, missing))
    return [[found.get(key) for key in operation.keys] for operation in operations]


async def _find_unique(
    session: Session, keys: Sequence[tuple[bytes | ops.InNamespace, bytes]]
) -> dict[tuple[bytes | ops.InNamespace, bytes], ops.Found]:
    """Look live jobs up on this node's member of the ensemble, without a sync."""
    functions: list[bytes] = []
    if any(isinstance(function, ops.InNamespace) for function, _ in keys):
        counts = await count_all(session)
        functions = sorted({function for (function, state, _) in counts if not State(state).ended})
    tasks = {
        (function, unique): [
            paths.task_name(name, unique, 0) for name in ([function] if isinstance(function, bytes) else functions)
        ]
        for function, unique in keys
        if unique != NO_UNIQUE
    }
    locations = await locating.locate(session, [task for some in tasks.values() for task in some])
    found: dict[tuple[bytes | ops.InNamespace, bytes], ops.Found] = {}
    for key, some in tasks.items():
        for task in some:
            location = locations.get(task)
            if location is not None and not location.state.ended:
                found[key] = ops.Found(location.name.id, int(location.state), location.attempt)
                break
    return found


# ---- counts ----


async def count_all(session: Session) -> Counts:
    """Return the sum of all journals at one moment: a master may be moving counts between them."""
    names = paths.journals_of(await session.tree.children(paths.JOURNALS))
    while True:
        at = [f"{paths.JOURNALS}/{name}" for name in names]
        before, *journals, after = await session.tree.get_many([TOTAL, *at, TOTAL])
        listed, names = names, paths.journals_of(await session.tree.children(paths.JOURNALS))
        if set(listed) == set(names) and (before and before.version) == (after and after.version):
            return total(journal.data for journal in journals if journal is not None)


async def count(session: Session, operations: Sequence[ops.Count]) -> list[Counts]:
    """Return the counts; see ``Count``."""
    await session.tree.sync()
    counts = await count_all(session)
    return [dict(counts) for _ in operations]


async def count_live(session: Session, operations: Sequence[ops.CountLive]) -> list[ops.Counted]:
    """Return the counts of some functions; see ``CountLive``."""
    counts = await live(session)
    return [ops.Counted(of_functions(counts, frozenset(operation.functions))) for operation in operations]


async def live(session: Session) -> Counts:
    """Return the counts of jobs that have not ended."""
    await session.tree.sync()
    return {key: number for key, number in (await count_all(session)).items() if not State(key[1]).ended}


def of_functions(counts: Counts, functions: Collection[bytes]) -> Counts:
    """Return the counts of some functions."""
    return {key: number for key, number in counts.items() if key[0] in functions}


async def look(session: Session, operations: Sequence[ops.ReadBacklog]) -> list[ops.Backlog]:
    """Return the backlog; see ``ReadBacklog``. All counts are read: they are a few nodes of the tree."""
    await session.tree.sync()  # a member that lags behind would not have the jobs of another node
    counts = await count_all(session)
    following = await next_us(session)
    return [_backlog(counts, operation.functions, following) for operation in operations]


def _backlog(counts: Counts, functions: Sequence[bytes] | None, following: int) -> ops.Backlog:
    requested = None if functions is None else frozenset(functions)
    pending: dict[tuple[bytes, int], int] = {}
    live: dict[bytes, int] = {}
    for (function, state, priority), number in counts.items():
        if requested is not None and function not in requested:
            continue
        if state == _PENDING:
            pending[function, priority] = number
        if not State(state).ended:
            live[function] = live.get(function, 0) + number
    return ops.Backlog(pending, live, following)


async def next_us(session: Session, after_us: int = -1) -> int:
    """Return when the next job is due, or expires after ``after_us``; 0 if none does."""
    due = await first(session, paths.DELAYED, -1)
    expires = await first(session, paths.EXPIRING, after_us)
    return min((one.time_us for one in (due, expires) if one is not None), default=0)


async def first(session: Session, root: str, after_us: int) -> paths.Timed | None:
    """Return the first timed entry after ``after_us``, without late ones."""
    least = f"{max(after_us, 0) // paths.MINUTE_US:012d}"
    for minute in paths.minutes_of(await session.tree.children(root)):
        if minute < least:
            continue
        parent = f"{root}/{minute}"
        timed = paths.timed_of(parent, await session.tree.children(parent))
        timed = [one for one in timed if one.time_us > after_us and one.path not in session.late]
        if timed:
            return min(timed)
    return None


HANDLERS: Handlers = {
    ops.Find: find,
    ops.FindUnique: find_unique,
    ops.Count: count,
    ops.CountLive: count_live,
    ops.ReadBacklog: look,
}
