"""Submits: new jobs, and joins of jobs with the same unique."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from mainspring.engines.postgres import rows
from mainspring.engines.postgres.floors import Floors
from mainspring.engines.postgres.rows import SQL
from mainspring.errors import StoreError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State
from mainspring.jobs.tags import indexed_tags
from mainspring.namespaces import namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.engines.postgres.transaction import Transaction

_PENDING, _SCHEDULED, _SUCCEEDED = int(State.PENDING), int(State.SCHEDULED), int(State.SUCCEEDED)
RACE_ROUNDS = 20
"""Rounds of a lost race for a unique. Each further round needs another job of that unique to be stored and to end within a
statement."""


class New(NamedTuple):
    """A job to be stored."""

    job: Job
    rank: int
    """Its rank by age in the group."""
    function: int
    waiter: int
    """The term of the node whose client waits for it, or 0."""


Key = tuple[int, bytes]
"""A function and a unique."""


class _Race:
    """The new jobs of one unique."""

    __slots__ = ("candidate", "kept", "new_jobs")

    def __init__(self) -> None:
        self.new_jobs: list[New] = []
        self.kept: tuple[ops.Found, int] | None = None
        """The last success, and when it ended."""
        self.candidate: New | None = None
        """The first job that does not join the last success: the one to store if none is live."""

    def choose(self) -> None:
        """Choose the candidate."""
        self.candidate = next((new for new in self.new_jobs if not self.satisfied(new)), None)

    def satisfied(self, new: New) -> bool:
        """Return whether a job joins the last success if no other job is live."""
        keep = rows.keeps(new.job)
        return keep is not None and self.kept is not None and self.kept[1] > rules.kept_since(new.job.created_us, keep)


async def submit(tx: Transaction, operations: Sequence[ops.Submit]) -> list[dict[int, ops.Found]]:
    """Store new jobs; see ``Submit``."""
    if len(operations) == 1:
        jobs, waiter = operations[0].jobs, operations[0].waiter
        joined = await store(tx, jobs, [waiter] * len(jobs))
        return [joined]
    jobs = [job for operation in operations for job in operation.jobs]
    waiters = [operation.waiter for operation in operations for _ in operation.jobs]
    joined = await store(tx, jobs, waiters)
    if not joined:
        return [{} for _ in operations]
    return [{job.id: joined[job.id] for job in operation.jobs if job.id in joined} for operation in operations]


async def store(tx: Transaction, jobs: Sequence[Job], waiters: Sequence[int]) -> dict[int, ops.Found]:
    """Store new jobs, oldest first; ``waiters`` are the terms of the nodes whose clients wait for each job, or 0.

    Returns the jobs that were joined, by the ids of the jobs that were not stored.
    """
    await tx.functions.ensure({job.function for job in jobs})
    new_jobs = new_jobs_of(tx, jobs, waiters)
    plain = [new for new in new_jobs if not new.job.unique]
    if plain:
        fresh = True
        for portion in rows.portions(plain, _size):
            await tx.connection.fetch(SQL["submit"], *columns_of(tx, portion), fresh)
            fresh = False
        await note_stored(tx, plain)
    if len(plain) == len(new_jobs):
        return {}
    joined = await _store_uniques(tx, [new for new in new_jobs if new.job.unique], fresh=not plain)
    await tx.nodes.load(found.id for found in joined.values())
    return joined


def new_jobs_of(tx: Transaction, jobs: Sequence[Job], waiters: Sequence[int]) -> list[New]:
    """Return new jobs, oldest first; the numbers of their functions are loaded."""
    numbers = tx.functions.numbers
    order = sorted(range(len(jobs)), key=lambda at: jobs[at].id)
    return [New(jobs[at], rank, numbers[jobs[at].function], waiters[at]) for rank, at in enumerate(order)]


def _size(new: New) -> int:
    return len(new.job.payload)


def columns_of(tx: Transaction, new_jobs: Sequence[New]) -> rows.Columns:
    """Return the columns of the statement ``submit``."""
    return rows.submitted(
        [new.job for new in new_jobs],
        [new.rank for new in new_jobs],
        [new.function for new in new_jobs],
        rows.sparse([True if new.waiter else None for new in new_jobs]),
        tx.memory(rows.Keyed),
    )


async def note_stored(tx: Transaction, new_jobs: Sequence[New]) -> None:
    """Count stored jobs, and record their waiters and tags."""
    numbers = Counter([(new.function, new.job.state, new.job.priority) for new in new_jobs])
    for (function, state, priority), number in numbers.items():
        tx.count(function, state, priority, number)
        if state == _PENDING:
            tx.pending(tx.functions.keys[function])
    floors = tx.memory(Floors)
    for new in new_jobs:
        if new.job.state == _SCHEDULED:
            floors.due.lower(new.job.due_us)
        if new.job.expires_us:
            floors.expiring.lower(new.job.expires_us)
    await note_waiting(tx, [(new.job.id, new.waiter) for new in new_jobs if new.waiter])
    tagged = [new.job for new in new_jobs if new.job.options is not None and new.job.options.tags]
    if tagged:
        await _store_tags(tx, tagged)


async def _store_tags(tx: Transaction, jobs: Sequence[Job]) -> None:
    found = [(namespace_of(job.function), tag, job.id, job.created_us) for job in jobs for tag in indexed_tags(job)]
    await tx.connection.fetch(SQL["tag"], *([row[at] for row in found] for at in range(4)))


async def note_waiting(tx: Transaction, pairs: Iterable[tuple[int, int]]) -> None:
    """Record jobs and the terms of the nodes whose clients wait for them; the jobs' rows are locked."""
    pairs = sorted(set(pairs))
    if pairs:
        await tx.connection.fetch(SQL["note_waiting"], [pair[0] for pair in pairs], [pair[1] for pair in pairs])


