"""The port of deadlines: the operations on their rows in a store, with their outcomes, and the rule for those that are due.

The transaction that submits a job writes a row for each of its times (`jobs.lateness`), and a schedule that should start a job in
time has one row (`schedules.rules.watch`). Rows stay until they are due, whatever happens to the job: its end costs nothing more.
One transaction then deletes them, and adds the events of those that are late. So each event is written once, whichever nodes try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from mainspring.event_log import types
from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import OverdueFields
from mainspring.jobs.lateness import NAMES, DueRow, Kind, has_begun
from mainspring.jobs.model import RUNS, State
from mainspring.namespaces import name_text, split
from mainspring.storage.engine import Operation, Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mainspring.event_log.interests import NewEvents
    from mainspring.jobs.model import Job


class Item(NamedTuple):
    """The subject of a row: a time of a job, or a schedule."""

    job: int
    """0 for a schedule."""
    kind: int
    """A `jobs.lateness.Kind`; 0 for a schedule."""
    schedule: str = ""
    """The key of a schedule."""


class FindDeadlines(Operation):
    """Read the rows that are due up to ``until_us``, the earliest first, at most ``limit``. Outcome: `Upcoming`."""

    phase = Phase.READ
    reads = True
    until_us: int
    limit: int = 10_000

    def __post_init__(self) -> None:
        self.rows = self.limit


class Upcoming(NamedTuple):
    """The outcome of `FindDeadlines`: see `storage.agenda.Upcoming`."""

    due: list[tuple[Item, int]]
    next_us: int | None


class RingDeadlines(Operation):
    """Delete the rows of jobs that are due, and add the events of those jobs that are late.

    Outcome: ``list[Item]``: those that are due still, because another transaction has locked their jobs.
    """

    phase = Phase.EVENTS
    items: list[Item]
    now_us: int

    def __post_init__(self) -> None:
        self.rows = len(self.items)


class DeadlineTables(Protocol):
    """The rows of jobs in a transaction."""

    async def take(self, jobs: Collection[int], until_us: int) -> Sequence[DueRow]:
        """Lock and return the rows of these jobs that are due up to a time, without those that another transaction has locked."""

    async def live_jobs(self, ids: Collection[int]) -> tuple[Mapping[int, Job], Collection[int]]:
        """Lock and return those of these jobs that have not ended, and the ids of those that another transaction has locked."""

    async def decided(self, roots: Collection[int]) -> Collection[int]:
        """Return those of these root jobs whose runs have made a decision."""

    async def remove(self, rows: Sequence[DueRow]) -> None:
        """Delete rows."""


async def ring(tables: DeadlineTables, events: NewEvents, operation: RingDeadlines) -> list[Item]:
    """Run an operation."""
    rows = await tables.take({one.job for one in operation.items}, operation.now_us)
    locked: Collection[int] = ()
    if rows and types.OVERDUE in events.interests.types:
        live, locked = await tables.live_jobs({row.job for row in rows})
        roots = {row.job for row in rows if row.kind == Kind.START and row.job in live and live[row.job].term == RUNS}
        decided = await tables.decided(roots) if roots else ()
        for row in sorted(rows, key=_by_time):
            if row.job in live:
                events.add(_event(live[row.job], row, row.job in decided))
    done = [row for row in rows if row.job not in locked]
    if done:
        await tables.remove(done)
    return [Item(row.job, row.kind) for row in rows if row.job in locked]


def _by_time(row: DueRow) -> tuple[int, int, int]:
    return row.due_us, row.job, row.kind


def _event(job: Job, row: DueRow, decided: bool) -> NewEvent | None:
    """Return the event of a job that has not ended; None if only its end was due by a later time, and it has begun."""
    is_root = job.term == RUNS
    if row.kind == Kind.START and (decided if is_root else has_begun(job)):
        return None
    namespace, function = split(job.function)
    options = job.options
    assert options is not None, "a job with a row has the time among its options"
    return NewEvent(
        types.OVERDUE,
        namespace,
        name_text(function),
        "",
        job.id,
        OverdueFields(
            kind=NAMES[Kind(row.kind)],
            due_us=row.due_us,
            running=row.kind == Kind.END and State(job.state).held,
            tags=options.tags,
            key=name_text(job.key),
            schedule=options.schedule or "",
            run=job.id if is_root else options.run[0] if options.run is not None else 0,
        ),
        options.tags,
    )


def items_of(rows: Iterable[Sequence[int | str]]) -> list[tuple[Item, int]]:
    """Return rows of a table: due time, job, kind, schedule."""
    return [(Item(int(row[1]), int(row[2]), str(row[3])), int(row[0])) for row in rows]
