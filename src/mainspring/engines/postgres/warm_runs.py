"""Groups of decisions in one statement: reports of deciders and ends of activities, about runs that this node has in memory.

Such a group is first run without the store. `WarmRuns` answers from memory, notes what it presumes, and gathers the writes. Then
one statement locks the runs in the order of their ids, and the jobs after them, and checks all that was presumed: that no other
node has written one of the runs since, and that the jobs are still held. It writes and commits, or it writes nothing. In that
case the group runs step by step, as one does that needs more than is in memory. The runs have to be read again then, so the
groups of the next second are not tried (`FastPathBackoff`).

The statement is no function of the schema: its writes have the check as a condition, so that no error has to undo them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.engines.postgres import submitting, transaction
from mainspring.engines.postgres.transaction import JOBS_SQL, SQL
from mainspring.engines.postgres.workflows import PostgresRuns
from mainspring.engines.sql.workflows import rescheduled_row
from mainspring.jobs import rules
from mainspring.jobs.job_events import have_events
from mainspring.jobs.model import State
from mainspring.jobs.owners import note, noticed, owner
from mainspring.jobs.slices import Units, of_kind
from mainspring.jobs.store import Settle
from mainspring.workflows import unit
from mainspring.workflows.hold_calls import is_about_holds
from mainspring.workflows.model import Parking
from mainspring.workflows.requests import CancelTimer, RecordMarker, ScheduleActivityTask, StartTimer
from mainspring.workflows.store import Decide

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from mainspring.engines.postgres.submitting import New
    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement
    from mainspring.jobs.slices import Slice
    from mainspring.jobs.store import Found
    from mainspring.resources.hold_store import AskHolds
    from mainspring.storage.engine import Plan
    from mainspring.workflows.reading import RunCache
    from mainspring.workflows.requests import Completion
    from mainspring.workflows.store import RunRow
    from mainspring.workflows.tables import Guarded, Writes

KINDS: Final = frozenset({Settle, Decide})
"""The operations of such groups."""
DECISIONS: Final = frozenset({ScheduleActivityTask, RecordMarker, StartTimer, CancelTimer})
"""The decisions that reach no other run, and after which the run is open."""
_UNPARKED: Final = Parking()


def _renumbered(statement: str, by: int) -> str:
    return re.sub(r"\$(\d+)", lambda found: f"${int(found[1]) + by}", statement)


STATEMENT: Final = SQL["write_warm"]
"""For a group that creates no jobs."""
_PARAMETERS: Final = max(int(number) for number in re.findall(r"\$(\d+)", STATEMENT))
_BODY, _LAST = STATEMENT.rsplit("\nSELECT", 1)
WITH_JOBS: Final = (
    f"{_BODY}, submitted AS (\n{_renumbered(JOBS_SQL['submit'], _PARAMETERS)}\n"
    f"WHERE EXISTS (SELECT FROM presumed))\nSELECT{_LAST}"
)
"""For one that does: with the statement ``submit``."""


class NotWarmError(Exception):
    """A group needs more than is in memory."""


class NoStore:
    """In place of a connection."""

    async def fetch(self, *_: Any) -> Any:
        """Raise NotWarmError: something is to be read or written that is not in memory."""
        raise NotWarmError

    async def execute(self, *_: Any) -> Any:
        """Raise NotWarmError, as `fetch` does."""
        raise NotWarmError

    async def fetchrow(self, *_: Any) -> Any:
        """Raise NotWarmError, as `fetch` does."""
        raise NotWarmError

    async def fetchval(self, *_: Any) -> Any:
        """Raise NotWarmError, as `fetch` does."""
        raise NotWarmError


class WarmRuns(PostgresRuns):
    """``workflows.tables.RunTables`` in memory. All other methods raise NotWarmError, because ``tx`` has no connection."""

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx)
        self.presumed: dict[int, tuple[int, int]] = {}
        """The runs of the group, with ``RunRow.written`` and the numbers of their events."""
        self.held: set[int] = set()
        """Jobs that have to be held under the node's term."""
        self.settled: list[int] = []
        """Those that end."""
        self.new: list[New] = []
        self.writes: Writes | None = None

    @property
    def changes(self) -> list[Guarded]:
        """Return the changed rows."""
        return [] if self.writes is None else [*self.writes.appended, *self.writes.rescheduled]

    def presume(self, cache: RunCache, runs: Iterable[int]) -> bool:
        """Presume that runs are stored as they are in memory; return False if one is not there."""
        for run in runs:
            found = cache.peek(run)
            if found is None or not found.row.written or found.row.parking != _UNPARKED:
                return False
            self.presumed[run] = found.row.written, found.row.events
        return True

    def settle(self, settlements: Iterable[Settlement]) -> None:
        """Presume that jobs are held, and end them."""
        tx = self._tx
        for settlement in settlements:
            job = settlement.job
            self.held.add(job.id)
            self.settled.append(job.id)
            tx.count(tx.functions.numbers[job.function], State.LEASED, job.priority, -1)
            note(tx.notices, noticed(settlement, int(rules.target(settlement.event))))

    async def hold(self, runs: Collection[int]) -> None:
        if not self.presumed.keys() >= set(runs):
            raise NotWarmError

    async def try_to_hold(self, runs: Iterable[int]) -> set[int]:
        await self.hold([*runs])
        return set()

    def is_current(self, row: RunRow) -> bool:
        return row.id in self.presumed

    async def is_held(self, job_id: int, term: int) -> bool:
        if term != self.term:
            raise NotWarmError
        if job_id in self.settled:
            return False  # the group itself ends it
        self.held.add(job_id)
        return True

    async def submit(self, new: list[Job]) -> dict[int, Found]:
        numbers = self._tx.functions.numbers
        if self.new or not all(job.function in numbers for job in new):
            raise NotWarmError
        self.new = submitting.new_jobs_of(self._tx, new, [0] * len(new))
        await submitting.note_stored(self._tx, self.new)
        return {}

    def ask_holds(self, ask: AskHolds) -> None:
        del ask
        raise NotWarmError

    async def write(self, writes: Writes) -> None:
        if writes.new or writes.changed or self.writes is not None:
            raise NotWarmError
        self.writes = writes

    def arguments(self, number: int) -> list[Any]:
        """Return the arguments of the statement for the group with this number in the journal. Raises NotWarmError."""
        writes, runs = self.writes, sorted(self.presumed)
        blocks = [] if writes is None else writes.blocks
        snapshots = [] if writes is None else writes.snapshots
        size = sum(len(new.job.payload) for new in self.new) + sum(len(block.events) for block in blocks)
        if size + sum(len(one.state) for _, one in snapshots) > transaction.PORTION_BYTES:
            raise NotWarmError
        deltas = [(*key, delta) for key, delta in self._tx.deltas.items() if delta]
        arguments = [
            self.term,
            number,
            runs,
            *([self.presumed[run][at] for run in runs] for at in range(2)),
            sorted(self.held),
            sorted(self.settled),
            *_columns([rescheduled_row(change)[:-1] for change in self.changes], 6),
            *_columns(blocks, 3),
            *_columns([(run, one.history_bytes, one.state) for run, one in snapshots], 3),
            *_columns(deltas, 4),
        ]
        if self.new:
            arguments += [*submitting.columns_of(self._tx, self.new), True]
        return arguments