# ---- uniques ----


async def _store_uniques(tx: Transaction, new_jobs: list[New], *, fresh: bool) -> dict[int, ops.Found]:
    separate = independent(new_jobs)
    if separate is not None:
        ids = await _store_free(tx, separate, None, fresh=fresh)
        if len(ids) == len(separate):
            await note_stored(tx, separate)
            return {}
        await note_stored(tx, [new for new in separate if new.job.id in ids])
        new_jobs = [new for new in new_jobs if new.job.id not in ids]
    races: dict[Key, _Race] = {}
    for new in new_jobs:
        races.setdefault((new.function, new.job.unique), _Race()).new_jobs.append(new)
    await _look_up_kept(tx, races)
    joined: dict[int, ops.Found] = {}
    for tries in range(RACE_ROUNDS):
        if tries or separate is None:
            await _store_candidates(tx, races, joined, fresh=fresh)
            fresh = False
        if races:
            await _join_live(tx, races, joined)
        if not races:
            return joined
    raise StoreError(f"jobs of {len(races)} uniques came and went too fast to be joined")


def independent(new_jobs: list[New]) -> list[New] | None:
    """Return new jobs sorted by their uniques, if none can join another one or a kept success; None otherwise.

    Nearly every group qualifies, and saves a third of the time that a unique costs this process.
    """
    found = {(new.function, new.job.unique): new for new in new_jobs}
    if len(found) < len(new_jobs) or any(
        new.job.options is not None and rows.keeps(new.job) is not None for new in new_jobs
    ):
        return None
    return [found[key] for key in sorted(found)]


async def _look_up_kept(tx: Transaction, races: dict[Key, _Race]) -> None:
    """Find the last success of each unique that a new job would join."""
    since: dict[Key, int] = {}
    for key, race in races.items():
        times = [
            rules.kept_since(new.job.created_us, keep)
            for new in race.new_jobs
            if (keep := rows.keeps(new.job)) is not None
        ]
        if times:
            since[key] = min(times)
    if since:
        columns = [key[0] for key in since], [key[1] for key in since], list(since.values())
        for function, unique, job_id, attempt, ended_us in await tx.connection.fetch(SQL["kept"], *columns):
            races[function, unique].kept = ops.Found(job_id, _SUCCEEDED, attempt), ended_us
    for race in races.values():
        race.choose()


