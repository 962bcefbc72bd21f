"""Optimistic transactions on single jobs, for rare operations: read, plan, and write with version checks.

A plan is pure: it gets a located job and returns the entry to write, with the versions that were read, and the outcome. After a
conflict it is called again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from mainspring.engines.zookeeper import paths, queries, records, transaction
from mainspring.engines.zookeeper.committer import Entry, Fenced
from mainspring.engines.zookeeper.sessions import Completion
from mainspring.engines.zookeeper.submitting import live_result
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Refusal, Write
from mainspring.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from mainspring.engines.zookeeper.committer import Verdict
    from mainspring.engines.zookeeper.queries import LocatedJob, TaskLocation
    from mainspring.engines.zookeeper.sessions import Session
    from mainspring.engines.zookeeper.tree import Change
    from mainspring.jobs.model import Job

T = TypeVar("T")

Plan = tuple[Entry | None, T]
"""The entry to write, if any, and the outcome once it is written."""


async def decide(
    session: Session,
    ids: Iterable[int],
    plan: Callable[[int, LocatedJob | None, TaskLocation | None], Plan[T]],
    *,
    named: bool = False,
) -> dict[int, T]:
    """Read jobs, call their plans and write the entries, until none has a conflict; return the outcomes of all.

    A plan gets an id and the located job; with ``named``, for a published job also the location of the task that has its name.
    Raises StoreFencedError if this node may no longer write.
    """

    async def write(planned: Sequence[tuple[Entry, T]]) -> list[Verdict]:
        return await session.committer.commit([entry for entry, _ in planned])

    outcomes = await _decide(session, ids, plan, write, named=named)
    return cast("dict[int, T]", outcomes)


async def decide_ends(
    session: Session,
    ids: Iterable[int],
    plan: Callable[[int, LocatedJob | None, TaskLocation | None], Plan[T]],
    job: Callable[[T], Job | None],
) -> dict[int, T | StoreError]:
    """Do the same for plans that end jobs: the consequences of an end are written with it, or their error is the outcome.

    ``job`` returns the job that ends with an outcome, if one does.
    """

    async def write(planned: Sequence[tuple[Entry, T]]) -> list[Verdict | StoreError]:
        ends = [(entry, job(outcome)) for entry, outcome in planned]
        verdicts: dict[int, Verdict | StoreError] = {}
        ending_places = [place for place, (_, ended) in enumerate(ends) if ended is not None]
        other_places = [place for place, (_, ended) in enumerate(ends) if ended is None]
        ended = [transaction.end(entry, one) for entry, one in ends if one is not None]
        verdicts.update(zip(ending_places, await transaction.commit(session, ended), strict=True))
        others = [ends[place][0] for place in other_places]
        verdicts.update(zip(other_places, await session.committer.commit(others), strict=True))
        return [verdicts[place] for place in range(len(planned))]

    return await _decide(session, ids, plan, write, named=False)


async def _decide(
    session: Session,
    ids: Iterable[int],
    plan: Callable[[int, LocatedJob | None, TaskLocation | None], Plan[T]],
    write: Callable[[Sequence[tuple[Entry, T]]], Awaitable[Sequence[Verdict | StoreError]]],
    *,
    named: bool,
) -> dict[int, T | StoreError]:
    outcomes: dict[int, T | StoreError] = {}
    left = list(dict.fromkeys(ids))
    unmarked: set[str] = set()
    """Missing index nodes of expiries: their deletion is left out, since the job's end does not need it."""
    while left:
        seen = await queries.read_jobs(session, left)
        locations = await _namesakes(session, seen) if named else {}
        writing: list[int] = []
        planned: list[tuple[Entry, T]] = []
        for job_id in left:
            entry, outcome = plan(job_id, seen.get(job_id), locations.get(job_id))
            if entry is None:
                outcomes[job_id] = outcome
            else:
                writing.append(job_id)
                planned.append((_without(entry, unmarked), outcome))
        left = []
        for job_id, (_, outcome), verdict in zip(writing, planned, await write(planned), strict=True):
            if verdict is None:
                outcomes[job_id] = outcome
            elif isinstance(verdict, Fenced):
                raise session.over()
            elif isinstance(verdict, StoreError):
                outcomes[job_id] = verdict
            else:
                left.append(job_id)
                if verdict.why is Refusal.NO_NODE and verdict.path.startswith(f"{paths.EXPIRING}/"):
                    unmarked.add(verdict.path)
    return outcomes


def _without(entry: Entry, places: Collection[str]) -> Entry:
    if not places:
        return entry
    return Entry([change for change in entry.changes if change.path not in places], entry.counts)


async def _namesakes(session: Session, seen: dict[int, LocatedJob]) -> dict[int, TaskLocation]:
    """Return the locations of the tasks that have the names of published jobs now."""
    tasks = {}
    for one in seen.values():
        if one.location is None:
            job = one.job()
            tasks[job.id] = paths.task_name(job.function, job.unique, job.id)
    locations = await queries.locate(session, tasks.values())
    return {job_id: locations[task] for job_id, task in tasks.items() if task in locations}


# ---- parts of plans ----


def note(seen: LocatedJob, waiters: Iterable[int]) -> Entry:
    """Return the entry that stores the waiters of a job that has not ended."""
    foreground = seen.data.get("foreground", False)
    return Entry(
        [Write(seen.path, live_result(seen.id, seen.data["task"], list(waiters), foreground=foreground), seen.version)]
    )


def unmark(job: Job, task: str) -> list[Change]:
    """Return the deletion of the index node of a job's expiry, if there is one."""
    return [Delete(paths.expiring(task, job.expires_us, job.id))] if job.expires_us else []


def end_of_waiting(seen: LocatedJob, job: Job, who: str) -> tuple[Entry, Completion]:
    """Return the entry that ends a job without a holder, and its completion; ``job`` has its final state."""
    location = seen.location
    assert location is not None
    record = records.encode_job(job, seen.handle, worker=who)
    changes: list[Change] = [
        # Another job of the same name may replace it with the same version; the check of its result shows that.
        Check(seen.path, seen.version),
        Delete(location.path, location.version),
        *unmark(job, location.task),
        Create(paths.completed(location.task), record),
    ]
    counts = ((job.function, int(location.state), job.priority, -1), (job.function, job.state, job.priority, 1))
    return Entry(changes, counts), Completion(location.task, job, record)