def _columns(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    return [[row[at] for row in rows] for at in range(width)]


class WarmGroup(NamedTuple):
    """A group that has run without the store: its statement, and the outcomes of its operations once that has committed it."""

    runs: WarmRuns
    statement: str
    arguments: list[Any]
    outcomes: list[Any]

    def committed(self, own: int) -> None:
        """Note the number of the transaction, which is in the rows that it has written.

        If the answer is lost, the rows in memory keep an older number, and are read again.
        """
        for change in self.runs.changes:
            change.row.written = own


async def compose(
    tx: Transaction, slices: Sequence[Slice[Transaction]], cache: RunCache, plan: Plan, size: int, number: int
) -> WarmGroup | None:
    """Run a group without the store, on a transaction that has none; return None if it does not qualify.

    Raises NotWarmError if that shows later: then the cache has lost its runs.
    """
    assert KINDS.issuperset(plan), "the writer tries no other groups"
    settlements = [one for operation in of_kind(plan, Settle) for one in operation.settlements]
    completions = [one for operation in of_kind(plan, Decide) for one in operation.completions]
    if not all(_ends(tx, one) for one in settlements) or not all(map(_goes_on, completions)):
        return None
    if len({one.job.id for one in settlements}) < len(settlements) or have_events(settlements, tx.events.interests):
        return None  # the statement writes no events; the runs stay open, and have none themselves
    runs = tx.use(PostgresRuns, WarmRuns(tx))
    changed = {one.run for one in completions} | {_run_of(one) for one in settlements}
    if not runs.presume(cache, changed):
        return None
    runs.settle(settlements)
    outcomes: list[Any] = [None] * size
    for index, _ in plan.get(Settle, ()):
        outcomes[index] = set()
    await Units(slices, tx).run(plan, tx.notices, outcomes)
    arguments = runs.arguments(number)
    return WarmGroup(runs, WITH_JOBS if runs.new else STATEMENT, arguments, outcomes)


def _ends(tx: Transaction, settlement: Settlement) -> bool:
    """Return whether a settlement ends a job of a run for good, which leaves no row."""
    job = settlement.job
    options, whose = job.options, owner(job.options)
    if options is None or whose is None or whose.kind != unit.KIND or not options.forget:
        return False
    if rules.target(settlement.event) < State.SUCCEEDED or job.term != tx.term:
        return False
    return 0 < job.id <= transaction.LARGEST_ID and job.function in tx.functions.numbers


def _run_of(settlement: Settlement) -> int:
    options = settlement.job.options
    assert options is not None
    assert options.run is not None, "`_ends` has checked it"
    return options.run[0]


def _goes_on(completion: Completion) -> bool:
    """Return whether the run of a completion stays open, needs no other one, and publishes and writes nothing."""
    decisions = completion.decisions
    return (
        completion.parked is None
        and not completion.values
        and not completion.streams
        and DECISIONS.issuperset(map(type, decisions))
        and not any(map(is_about_holds, decisions))  # they lock resources
    )
