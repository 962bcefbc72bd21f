"""Reads of runs, the same for all engines: by their keys, their states, and lists; and the runs that a node keeps in memory.

A transaction takes the runs that it changes out of the cache, and puts them back after its commit. So nothing in the cache is
ahead of the store, and a transaction that fails costs the cache its runs.

The newest events of runs that a node does not have in memory are read for several runs at a time.

Early signals: those to jobs whose runs have not begun.

A signal to a waiting job begins its run if the job's function is a workflow. Before any worker has registered the workflow, no
node can tell; and runs of a paused workflow do not begin. Such a signal is stored beside the job, and its run takes it at its
begin. It is stored as long as the job, unless a worker ends the job as a task's.

A job whose function has workers for tasks, but is no workflow, is no run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mainspring.errors import StoreError
from mainspring.jobs.model import State as JobState
from mainspring.storage.engine import Page, Query, Sizes
from mainspring.storage.reads import REMEDY
from mainspring.workflows.draft import fold
from mainspring.workflows.history import Event, decode_events
from mainspring.workflows.model import State, Status, decode_state
from mainspring.workflows.payloads import STUB, joined, stub_of, stubs_in
from mainspring.workflows.requests import Reached
from mainspring.workflows.store import ShownRun, Unbegun
from mainspring.workflows.tables import EarlySignals

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Meter
    from mainspring.storage.reads import Reads
    from mainspring.workflows.model import Key, Limits
    from mainspring.workflows.requests import Signal
    from mainspring.workflows.store import ListRuns, ReadHistory, RunRow, Shown, ShowRun, SweepEarlySignals
    from mainspring.workflows.tables import Runs, RunTables, StoredRun

EARLY_BYTES: Final = 16 * 2**20
"""Bytes of all signals to one job whose run has not begun: one transaction records them."""
FIRST_EVENTS: Final = 2
"""Events of a run before its first signal."""


async def find_unbegun(runs: Runs, key: Key, tasks: Container[bytes] = ()) -> list[Unbegun]:
    """Return the waiting jobs that a key names: those of workflows, if there are any, and otherwise those that may become runs.

    ``tasks`` has the functions that are tasks if they are no workflows.
    """
    if key.workflow_id:
        jobs = await runs.waiting_named(key.namespace, key.workflow_id.encode())
    else:
        job = await runs.waiting_job(key.job or key.run, key.namespace)
        jobs = [] if job is None else [job]
    if not jobs:
        return []
    workflows = {one.function for one in await runs.definitions()}
    found = [Unbegun(job, job.function in workflows) for job in jobs]
    return [one for one in found if one.is_workflow] or [one for one in found if one.job.function not in tasks]


def are_workflows(unbegun: Sequence[Unbegun]) -> bool:
    """Return whether there are such jobs, and they will become runs: a request means them rather than a closed run."""
    return bool(unbegun) and unbegun[0].is_workflow


async def store_early(tables: RunTables, job: Job, signal: Signal, limits: Limits) -> Reached:
    """Store a signal for a job whose run has not begun."""
    before = await tables.early(job.id, signal.request)
    if before.is_repeated:
        return Reached("repeated", job.id, job.id, waiting=JobState(job.state))
    size = len(signal.name.encode()) + len(signal.input)
    most = limits.events - limits.reserved - FIRST_EVENTS
    if before.number >= most or before.bytes + size > EARLY_BYTES:
        return Reached("full", 0, job.id)
    await tables.add_early(job.id, EarlySignals(before.number + 1, before.bytes + size), signal)
    return Reached("recorded", job.id, job.id, waiting=JobState(job.state))


async def sweep_early(tables: RunTables, operation: SweepEarlySignals) -> int:
    """Delete signals to jobs for which no run begins any more; see `SweepEarlySignals`."""
    jobs = await tables.early_jobs(operation.after, operation.rows)
    await tables.forget_early([job for job, may_begin in jobs if not may_begin])
    return jobs[-1][0] if len(jobs) == operation.rows else 0


CACHE_BYTES: Final = 16 * 2**20
"""The default size."""

# Measured on CPython 3.11, for runs that were read from the store.
RUN_BYTES: Final = 2_000
ACTIVITY_BYTES: Final = 300
TIMER_BYTES: Final = 200
CHILD_BYTES: Final = 300
EVENT_BYTES: Final = 90
"""Of an event, besides its size in the store."""


class Tail(NamedTuple):
    """The last events of a run."""

    first: int
    """The number of the first one."""
    events: Sequence[Event]


class Run:
    """A run in memory: the row, the state, and the events after the ones that its decider was given last."""

    __slots__ = ("apart", "row", "snapshot_bytes", "snapshotted", "state", "tail", "tail_bytes", "task")

    def __init__(self, row: RunRow, state: State) -> None:
        self.row = row
        self.state = state
        self.tail: list[Event] = []
        """Events in order, up to the last one."""
        self.tail_bytes = 0
        self.apart = 0
        """The last event whose payload is kept apart, among those in ``tail``; 0 if there is none, or it was trimmed."""
        self.task = state.scheduled
        """The event of the decision task that has the job ``row.decision``."""
        self.snapshotted = 0
        """Bytes of the history up to the last snapshot."""
        self.snapshot_bytes = 0
        """The size of the last snapshot, written or not."""

    def append(self, events: Sequence[Event], size: int) -> None:
        """Add events that are ``size`` bytes long in the store."""
        self.tail += events
        self.tail_bytes += size

    def trim(self) -> None:
        """Drop the events that a completed decision was given."""
        seen = self.state.seen
        if self.tail and self.tail[0].id <= seen:
            before = len(self.tail)
            self.tail = [event for event in self.tail if event.id > seen]
            self.tail_bytes = self.tail_bytes * len(self.tail) // before

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        state = self.state
        return (
            RUN_BYTES
            + ACTIVITY_BYTES * len(state.activities)
            + TIMER_BYTES * len(state.timers)
            + CHILD_BYTES * len(state.children)
            + EVENT_BYTES * len(self.tail)
            + self.tail_bytes
        )


class RunCache:
    """Open runs as they are committed, up to a number of bytes; the runs that were not changed for the longest time go first."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._runs: dict[int, tuple[Run, int]] = {}
        self.size = 0
        """About how many bytes the runs take."""

    def __len__(self) -> int:
        return len(self._runs)

    def take(self, run: int) -> Run | None:
        """Return a run and remove it; None if it is not there."""
        found = self._runs.pop(run, None)
        if found is None:
            return None
        self.size -= found[1]
        return found[0]

    def put(self, runs: Iterable[Run]) -> None:
        """Add committed runs; closed ones are not kept."""
        for run in runs:
            self.take(run.row.id)
            if run.row.status.open:
                run.trim()
                size = run.size
                self._runs[run.row.id] = (run, size)
                self.size += size
        while self.size > self._limit and self._runs:
            self.take(next(iter(self._runs)))

    def tail(self, run: int, decision: int) -> Tail | None:
        """Return the events of a run after those that its last completed decision was given; None if they are not in memory.

        There may be none. ``decision`` is the job of the run's decision task: if the cache has another one, another node has
        changed the run since.
        """
        found = self._runs.get(run)
        if found is None or found[0].row.decision != decision:
            return None
        events = found[0].tail
        return Tail(found[0].row.events - len(events) + 1, events)

    def failed_builds(self, run: int) -> tuple[str, ...]:
        """Return the builds that could not make a decision of a run; none if it is not in memory."""
        found = self._runs.get(run)
        return () if found is None else found[0].row.parking.builds

    def root_of(self, run: int) -> int:
        """Return the root job of a run; the run if it is not in memory: the first run of a chain has the number of its root."""
        found = self._runs.get(run)
        return run if found is None else found[0].row.root

    def type_of(self, run: int) -> str | None:
        """Return the workflow of a run; None if it is not in memory."""
        found = self._runs.get(run)
        return None if found is None else found[0].row.type

    def peek(self, run: int) -> Run | None:
        """Return a run, which the caller must not change; None if it is not there."""
        found = self._runs.get(run)
        return None if found is None else found[0]


