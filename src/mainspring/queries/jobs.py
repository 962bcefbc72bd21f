"""The read side of jobs: lists, and who is first in line. It never writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from mainspring.jobs.model import Job, State
from mainspring.storage.query import Page, PageQuery, Query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.storage.query import Meter


class ListJobs(PageQuery[Job], frozen=True, kw_only=True):
    """List jobs, newest first, without payloads and results; what is None does not matter. A place between them is an id."""

    state: State | None = None
    function: bytes | None = None
    unique: bytes | None = None

    def matches(self, job: Job) -> bool:
        """Tell whether a job is one of those that are asked for."""
        return (
            (self.state is None or job.state == self.state)
            and (self.function is None or job.function == self.function)
            and (self.unique is None or job.unique == self.unique)
        )


class Mark(NamedTuple):
    """A job among all, up to which a part of a search goes."""

    id: int
    created_us: int


class Searched(Protocol):
    """The jobs of a store, at one moment, as ``search`` needs them."""

    async def few(self, most: int) -> list[Job] | None:
        """Return the matching jobs, newest first, by an index that has no more than so many entries to pass; None: none has."""

    async def mark(self, before: int | None, rows: int) -> Mark | None:
        """Return the last one of so many jobs with ids below one, matching or not, newest first; None: there are fewer."""

    async def between(self, low: int, before: int | None, most: int) -> Sequence[Job]:
        """Return matching jobs with ids from ``low`` to below ``before``, newest first."""


async def search(jobs: Searched, query: ListJobs, meter: Meter) -> Page[Job]:
    """Answer ``ListJobs``: by an index where that is short, and otherwise passing over all jobs, from the newest on."""
    few = await jobs.few(meter.few)
    if few is not None:
        return _cut(few, query.limit)
    found: list[Job] = []
    before: int | None = query.after
    mark = None
    while rows := meter.part():
        mark = await jobs.mark(before, rows)
        found += await jobs.between(0 if mark is None else mark.id, before, query.limit - len(found))
        meter.spend(rows)
        if mark is None or len(found) >= query.limit:
            return _cut(found, query.limit)
        before = mark.id
    assert mark is not None, "the first part is never refused"
    return Page(found, mark.id, mark.created_us)


def _cut(found: list[Job], limit: int) -> Page[Job]:
    if len(found) < limit:
        return Page(found)
    last = found[limit - 1]
    return Page(found[:limit], last.id, last.created_us)


MOST_KEYS = 20
"""Concurrency keys of a function and priority whose first jobs are looked at, where a store has a line for each key."""


class FirstInLine(Query[dict[bytes, int]], frozen=True):
    """Read since when the pending jobs have waited that are the first in line for a worker. Only where `Engine.lines`.

    The answer has, for each function that has pending jobs, the earliest wall time in microseconds at which one of these first
    jobs was submitted or became due. Each priority has a line, or each priority and key. Only the beginnings of the lines are
    read, however long they are.
    """

    functions: tuple[bytes, ...]
