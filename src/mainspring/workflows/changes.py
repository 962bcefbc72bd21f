"""The runs that one transaction has read, and its changes of them.

All of a group's operations and notices about a run share one draft, so that a run has one block and one write of its row in a
transaction. The jobs that runs need are created and deleted with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.ids import TERM_SPAN
from mainspring.workflows.cache import Run
from mainspring.workflows.draft import Draft
from mainspring.workflows.history import encode_events
from mainspring.workflows.reading import Unread, events_from, folded, load
from mainspring.workflows.run_draft import RunDraft, change_of, finish, parking_mark
from mainspring.workflows.run_jobs import RunJobs
from mainspring.workflows.snapshots import outweighs
from mainspring.workflows.state import State, encode_state
from mainspring.workflows.tables import Block, Guarded, Snapshot, Writes
from mainspring.workflows.timeouts import due_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.workflows.cache import RunCache
    from mainspring.workflows.errands import Errand, ErrandsAside
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import Limits
    from mainspring.workflows.observer import RunObserver
    from mainspring.workflows.store import RunRow
    from mainspring.workflows.tables import RunTables


class RunChanges:
    """The runs of one transaction, as they are now. ``flush`` writes them."""

    def __init__(
        self,
        tables: RunTables,
        cache: RunCache,
        limits: Limits,
        observers: Sequence[RunObserver],
        errands_aside: ErrandsAside,
    ) -> None:
        self.tables = tables
        self._cache = cache
        self.limits = limits
        self._observers = observers
        self._drafts: dict[int, RunDraft] = {}
        self._closed: dict[int, RunRow | None] = {}
        """Runs that were closed before the transaction; None for one that does not exist."""
        self._unread: dict[int, Unread] = {}
        """Open runs that this node cannot read: nothing changes them."""
        self._met: dict[int, Unread] = {}
        """Runs to be named to the node after the commit: those, and those for which errands are set aside."""
        self._prefetched: dict[int, Run] = {}
        """Open runs as they are stored."""
        self._begun: dict[tuple[str, str], int] = {}
        """Runs that begin in the transaction, by namespace and workflow id."""
        self._links: dict[int, int] = {}
        """Those that continue another run, by their root jobs."""
        self.jobs = RunJobs(tables)
        self.errands: list[Errand] = []
        """Errands that the transaction has caused and not done."""
        self.errands_shared = errands_aside
        """The stored errands that are set aside, as of the last commit."""
        self.errands_aside = errands_aside
        """The same, as of this transaction."""
        self.errands_done: list[int] = []
        """The stored errands that it has done."""
        self.errands_due_us = 0
        """The time of an operation that does stored errands; 0 if there is none."""
        self.errands_from_first = False
        """Whether that operation tries those that are set aside."""
        self.errands_left = False
        """Whether errands may be stored after the transaction."""

    def handle_of(self, job_id: int) -> str:
        """Return the text of a job's handle."""
        return f"H:{self.tables.node(job_id // TERM_SPAN) or 'unknown'}:{job_id}"

    # ---- reads ----

    async def find(self, run: int, now_us: int) -> RunDraft | RunRow | Unread | None:
        """Return the draft of an open run, the row of a closed one, or None; `Unread` for one that this node cannot read."""
        found = self._drafts.get(run)
        if found is not None:
            draft = found.draft
            if now_us:
                draft.now_us = max(draft.now_us, now_us) if found.timed else now_us
                found.timed = True
            return found
        if run in self._closed:
            return self._closed[run]
        cached = self._cache.take(run)
        if cached is None:
            cold = await self._load(run)
            if not isinstance(cold, Run):
                return cold
            cached = cold
        return self._enter(cached, now_us)

    async def _load(self, run: int) -> Run | RunRow | Unread | None:
        """Return an open run that is not in memory, the row of a closed one, or None."""
        prefetched = self._prefetched.pop(run, None)
        waits = self.errands_aside.runs
        if prefetched is not None and run not in waits:
            return prefetched
        unread = self._unread.get(run)
        if unread is not None:
            return unread
        stored = await self.tables.load(run)
        if stored is None or not (stored.row.status.open or stored.row.unread):
            self._closed[run] = None if stored is None else stored.row
            return self._closed[run]
        if run in waits:  # the errands come first, in their order; they are tried again soon
            found: Run | Unread = Unread(stored.row, waits[run])
        else:
            found = await load(self.tables, stored)
            if isinstance(found, Unread):
                self._unread[run] = found
        if isinstance(found, Unread):
            self._met[run] = found
        return found

    def set_aside(self, unread: Unread) -> None:
        """Name a run to the node after the commit: it was left as it is."""
        self._met[unread.row.id] = unread

    async def prefetch(self, runs: Iterable[int]) -> None:
        """Read those of many runs together that are not in memory: a few reads instead of two for each run."""
        drafts, closed = self._drafts, self._closed
        cold = [run for run in runs if self._cache.peek(run) is None and run not in drafts and run not in closed]
        if len(cold) > 1:
            for row, blocks in await self.tables.load_short(cold):
                found = folded(row, State(), blocks)
                if isinstance(found, Run):
                    self._prefetched[row.id] = found
                else:
                    self._unread[row.id] = self._met[row.id] = found

    async def open(self, run: int, now_us: int) -> RunDraft | Unread | None:
        """Return the draft of a run that is open; None if there is none, and `Unread` if this node cannot read it."""
        found = await self.find(run, now_us)
        if isinstance(found, RunDraft):
            return found if found.is_open else None
        return found if isinstance(found, Unread) else None

    async def open_run(self, namespace: str, workflow_id: str) -> int:
        """Return the open run of a workflow id; 0 if there is none."""
        run = self._begun.get((namespace, workflow_id)) or await self.tables.open_run(namespace, workflow_id)
        found = self._drafts.get(run)
        return 0 if found is not None and not found.is_open else run

    async def has_open_run(self, namespace: str, name: str, version: str) -> bool:
        """Return whether a run of a definition is open, or was at the begin of the transaction."""
        rows = (found.run.row for found in self._drafts.values() if found.is_open)
        key = (namespace, name, version)
        return any((row.namespace, row.type, row.version) == key for row in rows) or await self.tables.has_open_run(
            *key
        )

    async def last_link(self, root: int) -> int:
        """Return the last run of a root job's chain; 0 if no run of it has continued as new."""
        return self._links.get(root) or await self.tables.last_link(root)

    async def events_after(self, found: RunDraft, seen: int) -> Sequence[Event]:
        """Return the events after a number that were there before the transaction.

        They may be older than the state of the run, so that this can fail although the run was read. A caller therefore calls
        `lacks` first: before it changes anything.
        """
        if found.earlier is not None and found.earlier[0] <= seen:
            return [event for event in found.earlier[1] if event.id > seen]
        run = found.run
        if not run.tail or run.tail[0].id > seen + 1:
            if seen >= found.guard:
                return ()
            events = await events_from(self.tables, run.row.id, seen + 1)
            assert not isinstance(events, str), f"{run.row.id}: {events}"
            return events
        return [event for event in run.tail if event.id > seen]

    async def lacks(self, found: RunDraft, seen: int) -> str:
        """Return why this node cannot read the events after a number; empty if it can."""
        run = found.run
        if seen >= found.guard or (run.tail and run.tail[0].id <= seen + 1):
            return ""
        events = await events_from(self.tables, run.row.id, seen + 1)
        if isinstance(events, str):
            self.set_aside(Unread(run.row, events))
            return events
        found.earlier = seen, events
        return ""

    # ---- changes ----

    def begin(self, row: RunRow, now_us: int) -> RunDraft:
        """Add a new run, which has no event yet."""
        self._begun[row.namespace, row.workflow_id] = row.id
        if row.id != row.root:
            self._links[row.root] = row.id
        return self._enter(Run(row, State()), now_us, fresh=True)

    def _enter(self, run: Run, now_us: int, *, fresh: bool = False) -> RunDraft:
        draft = Draft(
            run.state,
            # Some notices have no time; then it is the last one that the run's code has read.
            now_us=now_us or max(run.state.decided_us, run.row.started_us),
            next_id=self.tables.lifecycle.next_id,
            limits=self.limits,
            parking=run.row.parking,
            errands=self.errands,
            handle_of=self.handle_of,
        )
        entered = self._drafts[run.row.id] = RunDraft(run, draft, fresh=fresh, timed=now_us > 0)
        return entered

    # ---- the write ----

    def time(self) -> int:
        """Return the latest time of the changes."""
        return max((found.draft.now_us for found in self._drafts.values()), default=self.errands_due_us)

    async def flush(self) -> None:
        """Write the changes, with the jobs that they need or end. All errands are done or stored by now."""
        drafts = self._drafts.values()
        changed = [found for found in drafts if finish(found)]
        jobs, self.jobs = self.jobs, RunJobs(self.tables)
        await jobs.write(changed)
        await self._write(changed)
        self._notify([found.run for found in drafts], changed, jobs)
        self._drafts = {}
        self._prefetched = {}
        self._begun = {}
        self._links = {}

    async def _write(self, changed: Sequence[RunDraft]) -> None:
        writes = Writes([], [], [], [], [], [])
        for found in changed:
            run, events = found.run, found.events
            row = run.row
            due_before, row.due_us = row.due_us, due_us(run.state, row.parking)
            if events:
                block = encode_events(events)
                writes.blocks.append(Block(row.id, events[0].id, block))
                row.events = run.state.last
                row.history_bytes += len(block)
                run.append(events, len(block))
                self._snapshot(run, writes)
            if found.fresh:
                writes.new.append(row)
            elif not found.is_open or found.parking != parking_mark(row):
                writes.changed.append(Guarded(row, found.guard))
            elif row.due_us != due_before:
                writes.rescheduled.append(Guarded(row, found.guard))
            else:
                writes.appended.append(Guarded(row, found.guard))
        if changed:
            await self.tables.write(writes)

    @staticmethod
    def _snapshot(run: Run, writes: Writes) -> None:
        since = run.row.history_bytes - run.snapshotted
        if run.state.status or not outweighs(since, run.snapshot_bytes):
            return
        state = encode_state(run.state)
        run.snapshot_bytes = len(state)
        if outweighs(since, len(state)):
            run.snapshotted = run.row.history_bytes
            writes.snapshots.append((run.row.id, Snapshot(run.row.history_bytes, state)))

    def _notify(self, runs: list[Run], changed: Sequence[RunDraft], jobs: RunJobs) -> None:
        """Pass the changes to the cache and the node after the commit."""
        lifecycle, cache, observers = self.tables.lifecycle, self._cache, self._observers
        errands_left = self.errands_left
        met, self._met = list(self._met.values()), {}
        changes = [change_of(found) for found in changed]

        def committed() -> None:
            cache.put(runs)  # before jobs are assigned: their packets have events from the cache
            jobs.notify(lifecycle)
            for observer in observers if changes or errands_left else ():
                observer.appended(changes)
                if errands_left:
                    observer.errands_stored()
            for observer in observers if met else ():
                observer.not_read(met)

        self.tables.after_commit(committed)