PAGE_BYTES: Final = 2**20
"""Bytes of events after which a page of a history ends."""
FIRST_BLOCKS: Final = 4
"""The blocks that a page reads first; their size gives the number of others."""


class Unread(NamedTuple):
    """A run that this node cannot read, because of a value of a newer version or damaged bytes.

    A transaction leaves it as it is, and serves the others; see ``storage.reads``.
    """

    row: RunRow
    fault: str


async def load(runs: Runs, stored: StoredRun) -> Run | Unread:
    """Return a run with its state, from its snapshot and the events after it."""
    row, snapshot = stored
    state = None if snapshot is None or row.unread else decode_state(snapshot.state)
    if snapshot is None or state is None:
        return folded(row, State(), await runs.blocks(row.id, 1))
    run = folded(row, state, await runs.blocks(row.id, state.last + 1))
    if isinstance(run, Run):
        run.snapshotted, run.snapshot_bytes = snapshot.history_bytes, len(snapshot.state)
    return run


def folded(row: RunRow, state: State, blocks: Sequence[bytes]) -> Run | Unread:
    """Return a run by its state at some event and the blocks after it; the first block may begin before."""
    if row.unread:
        return Unread(row, row.unread)
    first = state.last + 1
    events = decoded(blocks, first)
    if isinstance(events, str):
        return Unread(row, events)
    try:
        run = Run(row, fold(events, state))
    except Exception as error:  # noqa: BLE001 - whatever one history has that no version writes, the others are served
        return Unread(row, f"its history is not one of a run: {error!r}")
    if run.state.last != row.events:
        return Unread(row, f"its history ends with event {run.state.last}, and has to have {row.events}")
    run.append(events, sum(map(len, blocks)))
    if any(STUB in block for block in blocks):
        run.apart = max(stubs_in(events), default=0)
    run.trim()
    return run


