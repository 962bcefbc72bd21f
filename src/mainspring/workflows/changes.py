"""The runs that one transaction has read, and its changes of them.

All of a group's operations and notices about a run share one draft (`RunDraft`: its row and state, and what the transaction began
with), so that a run has one block and one write of its row in a transaction.

The jobs that runs need are created, ended and deleted with it: a root job ends with its run; an open activity has a job, and
so has a scheduled decision task.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring import namespaces
from mainspring.ids import TERM_SPAN
from mainspring.jobs.lateness import timed
from mainspring.jobs.model import CANCEL_REASON, Job, Options, StopRequest, decode_options, failure
from mainspring.jobs.model import State as JobState
from mainspring.streams.model import NewItems, items_of_run
from mainspring.streams.model import save as append_items
from mainspring.values.model import NewValue, save
from mainspring.workflows import tables
from mainspring.workflows.activities import activity_ended
from mainspring.workflows.draft import Draft, decision_lost, needs_decision
from mainspring.workflows.held_activities import hold, release
from mainspring.workflows.history import encode_events
from mainspring.workflows.model import State, Status, decision_function, depth_of, due_us, encode_state
from mainspring.workflows.observers import Changed, ended_root
from mainspring.workflows.pausing import HELD_US, hands_out, note_held
from mainspring.workflows.payloads import may_split, split
from mainspring.workflows.reading import Run, Unread, events_from, folded, load, whole
from mainspring.workflows.run_events import TYPES, events_of
from mainspring.workflows.run_holds import asks_of
from mainspring.workflows.tables import Block, Guarded, Snapshot, Writes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.jobs.owners import AttemptEnded, Ended
    from mainspring.jobs.run_places import Filled
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.jobs.store import Rescheduled, Withdrawn
    from mainspring.workflows import history
    from mainspring.workflows.cross_run import Errand, ErrandsAside
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import Limits
    from mainspring.workflows.observers import RunObserver
    from mainspring.workflows.reading import RunCache
    from mainspring.workflows.store import RunRow
    from mainspring.workflows.tables import RunTables


class RunDraft:
    """A run that is open at the begin of a transaction, or begins in it, with its draft."""

    __slots__ = (
        "about",
        "completed",
        "draft",
        "earlier",
        "ended",
        "fresh",
        "guard",
        "parked_us",
        "parking",
        "replaced",
        "run",
        "size",
        "timed",
        "touched",
    )

    def __init__(self, run: Run, draft: Draft, *, fresh: bool = False, timed: bool = True) -> None:
        self.run = run
        self.draft = draft
        self.fresh = fresh
        """Whether it begins in this transaction."""
        self.timed = timed
        """Whether the node has given a time for the changes; otherwise the draft has that of the run's last decision."""
        self.guard = run.row.events
        """The number of events before the transaction."""
        self.size = run.row.history_bytes
        """The bytes of the history before the transaction."""
        self.about = run.row.about
        self.parking = parking_mark(run.row)
        self.parked_us = run.row.parked_us
        """Since when it is parked, before the transaction."""
        self.earlier: tuple[int, Sequence[Event]] | None = None
        """The events after a number that the store had before the transaction, if they were read."""
        self.ended: Ended | None = None
        """The end of the decision task's job in this transaction."""
        self.completed = False
        """Whether a completion has used the decision task's job."""
        self.touched = False
        """Whether the jobs of the run, which is paused, have to be looked at."""
        self.replaced = False
        """Whether a completion goes on with the run: if the task's job is replaced, its worker is not asked to stop."""

    @property
    def events(self) -> list[Event]:
        """Return the events of the transaction so far."""
        return self.draft.events

    @property
    def is_open(self) -> bool:
        """Return whether the run is open so far."""
        return self.run.state.status == 0

    def record_end(self, ended: Ended) -> None:
        """Record the end of a job of the run, which is open: that of an activity, or note that of its decision task."""
        if ended.id == self.run.row.decision:
            self.ended = ended
        elif ended.options is not None:
            activity_ended(self.draft, ended.options.ref, ended)

    def attempt_ended(self, notice: AttemptEnded) -> None:
        """Note that an attempt of a job of the run has ended, and the job has not: it waits, and a pause holds it."""
        is_decision = notice.id == self.run.row.decision
        if is_decision:
            decision_lost(self.draft, notice)
        if self.draft.parking.pause is not None:
            self.touched = True
            if not is_decision and notice.options is not None:
                self.draft.to_hold.add(notice.options.ref)


