"""The runs that one transaction has read, and its changes of them.

All of a group's operations and notices about a run share one draft, so that a run has one block and one write of its row in a
transaction. The jobs that a run needs follow from its state: they are created and deleted when the changes are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from mainspring.jobs.failures import CANCEL_REASON, failure
from mainspring.jobs.model import Job, Options, StopRequest, decode_options
from mainspring.jobs.model import State as JobState
from mainspring.workflows.cache import Run
from mainspring.workflows.draft import Draft
from mainspring.workflows.ending import ended_root
from mainspring.workflows.history import encode_events
from mainspring.workflows.model import Status, decision_function
from mainspring.workflows.observer import Changed
from mainspring.workflows.parking import decision_lost, needs_decision
from mainspring.workflows.reading import events_from, folded, load
from mainspring.workflows.snapshots import outweighs
from mainspring.workflows.state import State, encode_state
from mainspring.workflows.tables import Block, Guarded, Snapshot, Writes
from mainspring.workflows.timeouts import due_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.jobs.owners import Ended
    from mainspring.jobs.store import Withdrawn
    from mainspring.workflows.cache import RunCache
    from mainspring.workflows.history import ActivityTaskScheduled, Event
    from mainspring.workflows.model import Limits
    from mainspring.workflows.observer import RunObserver
    from mainspring.workflows.store import RunRow
    from mainspring.workflows.tables import RunTables


class RunDraft:
    """A run that is open at the begin of a transaction, or begins in it, with its draft."""

    __slots__ = (
        "about",
        "completed",
        "draft",
        "ended",
        "fresh",
        "guard",
        "parked_us",
        "parking",
        "replaced",
        "run",
        "size",
    )

    def __init__(self, run: Run, draft: Draft, *, fresh: bool = False) -> None:
        self.run = run
        self.draft = draft
        self.fresh = fresh
        """Whether it begins in this transaction."""
        self.guard = run.row.events
        """The number of events before the transaction."""
        self.size = run.row.history_bytes
        """The bytes of the history before the transaction."""
        self.about = run.row.about
        self.parking = _mark(run.row)
        self.parked_us = run.row.parked_us
        """Since when it is parked, before the transaction."""
        self.ended: Ended | None = None
        """The end of the decision task's job in this transaction."""
        self.completed = False
        """Whether a completion has used the decision task's job."""
        self.replaced = False
        """Whether a completion goes on with the run: if the task's job is replaced, its worker is not asked to stop."""

    @property
    def events(self) -> list[Event]:
        """Return the events of the transaction so far."""
        return cast("list[Event]", self.draft.events)

    @property
    def is_open(self) -> bool:
        """Return whether the run is open so far."""
        return self.run.state.status == 0


def _mark(row: RunRow) -> tuple[Any, ...]:
    """Return a value that changes with the parking of a run."""
    parking = row.parking
    return parking.parked_us, parking.losses, parking.retry_us, parking.builds, parking.parked


class _Jobs(NamedTuple):
    """The jobs whose changes are passed to the node after the commit."""

    new: list[Job]
    withdrawn: list[Withdrawn]
    replaced: list[Withdrawn]
    """Those whose worker has reported the end itself."""
    ended: list[Job]


