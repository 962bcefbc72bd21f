"""Queries of lists, and the criteria for the jobs of a list or of an operation on many jobs.

Lists have jobs, with newer facts from a node's memory, and histories and outcomes of schedules. Queries never write.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from mainspring.ids import TERM_SPAN
from mainspring.jobs.model import Job, Options, State, decode_failure
from mainspring.jobs.user_data import indexed_tags
from mainspring.namespaces import ANY, namespace_of
from mainspring.schedules.model import Fire
from mainspring.storage.engine import Page, PageQuery, Query, in_parts
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from mainspring.jobs.held import Held
    from mainspring.storage.engine import Meter


ALL_STATES = tuple(State)
_NO_OPTIONS = Options()


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Criteria for jobs. A job matches if it meets all of them; a criterion that is left out restricts nothing.

    Operations on many jobs store it as MessagePack, so a field is never renamed.
    """

    states: tuple[State, ...] = ()
    """Any of these states; none stands for all."""
    function: bytes | None = None
    functions: tuple[str, ...] = ()
    """Names or patterns such as ``pay*``: one of them has to match. A caller may be restricted to them (`access.caller`)."""
    namespace: str = ANY
    unique: bytes | None = None
    key: bytes | None = None
    """The concurrency key."""
    schedule: str | None = None
    """The schedule that made the job."""
    run: int | None = None
    """The run of a workflow to which the job belongs."""
    error_type: str | None = None
    """The type of the last failure."""
    tag: str | None = None
    """The only criterion that has an index of its own."""
    created_from_us: int = 0
    """The earliest time of submission; 0 for any."""
    created_to_us: int = 0
    """The time before which the job was submitted; 0 for any."""

    def matches(self, job: Job) -> bool:
        """Return whether a job matches."""
        return (
            (not self.states or job.state in self.states)
            and (self.function is None or job.function == self.function)
            and self.namespace in {ANY, namespace_of(job.function)}
            and (self.unique is None or job.unique == self.unique)
            and job.created_us >= self.created_from_us
            and (not self.created_to_us or job.created_us < self.created_to_us)
            and (self.key is None or job.key == self.key)
            and (not self.functions or matches_pattern(job.function, self.functions))
            and self._matches_options(job.options or _NO_OPTIONS)
            and (self.tag is None or self.tag in indexed_tags(job))
            and (self.error_type is None or (bool(job.error) and decode_failure(job.error).type == self.error_type))
        )

    def _matches_options(self, options: Options) -> bool:
        return (self.schedule is None or options.schedule == self.schedule) and (
            self.run is None or (options.run is not None and options.run[0] == self.run)
        )

    @property
    def in_options(self) -> tuple[bytes | None, bytes | None]:
        """Return bytes that the stored options of each matching job contain: for its schedule, and for its run."""
        schedule = None if self.schedule is None else self.schedule.encode()
        return schedule, None if self.run is None else msgspec.msgpack.encode(self.run)

    @property
    def error_prefix(self) -> bytes | None:
        """Return the first bytes of the stored error of each matching job."""
        return None if self.error_type is None else b'{"type":' + msgspec.json.encode(self.error_type) + b","


