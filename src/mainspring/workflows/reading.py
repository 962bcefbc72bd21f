"""Reads of runs, the same for all engines: by their keys, their states, and lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mainspring.errors import StoreError
from mainspring.storage.query import Page, Sizes
from mainspring.storage.set_aside import REMEDY
from mainspring.workflows.cache import Run
from mainspring.workflows.fold import fold
from mainspring.workflows.history import Event, decode_events
from mainspring.workflows.model import Status
from mainspring.workflows.state import State, decode_state
from mainspring.workflows.store import ShownRun
from mainspring.workflows.unbegun import are_workflows, find_unbegun

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.storage.query import Meter
    from mainspring.workflows.model import Key
    from mainspring.workflows.store import ListRuns, ReadHistory, RunRow, Shown, ShowRun
    from mainspring.workflows.tables import Runs, StoredRun


PAGE_BYTES: Final = 2**20
"""Bytes of events after which a page of a history ends."""
FIRST_BLOCKS: Final = 4
"""The blocks that a page reads first; their size gives the number of others."""


class Unread(NamedTuple):
    """A run that this node cannot read, because of a value of a newer version or damaged bytes.

    A transaction leaves it as it is, and serves the others; see ``storage.set_aside``.
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
    return decoded(await runs.blocks(run, first), first)


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
    found = await load(runs, stored)
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
        if isinstance(found, str):
            raise StoreError(f"the run {query.run} is set aside: {found}; {REMEDY}")
        events += found[: query.limit - len(events)]
        if is_last and (not found or events[-1].id == found[-1].id):
            return Page(events)
        after = events[-1].id
    return Page(events, after)


class Mark(NamedTuple):
    """The run at which a part of a search ends."""

    id: int
    started_us: int


class SearchableRuns(Protocol):
    """The runs of a store at one moment, as `list_runs` reads them."""

    async def few(self, most: int) -> list[int] | None:
        """Return the matching runs, newest first, by an index that reads at most ``most`` entries; None: no index does."""

    async def mark(self, before: int | None, rows: int) -> Mark | None:
        """Return the last of ``rows`` runs with ids below ``before``, matching or not, newest first; None: there are fewer."""

    async def between(self, low: int, before: int | None, most: int) -> list[int]:
        """Return matching runs with ids from ``low`` to below ``before``, newest first, at most ``most``."""


async def list_runs(searchable: SearchableRuns, runs: Runs, query: ListRuns, meter: Meter) -> Page[ShownRun]:
    """Answer `ListRuns`: by an index if that is short, and otherwise by a scan of all runs from the newest on."""
    found = await searchable.few(meter.few)
    mark = None
    if found is not None:
        is_cut = len(found) > query.limit
    else:
        found, mark = await _scan(searchable, query, meter)
        is_cut = len(found) >= query.limit
    shown: list[ShownRun] = []
    sizes = Sizes(query)
    is_spent = False
    for run in found[: query.limit]:
        if shown and (is_spent or meter.is_late()):  # the states of some runs are large, or take long to read
            is_cut = True
            break
        if (one := await _show(runs, run)) is not None:
            shown.append(one)
            is_spent = sizes.add([one])
    if is_cut:
        mark = Mark(shown[-1].row.id, shown[-1].row.started_us)
    return Page(shown, size=sizes.used) if mark is None else Page(shown, *mark, sizes.used)


async def _scan(searchable: SearchableRuns, query: ListRuns, meter: Meter) -> tuple[list[int], Mark | None]:
    """Return matching runs, and the place to which the search came; None if it came to the end, or found enough."""
    found: list[int] = []
    before: int | None = query.after
    mark = None
    while rows := meter.part():
        mark = await searchable.mark(before, rows)
        found += await searchable.between(0 if mark is None else mark.id, before, query.limit - len(found))
        meter.spend(rows)
        if mark is None or len(found) >= query.limit:
            return found, None
        before = mark.id
    return found, mark