class RunChanges:
    """The runs of one transaction, as they are now. ``flush`` writes them."""

    def __init__(self, tables: RunTables, cache: RunCache, limits: Limits, observers: Sequence[RunObserver]) -> None:
        self.tables = tables
        self._cache = cache
        self.limits = limits
        self._observers = observers
        self._drafts: dict[int, RunDraft] = {}
        self._closed: dict[int, RunRow | None] = {}
        """Runs that were closed before the transaction; None for one that does not exist."""
        self._prefetched: dict[int, Run] = {}
        """Open runs as they are stored."""
        self._begun: dict[tuple[str, str], int] = {}
        """Runs that begin in the transaction, by namespace and workflow id."""
        self._new_roots: list[Job] = []
        self._taken: list[Job] = []
        self._rejected: list[Job] = []
        self._stopped: set[int] = set()

    # ---- reads ----

    async def find(self, run: int, now_us: int) -> RunDraft | RunRow | None:
        """Return the draft of an open run, the row of a closed one, or None."""
        found = self._drafts.get(run)
        if found is not None:
            draft = found.draft
            draft.now_us = max(draft.now_us, now_us)
            return found
        if run in self._closed:
            return self._closed[run]
        cached = self._cache.take(run) or self._prefetched.pop(run, None)
        if cached is None:
            stored = await self.tables.load(run)
            if stored is None or not stored.row.status.open:
                self._closed[run] = None if stored is None else stored.row
                return self._closed[run]
            cached = await load(self.tables, stored)
        return self._enter(cached, now_us)

    async def prefetch(self, runs: Iterable[int]) -> None:
        """Read those of many runs together that are not in memory: a few reads instead of two for each run."""
        drafts, closed = self._drafts, self._closed
        cold = [run for run in runs if self._cache.peek(run) is None and run not in drafts and run not in closed]
        if len(cold) > 1:
            for row, blocks in await self.tables.load_short(cold):
                self._prefetched[row.id] = folded(row, State(), blocks)

    async def open(self, run: int, now_us: int) -> RunDraft | None:
        """Return the draft of a run that is open; None if there is none."""
        found = await self.find(run, now_us)
        return found if isinstance(found, RunDraft) and found.is_open else None

    async def open_run(self, namespace: str, workflow_id: str) -> int:
        """Return the open run of a workflow id; 0 if there is none."""
        run = self._begun.get((namespace, workflow_id)) or await self.tables.open_run(namespace, workflow_id)
        found = self._drafts.get(run)
        return 0 if found is not None and not found.is_open else run

    async def events_after(self, found: RunDraft, seen: int) -> Sequence[Event]:
        """Return the events after a number that were there before the transaction."""
        run = found.run
        if not run.tail or run.tail[0].id > seen + 1:
            if seen >= found.guard:
                return ()
            return await events_from(self.tables, run.row.id, seen + 1)
        return [event for event in run.tail if event.id > seen]

    # ---- changes ----

    def begin(self, row: RunRow, now_us: int) -> RunDraft:
        """Add a new run, which has no event yet."""
        self._begun[row.namespace, row.workflow_id] = row.id
        return self._enter(Run(row, State()), now_us, fresh=True)

    def add_roots(self, jobs: Sequence[Job]) -> None:
        """Add new root jobs."""
        self._new_roots += jobs

    def take(self, jobs: Sequence[Job]) -> None:
        """Add jobs that this transaction has turned into root jobs, as they were before."""
        self._taken += jobs

    async def stop(self, jobs: Sequence[int], now_us: int) -> None:
        """Store requests to cancel held jobs, and ask their workers to stop after the commit."""
        request = StopRequest(now_us, failure("Cancelled", CANCEL_REASON))
        self._stopped |= await self.tables.request_stop([(job, None) for job in jobs], request)

    def reject(self, job: Job) -> None:
        """End a root job whose run does not begin; see ``RunTables.reject_roots``."""
        self._rejected.append(job)

    def _enter(self, run: Run, now_us: int, *, fresh: bool = False) -> RunDraft:
        draft = Draft(
            run.state,
            # Some notices have no time; then it is the last one that the run's code has read.
            now_us=max(now_us, run.state.decided_us, run.row.started_us),
            next_id=self.tables.lifecycle.next_id,
            limits=self.limits,
            parking=run.row.parking,
        )
        entered = self._drafts[run.row.id] = RunDraft(run, draft, fresh=fresh)
        return entered

    # ---- the write ----

    async def flush(self) -> None:
        """Write the changes, with the jobs that they need or end."""
        drafts = self._drafts.values()
        jobs = _Jobs([], [], [], [])
        new_roots, self._new_roots = self._new_roots, []
        taken, self._taken = self._taken, []
        rejected, self._rejected = self._rejected, []
        stopped, self._stopped = self._stopped, set()
        changed = [found for found in drafts if _finish(found)]
        await self._end(changed, rejected, jobs)
        await self._withdraw(changed, jobs)
        await self._submit(changed, jobs)
        await self._write(changed)
        self._notify([found.run for found in drafts], changed, (new_roots, taken), jobs)
        if stopped:
            self.tables.after_commit(lambda: self.tables.lifecycle.stop(stopped, CANCEL_REASON))
        self._drafts = {}
        self._prefetched = {}
        self._begun = {}

    async def _end(self, changed: Sequence[RunDraft], rejected: Sequence[Job], jobs: _Jobs) -> None:
        """End the root jobs of closed runs."""
        closed = [found for found in changed if not found.is_open]
        roots = [job for found in closed if (job := ended_root(found.run.row, found.draft.events[-1])) is not None]
        if roots:
            jobs.ended.extend(await self.tables.end_roots(roots))
        if rejected:
            jobs.ended.extend(await self.tables.reject_roots(rejected))

    async def _withdraw(self, changed: Sequence[RunDraft], jobs: _Jobs) -> None:
        """Delete the jobs that runs do not need any more."""
        ids: list[int] = []
        replaced: list[int] = []
        for found in changed:
            ids += found.draft.withdrawn
            row, state = found.run.row, found.run.state
            if row.decision and not (state.scheduled == found.run.task and needs_decision(state, row.parking)):
                (replaced if found.replaced else ids).append(row.decision)
                row.decision = 0
        if ids:
            jobs.withdrawn.extend(await self.tables.withdraw(ids))
        if replaced:
            jobs.replaced.extend(await self.tables.withdraw(replaced))

    async def _submit(self, changed: Sequence[RunDraft], jobs: _Jobs) -> None:
        """Create the jobs of new activities and decision tasks."""
        lifecycle, term = self.tables.lifecycle, self.tables.term
        new = jobs.new
        for found in changed:
            run, draft = found.run, found.draft
            row, state = run.row, run.state
            for event in draft.submitted.values():
                new.append(_activity(row, event, draft.now_us))
            if not row.decision and needs_decision(state, row.parking):
                new.append(_decision(lifecycle.next_id(), run, draft.now_us))
                row.decision = new[-1].id
                run.task = state.scheduled
        if new:
            self.tables.after_rollback(lambda: lifecycle.dropped(reserved))
            reserved: list[Job] = []
            for job in new:
                reserved.append(job)
                allowed = lifecycle.reserve(job, term)
                assert allowed, "jobs of runs have no unique"
            joined = await self.tables.submit(new)
            assert not joined, "jobs of runs have no unique"

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
            elif not found.is_open or found.parking != _mark(row):
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

    def _notify(
        self, runs: list[Run], changed: Sequence[RunDraft], roots: tuple[list[Job], list[Job]], jobs: _Jobs
    ) -> None:
        """Pass the changes to the cache and the node after the commit."""
        lifecycle, cache, observers = self.tables.lifecycle, self._cache, self._observers
        changes = [_changed(found) for found in changed]

        def committed() -> None:
            cache.put(runs)  # before jobs are assigned: their packets have events from the cache
            if any(roots):
                lifecycle.begun(*roots)
            if jobs.replaced:
                lifecycle.withdrawn(jobs.replaced, stop=False)
            if jobs.withdrawn:
                lifecycle.withdrawn(jobs.withdrawn)
            if jobs.new:
                lifecycle.stored(jobs.new)
            if jobs.ended:
                lifecycle.ended(jobs.ended)
            if changes:
                for observer in observers:
                    observer.appended(changes)

        self.tables.after_commit(committed)