async def _store_candidates(
    tx: Transaction, races: dict[Key, _Race], joined: dict[int, ops.Found], *, fresh: bool
) -> None:
    """Store the candidates whose unique is free, and let the other jobs of that unique join them; those races are over."""
    candidates = [race.candidate for _, race in sorted(races.items()) if race.candidate is not None]
    if not candidates:
        return
    stored = await _store_free(tx, candidates, races, fresh=fresh)
    won = [new for new in candidates if new.job.id in stored]
    waiting = []
    for new in won:
        race = races.pop((new.function, new.job.unique))
        found = ops.Found.of(new.job)
        for other in race.new_jobs:
            if other is new:
                continue
            if race.satisfied(other) and other.rank < new.rank:
                assert race.kept is not None
                joined[other.job.id] = race.kept[0]
            else:
                joined[other.job.id] = found
                if other.waiter:
                    waiting.append((new.job.id, other.waiter))
    await note_stored(tx, won)
    await note_waiting(tx, waiting)


async def _store_free(
    tx: Transaction, candidates: list[New], races: dict[Key, _Race] | None, *, fresh: bool
) -> set[int]:
    """Store the candidates whose unique is free, and return their ids; ``races`` has the jobs that will join them, if any."""
    stored: set[int] = set()
    for portion in rows.portions(candidates, _size):
        columns = columns_of(tx, portion)
        if races is not None:
            for at, new in enumerate(portion):
                _apply_joins(races[new.function, new.job.unique], new, at, columns)
        extra = rows.uniques([new.job for new in portion])
        records = await tx.connection.fetch(SQL["submit_unique"], *columns, *extra, fresh)
        stored.update(record[0] for record in records)
        fresh = False
    return stored


_FOREGROUND, _WAITED = 11, 12
"""The indexes of these columns among those of ``submit``."""


def _apply_joins(race: _Race, new: New, at: int, columns: rows.Columns) -> None:
    """Adjust a candidate's columns for the jobs of its group that will join it."""
    later = [other for other in race.new_jobs if other.rank > new.rank]
    if new.job.foreground and not all(other.job.foreground for other in later):
        columns[_FOREGROUND][at] = None
    if not new.waiter and any(other.waiter for other in later):
        if not columns[_WAITED]:
            columns[_WAITED] = [None] * len(columns[0])
        columns[_WAITED][at] = True


async def _join_live(tx: Transaction, races: dict[Key, _Race], joined: dict[int, ops.Found]) -> None:
    """Join the live jobs that have the uniques; if such a job has ended in between, its race continues."""
    keys = sorted(races)
    live = {
        (function, unique): (ops.Found(job_id, state, attempt), foreground)
        for function, unique, job_id, state, attempt, foreground in await tx.connection.fetch(
            SQL["live"], [key[0] for key in keys], [key[1] for key in keys]
        )
    }
    changes: list[tuple[int, bool, bool, Key]] = []
    for key, (found, foreground) in live.items():
        new_jobs = races[key].new_jobs
        background = bool(foreground) and not all(new.job.foreground for new in new_jobs)
        waited = any(new.waiter for new in new_jobs)
        if background or waited:
            changes.append((found.id, background, waited, key))
    if changes:
        changes.sort()
        columns = [[change[at] for change in changes] for at in range(3)]
        locked = {row[0] for row in await tx.connection.fetch(SQL["join"], *columns)}
        for job_id, _, _, key in changes:
            if job_id not in locked:
                del live[key]
    waiting = []
    for key in keys:
        race = races[key]
        if key in live:
            found = live[key][0]
            waiting += [(found.id, new.waiter) for new in race.new_jobs if new.waiter]
        elif race.candidate is None:
            assert race.kept is not None
            found = race.kept[0]
        else:
            continue
        joined.update((new.job.id, found) for new in race.new_jobs)
        del races[key]
    await note_waiting(tx, waiting)