def decoded(blocks: Iterable[bytes], first: int) -> list[Event] | str:
    """Return the events of blocks from a number on; if this version cannot read them, the reason."""
    try:
        return [event for block in blocks for event in decode_events(block) if event.id >= first]
    except (ValueError, RecursionError) as error:  # a MsgspecError is a ValueError
        return f"this version of Mainspring cannot read an event of its history: {error}"


async def events_from(runs: Runs, run: int, first: int) -> list[Event] | str:
    """Return the stored events of a run from a number on; if this version cannot read them, the reason."""
    blocks = await runs.blocks(run, first)
    events = decoded(blocks, first)
    if isinstance(events, str) or not any(STUB in block for block in blocks):
        return events
    return await whole(runs, run, events)


async def whole(runs: Runs, run: int, events: list[Event]) -> list[Event] | str:
    """Return events of a run with the payloads that are kept apart; if one is missing or damaged, the reason."""
    stubs = stubs_in(events)
    if not stubs:
        return events
    try:
        return joined(events, await runs.payloads(run, stubs.keys()))
    except StoreError as error:
        return str(error)


async def run_of(runs: Runs, key: Key) -> int:
    """Return the run that a key names, whether it is open or closed; 0 if there is none."""
    if key.run:
        return key.run if await runs.has_run(key.run, key.namespace) else 0
    if not key.job:
        return await runs.last_run(key.namespace, key.workflow_id)
    first = await runs.load(key.job, key.namespace)
    if first is not None and first.row.status is not Status.CONTINUED_AS_NEW:
        return key.job
    return await runs.last_link(key.job, key.namespace) or (0 if first is None else key.job)


# ---- queries ----


async def show_run(runs: Runs, query: ShowRun) -> Shown:
    """Return the run that a key names, with its state; without one, the waiting jobs that it may name."""
    shown = await _show(runs, await run_of(runs, query.key))
    if shown is not None and (shown.row.status.open or query.key.run):
        return shown
    unbegun = await find_unbegun(runs, query.key)
    return unbegun if shown is None or are_workflows(unbegun) else shown


async def _show(runs: Runs, run: int) -> ShownRun | None:
    stored = await runs.load(run)
    if stored is None:
        return None
    return _of(await load(runs, stored))


def _of(found: Run | Unread) -> ShownRun:
    return ShownRun(found.row, State(), found.fault) if isinstance(found, Unread) else ShownRun(found.row, found.state)