def _finish(found: RunDraft) -> bool:
    """Complete the row of a run as far as its state gives it; return whether the run has changed."""
    run, draft = found.run, found.draft
    row, state = run.row, run.state
    if found.ended is not None:
        row.decision = 0
        if not found.completed:
            decision_lost(draft, found.ended)
    if state.status and row.status.open:
        row.status = Status(state.status)
        row.closed_us = state.closed_us
    return bool(draft.events) or found.ended is not None or found.about != row.about or found.parking != _mark(row)


def _changed(found: RunDraft) -> Changed:
    row = found.run.row
    return Changed(
        row.id,
        row.root,
        row.namespace,
        row.type,
        row.version,
        row.status,
        row.events,
        row.history_bytes,
        row.due_us,
        row.parked_us,
        row.decision,
        row.events - found.guard,
        row.history_bytes - found.size,
        row.parked if row.parked_us != found.parked_us else None,
        found.parked_us > 0,
    )


# ---- jobs ----


def _decision(job_id: int, run: Run, now_us: int) -> Job:
    row, state = run.row, run.state
    return Job(
        job_id,
        decision_function(row.namespace, row.type, row.version),
        b"",
        priority=state.task_priority,
        state=int(JobState.PENDING),
        created_us=now_us,
        options=Options(run=(row.id, row.slot), ref=state.scheduled, forget=True),
        namespace=row.namespace,
    )


def _activity(row: RunRow, event: ActivityTaskScheduled, now_us: int) -> Job:
    options = decode_options(event.options) if event.options else _NO_OPTIONS
    return Job(
        event.job,
        event.function,
        event.input,
        priority=event.task_priority,
        state=int(JobState.PENDING),
        created_us=now_us,
        options=msgspec.structs.replace(options, run=(row.id, row.slot), ref=event.id, forget=True),
        input_size=len(event.input),
        namespace=row.namespace,
        key=event.key,
    )


_NO_OPTIONS = Options()