def _handle_of(tables: RunTables, job_id: int) -> str:
    return f"H:{tables.node(job_id // TERM_SPAN) or 'unknown'}:{job_id}"


def parking_mark(row: RunRow) -> tuple[Any, ...]:
    """Return a value that changes with the parking or pause of a run."""
    parking = row.parking
    return parking.parked_us, parking.losses, parking.retry_us, parking.builds, parking.parked, parking.pause


def finish(found: RunDraft) -> bool:
    """Complete the row of a run as far as its state gives it; return whether the run has changed."""
    run, draft = found.run, found.draft
    row, state = run.row, run.state
    if found.ended is not None:
        row.decision = 0
        if not found.completed:
            decision_lost(draft, found.ended)
    if state.status and row.status.open:
        row.status = Status(state.status)
        # Not the time of the event, which may lie ahead: the retention counts from it.
        row.closed_us = min(state.closed_us, draft.now_us)
    return (
        bool(draft.events)
        or found.ended is not None
        or found.about != row.about
        or found.parking != parking_mark(row)
        or found.touched
    )


def change_of(found: RunDraft) -> Changed:
    """Return the notice about a run for the observers."""
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
        row.about if row.about != found.about else b"",
    )


BLOCK_EVENTS: Final = 500
"""Most events of one block of a new run: a fork begins with thousands, and readers take whole blocks."""


