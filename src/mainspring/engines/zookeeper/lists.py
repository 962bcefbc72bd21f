"""The queries on ZooKeeper. While the ensemble is away, they fail with an error."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.zookeeper import locating, paths, queries
from mainspring.jobs.model import UNREADABLE_OPTIONS, Job, State
from mainspring.jobs.store import CountDead, Counted, DeadCounted, Find, ShowDead, ShowJob, ShowLive
from mainspring.queries.jobs import ListJobs, Mark, ReadArguments, search
from mainspring.sizes import CANNOT_READ
from mainspring.storage.query import Meter, Query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mainspring.engines.zookeeper.locating import LocatedJob
    from mainspring.engines.zookeeper.session import Reader, Readers, Session
    from mainspring.storage.query import Budget, Page

PAGE_ROWS: Final = 200
"""Rows read at once."""


async def answer(reader: Reader, session: Session, query: Query[Any], budget: Budget) -> Any:
    """Answer a query by its reader. Raises StoreError."""
    budget = budget._replace(part=min(budget.part, PAGE_ROWS))
    return await reader(session, query, Meter(budget, asyncio.get_running_loop().time))


class _Jobs:
    """`SearchableJobs` on the tree: each job has a result node since its submission."""

    seeks = False

    def __init__(self, session: Session, query: ListJobs) -> None:
        self._session = session
        self._query = query
        self._blocks = newest(session, query.after)
        self._listed: deque[int] = deque()

    async def few(self, most: int) -> list[Job] | None:
        """Return None: there are no indexes."""
        del most
        return None

    async def mark(self, before: int | None, rows: int) -> Mark | None:
        """Never called: the blocks are in their order."""
        raise NotImplementedError

    async def part(self, before: int | None, rows: int, most: int) -> tuple[Mark | None, list[Job]]:
        """Read the next part, after the last one."""
        del before
        async for ids in self._blocks:
            self._listed.extend(ids)
            if len(self._listed) >= rows:
                break
        ids = [self._listed.popleft() for _ in range(min(rows, len(self._listed)))]
        seen = await locating.look(self._session, ids)
        jobs = [_job_of(seen[job_id]) for job_id in ids if job_id in seen]
        mark = Mark(ids[-1], jobs[-1].created_us if jobs else 0) if len(ids) == rows else None
        found = [job for job in jobs if self._query.where.matches(job)][:most]
        for job in found:
            job.result = b""
        return mark, found


def _job_of(seen: LocatedJob) -> Job:
    """Return a job as a list shows it. One whose record cannot be read is a row with its id."""
    try:
        return seen.job()
    except (*CANNOT_READ, LookupError, TypeError):
        return Job(seen.id, b"", b"", state=seen.state, options=UNREADABLE_OPTIONS)


async def list_jobs(session: Session, query: ListJobs, meter: Meter) -> Page[Job]:
    """List jobs, newest first."""
    await session.tree.sync()
    return await search(_Jobs(session, query), query, meter)


async def read_arguments(session: Session, query: ReadArguments, _: Meter) -> bytes | None:
    """Return the arguments of a job; see ``ReadArguments``."""
    seen = (await locating.look(session, [query.id])).get(query.id)
    return None if seen is None or seen.state == State.SUCCEEDED else seen.job(whole=True).payload


async def show_job(session: Session, query: ShowJob, _: Meter) -> Job | None:
    """Return a job; see ``ShowJob``."""
    (found,) = await queries.find(session, [Find([query.id], 0, query.namespace)])
    return found.get(query.id)


async def newest(session: Session, before: int | None) -> AsyncIterator[list[int]]:
    """Yield the ids of all jobs below ``before``, a block at a time, newest first."""
    blocks = paths.blocks_of(await session.tree.children(paths.RESULTS))
    for block in sorted(map(paths.first_of_block, blocks), reverse=True):
        if before is not None and block >= before:
            continue
        handles = paths.handles_of(await session.tree.children(paths.block(block)))
        ids = sorted(map(paths.id_of, handles), reverse=True)
        yield ids if before is None else [job_id for job_id in ids if job_id < before]


async def show_live(session: Session, query: ShowLive, _: Meter) -> Counted:
    """Return the counts of a page of functions, in the order of their names."""
    counts = await queries.live(session)
    names = sorted({name for name, _, _ in counts})
    at = bisect_right(names, query.after)
    page, rest = names[at : at + query.limit], names[at + query.limit :]
    return Counted(queries.of_functions(counts, frozenset(page)), page[-1] if rest else None)


async def count_dead(session: Session, query: CountDead, meter: Meter) -> dict[bytes, int]:
    """Return the numbers of dead letters."""
    asked = frozenset(query.functions)
    everything = await show_dead(session, ShowDead(), meter)
    return {name: number for name, number in everything.numbers.items() if name in asked}


async def show_dead(session: Session, _: ShowDead, __: Meter) -> DeadCounted:
    """Return the dead letters of all functions: they are one reading."""
    await session.tree.sync()
    found = Counter[bytes]()
    for (name, state, _priority), number in (await queries.count_all(session)).items():
        if state == State.FAILED:
            found[name] += number
    return DeadCounted({name: number for name, number in found.items() if number})


READERS: Final[Readers] = {
    ListJobs: list_jobs,
    ReadArguments: read_arguments,
    ShowJob: show_job,
    ShowLive: show_live,
    CountDead: count_dead,
    ShowDead: show_dead,
}