def matches_pattern(function: bytes, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns matches a function's name."""
    name = function_text(function)
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class QueryJobs(PageQuery[Job], frozen=True, kw_only=True):
    """List jobs, newest first, without payloads and results. A page continues after an id."""

    where: JobFilter = JobFilter()


class Recalled(NamedTuple):
    """The data of a job that lists leave in the store."""

    payload: bytes | None
    """None if it was dropped when the job succeeded, or has more bytes than were asked for."""
    kept: bool
    """Whether the payload is there. That of a succeeded job may be redacted."""
    attempts: bytes
    """See `attempt_records`."""


class Recall(Query[Recalled | None], frozen=True):
    """Read the payload and the attempts of a job. Only for engines that have `Engine.recalls`."""

    id: int
    most: int = 0
    """Bytes of the largest payload to read."""


class Mark(NamedTuple):
    """The job at which a part of a search ends."""

    id: int
    created_us: int


class SearchableJobs(Protocol):
    """The jobs of a store at one moment, as `search` reads them; if the query has a tag, only the jobs with this tag."""

    seeks: bool
    """Whether the jobs can be read from any id on, and not only in the order of the parts."""

    async def few(self, most: int) -> list[Job] | None:
        """Return the matching jobs, newest first, by an index that reads at most ``most`` entries; None: no index does."""

    async def mark(self, before: int | None, rows: int) -> Mark | None:
        """Return the last of ``rows`` jobs with ids below ``before``, matching or not, newest first; None: there are fewer.

        It is called only if the jobs can be read from any id on.
        """

    async def part(self, before: int | None, rows: int, most: int) -> tuple[Mark | None, Sequence[Job]]:
        """Return the `mark` of the next ``rows`` jobs, and those of them that match, newest first, at most ``most``."""


async def search(jobs: SearchableJobs, query: QueryJobs, meter: Meter) -> Page[Job]:
    """Answer `ListJobs`: by an index if that is short, and otherwise by a scan of all jobs from the newest on."""
    few = await jobs.few(meter.few)
    if few is not None:
        return _cut(few, query.limit)
    found: list[Job] = []
    before: int | None = query.after
    mark = None
    while rows := meter.part():
        if jobs.seeks and (query.where.created_from_us or query.where.created_to_us):
            before = await _skip(jobs, query.where, before)
            if before == 0:
                return _cut(found, query.limit)
        mark, matching = await jobs.part(before, rows, query.limit - len(found))
        found += matching
        meter.spend(rows)
        if mark is None or len(found) >= query.limit:
            return _cut(found, query.limit)
        before = mark.id
    assert mark is not None, "the first part is never refused"
    return Page(found, mark.id, mark.created_us)


CLOCK_STEP_US: Final = 300_000_000
"""How far a node's clock may be set back, so that a search by time still finds all jobs that it has submitted."""


async def _skip(jobs: SearchableJobs, where: JobFilter, before: int | None) -> int:
    """Return the id below which the first jobs of the requested time may be; 0 if there are none.

    The ids of a term rise with the time of submission. So the older ones of a term need no search once they are too old, and the
    first one that is not too new is found by halves.
    """
    while (newest := await jobs.mark(before, 1)) is not None:
        first = newest.id // TERM_SPAN * TERM_SPAN
        if newest.created_us < where.created_from_us - CLOCK_STEP_US:
            before = first
        elif where.created_to_us and newest.created_us >= where.created_to_us + CLOCK_STEP_US:
            before = await _first_too_new(jobs, first, newest.id, where.created_to_us + CLOCK_STEP_US)
        else:
            return newest.id + 1
    return 0


async def _first_too_new(jobs: SearchableJobs, low: int, high: int, time_us: int) -> int:
    """Return the first id of a term from ``low`` on, up to ``high``, whose job was not submitted before a time."""
    while low < high:
        middle = (low + high) // 2
        mark = await jobs.mark(middle + 1, 1)
        if mark is None or mark.id < low or mark.created_us < time_us:
            low = middle + 1
        else:
            high = mark.id
    return low


def _cut(found: list[Job], limit: int) -> Page[Job]:
    if len(found) < limit:
        return Page(found)
    last = found[limit - 1]
    return Page(found[:limit], last.id, last.created_us)


class ReadArguments(Query[bytes | None], frozen=True):
    """Read the arguments of a job. The answer is None if there is no such job, or if its arguments are not kept."""

    id: int


MAX_KEYS = 20
"""Concurrency keys per function and priority whose oldest jobs are read, in stores with one queue for each key."""


class FirstInLine(Query[dict[bytes, int]], frozen=True):
    """Read since when the first pending jobs of functions have waited. Only for engines with `Engine.lines`.

    The answer has, for each function with pending jobs, the earliest wall time in microseconds at which one of its first jobs was
    submitted or became due. Each priority has a queue, or each priority and key. The query reads only the heads of these queues.
    """

    functions: tuple[bytes, ...]


def with_held(page: Page[Job], query: QueryJobs, held: Iterable[Held]) -> Page[Job]:
    """Return the page with the jobs that a node holds: some run before the store has recorded it, some are not stored at all.

    Jobs that belong to a later page are left to that page.
    """
    stored = {job.id for job in page.items}
    seen: dict[int, Job] = {}
    for one in held:
        if one.job.id in stored or not one.stored or State.RUNNING in query.where.states:
            seen[one.job.id] = one.seen()
    states = query.where.states
    if not seen and not states:
        return page
    # The store has matched these, except that a job which a node has may be one that runs.
    newest = [job for job in page.items if job.id not in seen and (not states or job.state in states)]
    newest += (
        job
        for job in seen.values()
        if query.where.matches(job)
        and (query.after is None or job.id < query.after)
        and (page.next is None or job.id >= page.next)
    )
    newest.sort(key=lambda job: -job.id)
    if len(newest) <= query.limit:
        return page._replace(items=newest)
    last = newest[query.limit - 1]
    return Page(newest[: query.limit], last.id, last.created_us)


AMONG: Final = 20
"""The newest rows of a schedule, among which its last outcome is: otherwise that many run or wait."""


class ListFires(PageQuery[Fire], frozen=True):
    """Read the rows of a schedule, newest fire times first, also of a removed one. A page continues after a fire time."""

    name: str


class NewestFires(PageQuery[Fire], frozen=True, kw_only=True):
    """Read the newest rows of some schedules, in the order of these, and of each the oldest row first.

    A page continues after a place in ``names`` and a fire time.
    """

    names: tuple[str, ...]
    """Keys of schedules, each once."""
    before_us: tuple[int, ...]
    """For each of them: only rows with fire times before this one."""
    since_us: int = 0
    """Only rows from this fire time on."""
    each: int
    """The most rows of each."""


class LastOutcomes(Query[list[Fire]], frozen=True):
    """Read the last outcome of each of some schedules: the newest row whose job has ended, or that was skipped.

    Only the newest `AMONG` rows of a schedule are examined.
    """

    names: tuple[str, ...]
    """Keys of schedules."""


class Stretch(NamedTuple):
    """The rows of a schedule that are wanted."""

    name: str
    before_us: int
    since_us: int


async def newest_fires(
    query: NewestFires, meter: Meter, read: Callable[[Sequence[Stretch], int], Awaitable[Sequence[Fire]]]
) -> Page[Fire]:
    """Answer a query with ``read``: it receives stretches and a number, and returns at most that number of their rows.

    Of each stretch it leaves out all but the newest ``each``, also of those before ``since_us``.
    """
    places = {name: place for place, name in enumerate(query.names)}

    async def behind(after: tuple[int, int] | None, most: int) -> list[tuple[tuple[int, int], Fire]]:
        first, last_us = after or (0, -1)
        wanted = [
            Stretch(name, before_us, query.since_us)
            for name, before_us in zip(query.names[first:], query.before_us[first:], strict=True)
        ]
        if wanted:
            wanted[0] = wanted[0]._replace(since_us=max(last_us + 1, query.since_us))
        found = await read(wanted, most)
        return [((places[row.schedule], row.fire_us), row) for row in found]

    return await in_parts(query, meter, behind)