async def read_history(runs: Runs, query: ReadHistory, meter: Meter) -> Page[Event]:
    """Return a page of a run's events. It ends once it has a certain size."""
    if not await runs.has_run(query.run, query.namespace):
        return Page([])
    events: list[Event] = []
    after: int = query.after or 0
    size = 0
    step = FIRST_BLOCKS
    while len(events) < query.limit and size < PAGE_BYTES and (rows := meter.part()):
        number = min(rows, query.limit - len(events), step)
        blocks = await runs.blocks(query.run, after + 1, number + 1)
        is_last = len(blocks) <= number
        blocks = blocks[:number]
        meter.spend(number)
        size += sum(map(len, blocks))
        step = max(1, step * (PAGE_BYTES - size) // max(size, 1))
        found = decoded(blocks, after + 1)
        last = found[-1].id if found and not isinstance(found, str) else after
        if not isinstance(found, str) and any(STUB in block for block in blocks):
            found, more = _first_whole(found, PAGE_BYTES - size)
            size += more
            found = found if query.apart else await whole(runs, query.run, found)
        if isinstance(found, str):
            raise StoreError(f"the run {query.run} is set aside: {found}; {REMEDY}")
        events += found[: query.limit - len(events)]
        if is_last and (not found or events[-1].id == last):
            return Page(events)
        after = events[-1].id
    return Page(events, after)


def _first_whole(events: list[Event], most: int) -> tuple[list[Event], int]:
    """Return the first events whose payloads that are kept apart fill a page, one at least, and the bytes of these."""
    total = 0
    for number, event in enumerate(events, 1):
        stub = stub_of(event)
        total += 0 if stub is None else stub.size
        if total >= most:
            return events[:number], total
    return events, total


RUNS_AT_ONCE: Final = 25
"""Runs of a list whose states are built in one turn of the loop; each takes about 10 µs."""


class Mark(NamedTuple):
    """The run at which a part of a search ends."""

    id: int
    started_us: int


class ListedRun(NamedTuple):
    """A run that a search has found."""

    row: RunRow
    has_snapshot: bool
    """Whether a snapshot of it is stored."""


class SearchableRuns(Protocol):
    """The runs of a store at one moment, as `list_runs` reads them."""

    async def few(self, most: int) -> list[ListedRun] | None:
        """Return the matching runs, newest first, by an index that reads at most ``most`` entries; None: no index does."""

    async def part(self, before: int | None, rows: int, most: int) -> tuple[list[ListedRun], Mark | None]:
        """Return those of ``rows`` runs with ids below ``before``, newest first, that match, at most ``most``.

        The mark is the last of these ``rows`` runs, matching or not; None: there are fewer, or the part has ended with ``most``.
        """


async def list_runs(searchable: SearchableRuns, runs: Runs, query: ListRuns, meter: Meter) -> Page[ShownRun]:
    """Answer `ListRuns`: by an index if that is short, and otherwise by a scan of all runs from the newest on."""
    found = await searchable.few(meter.few)
    mark = None
    if found is not None:
        is_cut = len(found) > query.limit
    else:
        found, mark = await _scan(searchable, query, meter)
        is_cut = len(found) >= query.limit
    wanted = found[: query.limit]
    shown: list[ShownRun] = []
    sizes = Sizes(query)
    is_spent = False
    histories: dict[int, list[bytes]] = {}
    read = built = 0
    for number, (row, has_snapshot) in enumerate(wanted):
        if shown and (is_spent or meter.is_late()):  # the states of some runs are large, or take long to read
            is_cut = True
            break
        if number == read:  # the next histories, together: most runs have no snapshot
            part = _first(query, wanted[read : read + sizes.part(len(wanted))], PAGE_BYTES)
            histories = await runs.histories([one.row.id for one in part if _reads_history(query, one)])
            read += len(part)
        one: ShownRun | None
        if not _reads_state(query, row):
            one = ShownRun(row, State(), row.unread)
        else:
            one = await _show(runs, row.id) if has_snapshot else _of(folded(row, State(), histories.get(row.id, ())))
            built += 1
            if not built % RUNS_AT_ONCE:
                await meter.pause()
        if one is not None:
            shown.append(one)
            is_spent = sizes.add([one])
    roots = await runs.job_options([one.row.root for one in shown if one.row.status.open])
    shown = [one._replace(options=roots.get(one.row.root)) if one.row.status.open else one for one in shown]
    if is_cut:
        mark = Mark(shown[-1].row.id, shown[-1].row.started_us)
    return Page(shown, size=sizes.used) if mark is None else Page(shown, *mark, sizes.used)


async def _scan(searchable: SearchableRuns, query: ListRuns, meter: Meter) -> tuple[list[ListedRun], Mark | None]:
    """Return matching runs, and the place to which the search came; None if it came to the end, or found enough."""
    found: list[ListedRun] = []
    before: int | None = query.after
    mark = None
    while rows := meter.part():
        part, mark = await searchable.part(before, rows, query.limit - len(found))
        found += part
        meter.spend(rows)
        if mark is None or len(found) >= query.limit:
            return found, None
        before = mark.id
    return found, mark


def _reads_state(query: ListRuns, row: RunRow) -> bool:
    return query.closed_states or row.status.open


def _reads_history(query: ListRuns, one: ListedRun) -> bool:
    return not one.has_snapshot and _reads_state(query, one.row)


def _first(query: ListRuns, found: Sequence[ListedRun], most_bytes: int) -> Sequence[ListedRun]:
    """Return the first of some runs, one at least, whose histories, as far as they are read, have at most a number of bytes."""
    total = 0
    for number, one in enumerate(found):
        total += one.row.history_bytes if _reads_history(query, one) else 0
        if number and total > most_bytes:
            return found[:number]
    return found


if TYPE_CHECKING:
    Place = tuple[int, int]
    """A run, and the number of the first event that is needed."""

MOST_BLOCKS: Final = 32
"""The blocks of a run above which its events are left out: a history that is so long is read by pages."""
MOST_RUNS: Final = 200
"""Runs of one read."""


class ReadLatest(Query["dict[int, list[Event] | str]"], frozen=True):
    """Read the events of runs, each from a number on. The answer leaves out long runs, and the last ones if its time is up.

    For a run whose events this version cannot read, it has the reason.
    """

    places: tuple[tuple[int, int], ...]


async def read_latest(runs: Runs, query: ReadLatest, meter: Meter) -> dict[int, list[Event] | str]:
    """Answer `ReadLatest`."""
    found: dict[int, list[Event] | str] = {}
    for run, first in query.places:
        if meter.is_late():
            break
        blocks = await runs.blocks(run, first, MOST_BLOCKS + 1)
        if len(blocks) <= MOST_BLOCKS:
            events = decoded(blocks, first)
            if not isinstance(events, str) and any(STUB in block for block in blocks):
                if len(_first_whole(events, PAGE_BYTES)[0]) < len(events):
                    continue  # too many bytes for one message: the worker asks for pages
                events = await whole(runs, run, events)
            found[run] = events
    return found


class LatestEvents:
    """Reads events for callers on one thread. Requests that arrive during a read share the next one."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._waiting: list[tuple[Place, Callable[[Sequence[Event] | str], None]]] = []
        self._is_reading = False
        self._after_answers: list[Callable[[], None]] | None = None

    def ask(self, run: int, first: int, done: Callable[[Sequence[Event] | str], None]) -> None:
        """Call ``done`` later with the events of a run from a number on; with none if they are many, or the store fails.

        If this version cannot read them, it is called with the reason.
        """
        self._waiting.append(((run, first), done))
        if not self._is_reading:
            self._next()

    def _next(self) -> None:
        asked, self._waiting = self._waiting[:MOST_RUNS], self._waiting[MOST_RUNS:]
        self._is_reading = True

        def answered(found: dict[int, list[Event] | str]) -> None:
            self._is_reading = False
            if self._waiting:
                self._next()
            self._after_answers = []
            for (run, _), done in asked:
                done(found.get(run, ()))
            after_answers, self._after_answers = self._after_answers, None
            for then in after_answers:
                then()

        def failed(error: StoreError) -> None:
            del error  # the workers ask for the events themselves, and repeat it
            answered({})

        self._reads.ask(ReadLatest(tuple(place for place, _ in asked)), answered, failed)

    def after_answers(self, then: Callable[[], None]) -> None:
        """Call ``then`` once all answers of a read are delivered; at once if none is being delivered."""
        if self._after_answers is None:
            then()
        else:
            self._after_answers.append(then)
