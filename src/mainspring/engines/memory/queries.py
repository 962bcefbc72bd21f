"""The queries in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Coroutine
from copy import copy
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from mainspring.engines.memory.jobs import counts_of, find
from mainspring.engines.memory.tables import Tables
from mainspring.jobs.model import RUNS, State
from mainspring.jobs.store import Counted, CountSome, Find, ShowCounts, ShowJob, numbered
from mainspring.namespaces import DEFAULT
from mainspring.queries import MAX_KEYS, FirstInLine, Mark, QueryJobs, ReadArguments, Recall, Recalled, search
from mainspring.resources.store import ListLimits
from mainspring.storage.engine import Meter, Query, in_parts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.jobs.model import Job
    from mainspring.resources.rules import FunctionLimits
    from mainspring.storage.engine import Page


class _Jobs:
    """`SearchableJobs` in dictionaries. Sorting the ids for each page takes a hundredth of a second with a million jobs."""

    seeks = True

    def __init__(self, tables: Tables, query: QueryJobs) -> None:
        self._jobs = tables.jobs
        self._order = sorted(
            tables.jobs
            if query.where.tag is None
            else tables.tagged.get((query.where.namespace or DEFAULT, query.where.tag), ())
        )
        self._query = query

    async def few(self, most: int) -> list[Job] | None:
        """Return None: there are no indexes."""
        del most
        return None

    async def mark(self, before: int | None, rows: int) -> Mark | None:
        at = self._place(before) - rows
        if at < 0:
            return None
        job = self._jobs[self._order[at]]
        return Mark(job.id, job.created_us)

    async def part(self, before: int | None, rows: int, most: int) -> tuple[Mark | None, list[Job]]:
        mark = await self.mark(before, rows)
        found: list[Job] = []
        end = self._place(before)
        for at in range(end - 1, max(end - rows, 0) - 1, -1):
            job = self._jobs[self._order[at]]
            if self._query.where.matches(job):
                found.append(copy(job))
                if len(found) >= most:
                    break
        return mark, found

    def _place(self, before: int | None) -> int:
        return len(self._order) if before is None else bisect_left(self._order, before)


async def list_jobs(tables: Tables, query: QueryJobs, meter: Meter) -> Page[Job]:
    """List jobs, newest first."""
    return await search(_Jobs(tables, query), query, meter)


async def read_arguments(tables: Tables, query: ReadArguments, _: Meter) -> bytes | None:
    """Return the arguments of a job; see ``ReadArguments``."""
    job = tables.jobs.get(query.id)
    return None if job is None or job.term == RUNS or not _keeps_payload(job) else job.payload


def _keeps_payload(job: Job) -> bool:
    return bool(job.payload) or not job.input_size


async def recall(tables: Tables, query: Recall, _: Meter) -> Recalled | None:
    """Return the payload and the attempts of a job."""
    job = tables.jobs.get(query.id)
    if job is None:
        return None
    kept = _keeps_payload(job)
    payload = job.payload if kept and len(job.payload) <= query.most else None
    return Recalled(payload, kept, tables.attempts.get(job.id, b""))


async def show_job(tables: Tables, query: ShowJob, _: Meter) -> Job | None:
    """Return a job; see ``ShowJob``."""
    return find(tables, Find([query.id], 0, query.namespace)).get(query.id)


async def first_in_line(tables: Tables, query: FirstInLine, _: Meter) -> dict[bytes, int]:
    """Return since when the first job of each function waits; see ``FirstInLine``."""
    jobs = tables.jobs

    def is_pending(priority: int, job_id: int) -> bool:
        job = jobs.get(job_id)
        return job is not None and job.state == State.PENDING and job.priority == priority

    found = {}
    for function in query.functions:
        firsts = [
            jobs[job_id]
            for priority, pending in enumerate(tables.pending.get(function, ()))
            for job_id in pending.firsts(partial(is_pending, priority), MAX_KEYS)
        ]
        if firsts:
            found[function] = min(max(job.created_us, job.due_us) for job in firsts)
    return found


async def list_limits(tables: Tables, query: ListLimits, meter: Meter) -> Page[FunctionLimits]:
    """List the limits of functions."""

    async def behind(after: bytes | None, most: int) -> list[tuple[bytes, FunctionLimits]]:
        names = behind_of(tables.limits, after)[:most]
        return [(name, tables.limits[name]) for name in names]

    return await in_parts(query, meter, behind)


def behind_of(names: Iterable[Any], after: Any) -> list[Any]:
    """Return the names after one, sorted."""
    return sorted(name for name in names if after is None or name > after)


async def show_counts(tables: Tables, query: ShowCounts, _: Meter) -> Counted:
    """Return counts; see ``ShowCounts``. A page begins after a number of functions."""
    if query.functions is not None:
        return Counted(counts_of(tables, query.functions, query.states))
    functions = tables.counts.functions
    start = numbered(query.after)
    end = start + query.limit
    counts = counts_of(tables, islice(functions, start, end), query.states)
    return Counted(counts, b"%d" % end if end < len(functions) else None)


Readers = dict[type[Query[Any]], Callable[[Tables, Any, Meter], Coroutine[Any, Any, Any]]]
READERS: Readers = {
    QueryJobs: list_jobs,
    FirstInLine: first_in_line,
    ShowJob: show_job,
    ReadArguments: read_arguments,
    Recall: recall,
    ListLimits: list_limits,
    ShowCounts: show_counts,
    CountSome: show_counts,
}