class RunJobs:
    """The jobs whose changes are written with those of their runs, and passed to the node after the commit."""

    def __init__(self, tables: RunTables) -> None:
        self._tables = tables
        self._new_roots: list[Job] = []
        self._waiting: list[Job] = []
        self._filled: list[tuple[bytes, Sequence[bytes], Filled]] = []
        self._taken: list[Job] = []
        self._rejected: list[Job] = []
        self._stopped: set[int] = set()
        self._early: set[int] = set()
        """Closed runs whose root jobs have ended before the write."""
        self._new: list[Job] = []
        self._rescheduled: list[Rescheduled] = []
        self._ended: list[Job] = []
        self._withdrawn: list[Withdrawn] = []
        self._replaced: list[Withdrawn] = []
        """Deleted jobs whose workers have reported the end themselves."""

    def add_roots(self, jobs: Sequence[Job]) -> None:
        """Add new root jobs."""
        self._new_roots += jobs

    def add_waiting(self, jobs: Sequence[Job]) -> None:
        """Add new jobs whose runs wait for places; this transaction may take them."""
        self._waiting += jobs

    def fill_again(self, function: bytes, keys: Sequence[bytes], filled: Filled) -> None:
        """Let the node look at the places of a workflow again after the commit, as far as jobs with these keys wait."""
        self._filled.append((function, keys, filled))

    def take(self, jobs: Sequence[Job]) -> None:
        """Add jobs that this transaction has turned into root jobs, as they were before."""
        self._taken += jobs

    async def stop(self, jobs: Sequence[int], now_us: int) -> None:
        """Store requests to cancel held jobs, and ask their workers to stop after the commit."""
        request = StopRequest(now_us, failure("Cancelled", CANCEL_REASON))
        self._stopped |= await self._tables.request_stop([(job, None) for job in jobs], request)

    def reject(self, job: Job) -> None:
        """End a root job whose run does not begin; see ``RunTables.reject_roots``."""
        self._rejected.append(job)

    async def end_root(self, found: RunDraft) -> None:
        """End the root job of a closed run at once, so that another job may have its unique."""
        job = ended_root(found.run.row, found.draft.events[-1])
        if job is not None:
            self._early.add(found.run.row.id)
            self._ended += await self._tables.end_roots([job])

    # ---- the write ----

    async def write(self, changed: Sequence[RunDraft]) -> None:
        """Write the jobs that changed runs need or end."""
        await self._end(changed)
        await self._withdraw(changed)
        await self._hold(changed)
        await self._submit(changed)

    async def _end(self, changed: Sequence[RunDraft]) -> None:
        """End the root jobs of closed runs."""
        closed = [found for found in changed if not found.is_open and found.run.row.id not in self._early]
        roots = [job for found in closed if (job := ended_root(found.run.row, found.draft.events[-1])) is not None]
        if roots:
            self._ended += await self._tables.end_roots(roots)
        if self._rejected:
            self._ended += await self._tables.reject_roots(self._rejected)

    async def _withdraw(self, changed: Sequence[RunDraft]) -> None:
        """Delete the jobs that runs do not need any more."""
        ids: list[int] = []
        replaced: list[int] = []
        for found in changed:
            ids += found.draft.withdrawn
            row, state = found.run.row, found.run.state
            if row.decision and not (state.scheduled == found.run.task and needs_decision(state, row.parking)):
                (replaced if found.replaced else ids).append(row.decision)
                row.decision = 0
            elif row.decision and not hands_out(row.parking) and await self._tables.waiting_job(row.decision):
                ids.append(row.decision)
                row.decision = 0
        if ids:
            self._withdrawn += await self._tables.withdraw(ids)
        if replaced:
            self._replaced += await self._tables.withdraw(replaced)

    async def _hold(self, changed: Sequence[RunDraft]) -> None:
        """Hold the waiting activities of paused runs, and let those of resumed ones go on."""
        for found in changed:
            draft, state = found.draft, found.run.state
            if draft.to_release:
                held, draft.to_release = draft.to_release, {}
                self._rescheduled += await release(self._tables, state, held, draft.now_us)
            if draft.to_hold and draft.parking.pause is not None:
                wanted = draft.to_hold - {event.id for event in draft.submitted.values()}
                self._rescheduled += await hold(self._tables, state, draft.parking, wanted)

    async def _submit(self, changed: Sequence[RunDraft]) -> None:
        """Create the jobs of new activities and decision tasks."""
        lifecycle, term = self._tables.lifecycle, self._tables.term
        new = self._new
        for found in changed:
            run, draft = found.run, found.draft
            row, state = run.row, run.state
            for event in draft.submitted.values():
                job = _activity(row, event, draft.now_us, depth_of(state, draft.now_us))
                if not hands_out(row.parking) and not event.abandoned:
                    job.state, job.due_us = int(JobState.SCHEDULED), HELD_US
                    note_held(row.parking, {event.id: 0})
                new.append(job)
            if not row.decision and needs_decision(state, row.parking) and hands_out(row.parking):
                new.append(_decision(lifecycle.next_id(), run, draft.now_us))
                row.decision = new[-1].id
                run.task = state.scheduled
        if new:
            self._tables.after_rollback(lambda: lifecycle.dropped(reserved))
            reserved: list[Job] = []
            for job in new:
                reserved.append(job)
                allowed = lifecycle.reserve(job, term)
                assert allowed, "jobs of runs have no unique"
            joined = await self._tables.submit(new)
            assert not joined, "jobs of runs have no unique"

    # ---- after the commit ----

    def notify(self, lifecycle: JobLifecycle) -> None:
        """Pass the changes to the node."""
        if self._waiting:
            lifecycle.waits(self._waiting, self._filled)
        if self._new_roots or self._taken:
            lifecycle.begun(self._new_roots, self._taken)
        if self._replaced:
            lifecycle.withdrawn(self._replaced, stop=False)
        if self._withdrawn:
            lifecycle.withdrawn(self._withdrawn)
        if self._rescheduled:
            lifecycle.rescheduled(self._rescheduled)
        if self._new:
            lifecycle.stored(self._new)
        if self._ended:
            lifecycle.ended(self._ended)
        if self._stopped:
            lifecycle.stop(self._stopped, CANCEL_REASON)


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
    )


