"""Lateness: the times by which a job should have begun and ended, which are options of the job, and what changes them.

Each time has a row in the store until it is due. A job that is late then has one event, and counts as overdue until it has begun,
or has ended.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from mainspring.jobs.model import RUNS, UNREADABLE_OPTIONS, Options, State
from mainspring.jobs.rules import WORKER_LOST, duration_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.jobs.model import Job


class Kind(IntEnum):
    """The kinds of times. The numbers are stored."""

    START = 1
    """It should have begun."""
    END = 2
    """It should have ended."""


NAMES: Final = {Kind.START: "start_within", Kind.END: "deadline"}
"""The options that set them."""


class DueRow(NamedTuple):
    """A time in the store."""

    job: int
    """0 for a schedule."""
    kind: int
    """A `Kind`; 0 for a schedule."""
    due_us: int
    schedule: str = ""
    """The key of a schedule that should have started a job by then."""


def timed(options: Options, base_us: int) -> Options:
    """Return the options of a job with its times, which count from its due time or its submit, in place of durations."""
    start, end = options.start_within, options.deadline
    if start is None and end is None:
        return options
    return replace(
        options,
        start_within=None,
        deadline=None,
        start_us=options.start_us if start is None else base_us + duration_us(start),
        deadline_us=options.deadline_us if end is None else base_us + duration_us(end),
    )


def is_dated(job: Job) -> bool:
    """Return whether a job has such a time; nearly none has."""
    options = job.options
    return options is not None and (options.deadline_us > 0 or options.start_us > 0)


def rows_of(jobs: Iterable[Job]) -> list[DueRow]:
    """Return the rows of new jobs."""
    return [
        DueRow(job.id, int(kind), due_us)
        for job in jobs
        if job.options is not None
        for kind, due_us in ((Kind.START, job.options.start_us), (Kind.END, job.options.deadline_us))
        if due_us > 0
    ]


def has_begun(job: Job) -> bool:
    """Return whether a worker has had a job, as far as the store knows.

    The start of a job that should have begun by a time is recorded at once. A root job begins with the first decision of its run,
    which this does not see.
    """
    return job.state >= State.RUNNING or job.attempt > 0 or job.suspects >= WORKER_LOST or job.started_us > 0


def overdue_since(job: Job, now_us: int, *, has_run: bool | None = None) -> int:
    """Return since when a job is overdue, in microseconds of wall time; 0 if it is not.

    ``has_run`` is whether its run has made a decision, if the job is a root job and this is known.
    """
    if job.options is None or job.state >= State.SUCCEEDED:
        return 0
    return overdue_by(job.options, now_us, begun=(has_run is not False) if job.term == RUNS else has_begun(job))


def overdue_by(options: Options, now_us: int, *, begun: bool) -> int:
    """Return since when a job with these options is overdue that has not ended; 0 if it is not."""
    times = (0 if begun else options.start_us, options.deadline_us)
    return min((due_us for due_us in times if 0 < due_us <= now_us), default=0)


class Redated(NamedTuple):
    """A change of the times of a job."""

    options: Options
    """The options with the new times."""
    rows: Sequence[DueRow]
    """Rows to be written, in place of earlier ones of the same kind."""
    dropped: Sequence[int]
    """The kinds whose rows are to be deleted."""


def redated(job: Job, start_us: int | None = None, deadline_us: int | None = None) -> Redated | None:
    """Return the change to new times; None leaves one as it is, 0 removes it. None if nothing changes."""
    if job.options is UNREADABLE_OPTIONS:
        return None  # the write would lose what this version cannot read
    options = job.options or Options()
    given = ((Kind.START, options.start_us, start_us), (Kind.END, options.deadline_us, deadline_us))
    changed = {kind: after for kind, before, after in given if after is not None and after != before}
    if not changed:
        return None
    return Redated(
        replace(
            options,
            start_us=changed.get(Kind.START, options.start_us),
            deadline_us=changed.get(Kind.END, options.deadline_us),
        ),
        [DueRow(job.id, int(kind), due_us) for kind, due_us in changed.items() if due_us],
        [int(kind) for kind, due_us in changed.items() if not due_us],
    )


def moved(
    job: Job, by_us: int, now_us: int, start_us: int | None = None, deadline_us: int | None = None
) -> Redated | None:
    """Return the change for a job, as it was before, that begins so much later; None if none of its times changes.

    The time of the start moves only before the job has begun. A time that was due already, and still is, has no second event.
    ``start_us`` and ``deadline_us`` are new times, in place of moved ones, as of `redated`.
    """
    options = job.options or Options()
    given = {Kind.START: start_us is not None, Kind.END: deadline_us is not None}
    if start_us is None and by_us and options.start_us and not has_begun(job):
        start_us = options.start_us + by_us
    if deadline_us is None and by_us and options.deadline_us:
        deadline_us = options.deadline_us + by_us
    change = redated(job, start_us, deadline_us)
    if change is None:
        return None
    earlier = {Kind.START: options.start_us, Kind.END: options.deadline_us}

    def counts(row: DueRow) -> bool:
        return given[Kind(row.kind)] or row.due_us > now_us or earlier[Kind(row.kind)] > now_us

    return change._replace(rows=[row for row in change.rows if counts(row)])


def base_us(job: Job) -> int:
    """Return the time from which the times of a job count: its due time, or that of its submit."""
    return job.due_us or job.created_us