def _activity(row: RunRow, event: history.ActivityTaskScheduled, now_us: int, depth: int) -> Job:
    options = decode_options(event.options) if event.options else _NO_OPTIONS
    if depth:
        options = msgspec.structs.replace(options, depth=depth)
    return Job(
        event.job,
        namespaces.key(row.namespace, event.function),
        event.input,
        priority=event.task_priority,
        state=int(JobState.PENDING),
        created_us=now_us,
        options=msgspec.structs.replace(timed(options, now_us), run=(row.id, row.slot), ref=event.id, forget=True),
        input_size=len(event.input),
        key=event.key,
    )


_NO_OPTIONS = Options()


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
        self.errands_elsewhere = False
        """Whether another node does errands."""
        self._asks = False
        """Whether the transaction asks for slots of resources."""
        self._values: list[NewValue] = []
        self._items: list[NewItems] = []

    def publish(self, found: RunDraft, values: Sequence[tuple[str, bytes]]) -> None:
        """Store values that the code of a run has published; they belong to the root job of its chain."""
        root, attempt, at_us = found.run.row.root, found.run.state.attempt, found.draft.now_us
        self._values += [NewValue(root, name, attempt, at_us, value) for name, value in values]

    def stream(self, found: RunDraft, streams: Sequence[tuple[str, Sequence[bytes]]]) -> None:
        """Store items that the code of a run has written to streams; they belong to the root job of its chain."""
        root, attempt, at_us = found.run.row.root, found.run.state.attempt, found.draft.now_us
        self._items += [items_of_run(root, name, attempt, at_us, items) for name, items in streams]

    def handle_of(self, job_id: int) -> str:
        """Return the text of a job's handle."""
        return _handle_of(self.tables, job_id)

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
        await self.tables.hold((run,))
        cached = self._cache.take(run)
        if cached is None or not self.tables.is_current(cached.row):
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

    def leave_errands(self) -> None:
        """Note that another node does errands at this time."""
        self.errands_elsewhere = True

    def set_aside(self, unread: Unread) -> None:
        """Name a run to the node after the commit: it was left as it is."""
        self._met[unread.row.id] = unread

    async def prefetch(self, runs: Iterable[int]) -> None:
        """Read those of many runs together that are not in memory: a few reads instead of two for each run."""
        drafts, closed = self._drafts, self._closed
        cold = [run for run in runs if not self._is_cached(run) and run not in drafts and run not in closed]
        if len(cold) > 1:
            await self.tables.hold(cold)
            for row, blocks in await self.tables.load_short(cold):
                found = folded(row, State(), blocks)
                if isinstance(found, Run):
                    self._prefetched[row.id] = found
                else:
                    self._unread[row.id] = self._met[row.id] = found

    def _is_cached(self, run: int) -> bool:
        found = self._cache.peek(run)
        return found is not None and self.tables.is_current(found.row)

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

    async def free(self, namespace: str, workflow_id: str) -> None:
        """End the root job of a run that this transaction has closed, so that another job may have its unique at once."""
        for found in self._drafts.values():
            row = found.run.row
            if not found.is_open and (row.namespace, row.workflow_id) == (namespace, workflow_id):
                await self.jobs.end_root(found)

    async def has_open_run(self, namespace: str, name: str, version: str) -> bool:
        """Return whether a run of a definition is open, or was at the begin of the transaction."""
        rows = (found.run.row for found in self._drafts.values() if found.is_open)
        key = (namespace, name, version)
        return any((row.namespace, row.type, row.version) == key for row in rows) or await self.tables.has_open_run(
            *key
        )

    async def count_open(self, namespace: str, name: str) -> int:
        """Return the number of open runs of a workflow, in all versions."""
        number = await self.tables.count_open(namespace, name)
        for found in self._drafts.values():
            row = found.run.row
            if (row.namespace, row.type) == (namespace, name):
                number += found.is_open - (not found.fresh)
        return number

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
        else:
            events = await self._tail_after(run, seen)
        assert not isinstance(events, str), f"{run.row.id}: {events}"
        return events

    async def _tail_after(self, run: Run, seen: int) -> list[Event] | str:
        """Return the last events of a run, which are in memory, with all of their payloads; or why these cannot be read."""
        events = [event for event in run.tail if event.id > seen]
        return await whole(self.tables, run.row.id, events) if run.apart > seen else events

    async def lacks(self, found: RunDraft, seen: int) -> str:
        """Return why this node cannot read the events after a number; empty if it can."""
        run = found.run
        if seen >= found.guard:
            return ""
        if not run.tail or run.tail[0].id > seen + 1:
            events = await events_from(self.tables, run.row.id, seen + 1)
        elif run.apart > seen:
            events = await self._tail_after(run, seen)
        else:
            return ""
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
            handle_of=partial(_handle_of, self.tables),  # a method would refer to the drafts, and make a cycle
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
        if (asks := asks_of(found.draft for found in changed)) is not None:
            self.tables.ask_holds(asks)
            self._asks = True
        jobs, self.jobs = self.jobs, RunJobs(self.tables)
        await jobs.write(changed)
        await self._write(changed)
        self._notify([found.run for found in drafts], changed, jobs)
        self._drafts = {}
        self._prefetched = {}
        self._begun = {}
        self._links = {}

    async def _write(self, changed: Sequence[RunDraft]) -> None:
        writes = Writes([], [], [], [], [], [], [])
        for found in changed:
            run, events = found.run, found.events
            row = run.row
            due_before, row.due_us = row.due_us, due_us(run.state, row.parking)
            if events:
                size, most = 0, BLOCK_EVENTS if found.fresh else len(events)
                kept: list[Event] = []
                for first in range(0, len(events), most):
                    part = events[first : first + most]
                    block = encode_events(part)
                    if may_split(block):
                        stubbed, apart = split(row.id, part)
                        if apart and await self.tables.admits_payloads():
                            part, block = stubbed, encode_events(stubbed)
                            writes.payloads.extend(apart)
                            run.apart = apart[-1].event
                    writes.blocks.append(Block(row.id, part[0].id, block))
                    size += len(block)
                    kept += part
                row.events = run.state.last
                row.history_bytes += size
                run.append(kept, size)
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
        if self._values:
            values, self._values = self._values, []
            await save(self.tables.values, values)
        if self._items:
            items, self._items = self._items, []
            await append_items(self.tables.streams, items)
        recorded = self.tables.events
        if not TYPES.isdisjoint(recorded.interests.types):
            for found in changed:
                run = found.run
                for event in events_of(run.row, run.state, found.events, is_new=found.fresh, parked_us=found.parked_us):
                    recorded.add(event)

    @staticmethod
    def _snapshot(run: Run, writes: Writes) -> None:
        since = run.row.history_bytes - run.snapshotted
        if run.state.status or since < tables.MIN_BYTES or not tables.outweighs(since, run.snapshot_bytes):
            return
        state = encode_state(run.state)
        run.snapshot_bytes = len(state)
        if tables.outweighs(since, len(state)):
            run.snapshotted = run.row.history_bytes
            writes.snapshots.append((run.row.id, Snapshot(run.row.history_bytes, state)))

    def _notify(self, runs: list[Run], changed: Sequence[RunDraft], jobs: RunJobs) -> None:
        """Pass the changes to the cache and the node after the commit."""
        lifecycle, cache, observers = self.tables.lifecycle, self._cache, self._observers
        errands_left, asks = self.errands_left, self._asks
        met, self._met = list(self._met.values()), {}
        changes = [change_of(found) for found in changed]

        def committed() -> None:
            cache.put(runs)  # before jobs are assigned: their packets have events from the cache
            jobs.notify(lifecycle)
            for observer in observers if changes or errands_left else ():
                observer.appended(changes)
                if errands_left:
                    observer.errands_stored()
                if asks:
                    observer.holds_asked()
            for observer in observers if met else ():
                observer.not_read(met)

        self.tables.after_commit(committed)
