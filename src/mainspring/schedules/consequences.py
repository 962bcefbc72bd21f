"""The consequences of an end: children start and waiting rows follow, in the transaction of the row that ended.

If a skipped fire time runs after all, the descendants that were skipped because of it are undecided again.

The schedules that one transaction has read, and its changes of them.

Nothing is read or written twice: a ``ScheduleChanges`` belongs to one transaction, which writes it at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from mainspring.event_log import types
from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import LateScheduleFields, ScheduleFields
from mainspring.jobs.model import Job, Options, State, brief, failure
from mainspring.jobs.rules import duration_us
from mainspring.namespaces import name_of, name_text, split_text
from mainspring.schedules import rules, triggers
from mainspring.schedules.model import Cause, Fire, FireState, Overlap, Reason
from mainspring.schedules.parents import Join
from mainspring.schedules.reconcile import Stored, fault_of
from mainspring.schedules.store import Writes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mainspring.jobs.owners import Ended
    from mainspring.schedules.model import Schedule
    from mainspring.schedules.rules import Step
    from mainspring.schedules.store import Key, ScheduleTables

REPLACED = "replaced by a newer run of its schedule"


class _Start(NamedTuple):
    """A row that needs a job."""

    schedule: Schedule
    now_us: int


class ScheduleChanges:
    """The schedules, rows and joins of one transaction, as they are now. ``flush`` ends it."""

    def __init__(self, tables: ScheduleTables) -> None:
        self.tables = tables
        self.schedules: dict[str, Stored | None] = {}
        """Schedules that were read, by name; None for one that does not exist or is set aside."""
        self.set_aside: dict[str, tuple[Stored, str]] = {}
        """Those among them that cannot be decided here, with their faults: nothing changes them but a request that names them."""
        self.fires: dict[str, dict[int, Fire | None]] = {}
        """Rows that were read, by schedule and fire time; None for one that does not exist."""
        self._complete: set[str] = set()
        """Schedules whose unfinished rows have all been read."""
        self.joins: dict[Key, Join] = {}
        self._saved: dict[str, None] = {}
        self._before: dict[str, Stored | None] = {}
        """The schedules that have changed, as they were read."""
        self.reported: set[str] = set()
        """Schedules whose lateness has been reported in this transaction."""
        self._put_keys: dict[Key, None] = {}
        self._states: dict[Key, FireState | None] = {}
        """The states of these rows before the transaction; None for a new one."""
        self._new: set[Key] = set()
        self._removed: set[Key] = set()
        self._joined: dict[Key, None] = {}
        self._starts: dict[Key, _Start] = {}
        self._stops: dict[Key, None] = {}
        self.respecified = False
        """A specification is new, has changed, or is gone."""

    # ---- reads ----

    async def read_schedules(self, names: Collection[str]) -> None:
        """Read schedules that were not read before; engines lock them."""
        missing = sorted({name for name in names if name not in self.schedules})
        if missing:
            found = await self.tables.schedules(missing)
            for name in missing:
                stored = found.get(name)
                if stored is not None and (fault := fault_of(stored)):
                    self.set_aside[name], stored = (stored, fault), None
                self.schedules[name] = stored

    async def read_schedule(self, name: str) -> Stored | None:
        """Return a schedule, read if necessary."""
        await self.read_schedules({name})
        return self.schedules[name]

    async def read_unfinished(self, names: Collection[str]) -> None:
        """Read all unfinished rows of schedules."""
        missing = sorted(set(names) - self._complete)
        if missing:
            # This locks the schedules: each transaction that adds or starts waiting rows reads them too.
            await self.read_schedules(missing)
            for row in await self.tables.unfinished(missing):
                self.cache(row)
            self._complete.update(missing)

    async def read_unfinished_of(self, stored: Stored) -> None:
        """Read the unfinished rows of a schedule if its overlap rule needs them."""
        if stored.schedule.overlap is not Overlap.ALLOW:
            await self.read_unfinished({stored.schedule.name})

    async def read_fires(self, keys: Iterable[Key]) -> None:
        """Read rows that were not read before."""
        missing = sorted({(name, at) for name, at in keys if at not in self.fires.get(name, ())})
        if missing:
            found = await self.tables.fires(missing)
            for name, at in missing:
                self.fires.setdefault(name, {})[at] = found.get((name, at))

    async def row(self, name: str, fire_us: int) -> Fire | None:
        """Return a row, read if necessary; None if it does not exist."""
        await self.read_fires([(name, fire_us)])
        return self.fires[name][fire_us]

    async def read_joins(self, keys: Iterable[Key]) -> None:
        """Read joins that were not read before."""
        missing = sorted({key for key in keys if key not in self.joins})
        if missing:
            self.joins |= await self.tables.joins(missing)

    def cache(self, row: Fire) -> None:
        """Add a row that was read, unless this transaction has changed it."""
        self.fires.setdefault(row.schedule, {}).setdefault(row.fire_us, row)

    def live(self, name: str) -> list[Fire]:
        """Return the runs of a schedule that are under way, among the rows that were read."""
        return [row for row in self.fires.get(name, {}).values() if row is not None and row.live]

    def waiting(self, name: str) -> list[Fire]:
        """Return the waiting rows of a schedule, among the rows that were read, the oldest first."""
        rows = [row for row in self.fires.get(name, {}).values() if row is not None and row.state is FireState.WAITING]
        return sorted(rows, key=lambda row: row.fire_us)

    def now(self, row: Fire) -> Fire:
        """Return the current version of a row."""
        return self.fires[row.schedule][row.fire_us] or row

    # ---- changes ----

    def put(self, row: Fire) -> None:
        """Add or change a row."""
        key, rows = (row.schedule, row.fire_us), self.fires.setdefault(row.schedule, {})
        before = rows.get(row.fire_us)
        self._states.setdefault(key, None if before is None else before.state)
        if before is None:
            self._new.add(key)
        rows[row.fire_us] = row
        self._put_keys[key] = None

    def remove_row(self, row: Fire) -> None:
        """Remove a row that was read: its fire time is undecided again."""
        key = row.schedule, row.fire_us
        self.fires[row.schedule][row.fire_us] = None
        if key in self._new:
            self._new.remove(key)  # the store does not have it yet
        else:
            self._removed.add(key)

    def start(self, schedule: Schedule, row: Fire, now_us: int) -> None:
        """Give a row, which has been put, a job of its own, or one that it joins."""
        self._starts[row.schedule, row.fire_us] = _Start(schedule, now_us)

    def stop(self, name: str) -> None:
        """Cancel the runs of a schedule that are under way, also those that this transaction starts."""
        self._stops |= dict.fromkeys((name, row.fire_us) for row in self.live(name))

    def put_joins(self, joins: Iterable[Join]) -> None:
        """Add or change joins."""
        for join in joins:
            self.joins[join.child, join.fire_us] = join
            self._joined[join.child, join.fire_us] = None

    def save(self, stored: Stored) -> None:
        """Add or change a schedule."""
        self._note_before(stored.schedule.name)
        self.schedules[stored.schedule.name] = stored
        self._saved[stored.schedule.name] = None

    def remove(self, name: str) -> None:
        """Remove a schedule."""
        self._note_before(name)
        self.schedules[name] = None
        self._saved[name] = None

    def _note_before(self, name: str) -> None:
        if name not in self._before:
            stored, _ = self.set_aside.get(name, (None, ""))
            self._before[name] = self.schedules.get(name) or stored

    def count_queued(self, name: str, number: int) -> None:
        """Add a number, possibly negative, to the count of waiting rows in the state of their schedule."""
        stored = self.schedules[name]
        if stored is not None:
            queued = max(stored.state.queued + number, 0)
            self.save(Stored(stored.schedule, replace(stored.state, queued=queued)))

    async def flush(self) -> None:
        """Write the changes, and submit the jobs of the rows that start."""
        await self._submit()
        late = self._watch()
        rows = [(key, row) for key in sorted(self._put_keys) if (row := self.fires[key[0]][key[1]]) is not None]
        writes = Writes(
            {name: self.schedules[name] for name in sorted(self._saved)},
            [row for key, row in rows if key in self._new],
            [row for key, row in rows if key not in self._new],
            [self.joins[key] for key in sorted(self._joined)],
            self.respecified,
            sorted(self._removed),
            late,
        )
        if writes.schedules or writes.new or writes.changed or writes.joins or writes.removed:
            await self.tables.write(writes)
        self._record(writes)
        if self._stops:
            rows_of = [self.fires[name][at] for name, at in self._stops]
            stops = list(dict.fromkeys(row.job for row in rows_of if row is not None and row.job))
            self.tables.after_commit(lambda: self.tables.lifecycle.cancel(stops, REPLACED))

    def _watch(self) -> dict[str, int]:
        """Note by when the changed schedules should start a job next; return the times that are new.

        One that starts a job, or joins one, when that time is over has been late: it has its event now, if it had none before.
        """
        late: dict[str, int] = {}
        started: dict[str, int] = {}
        for (name, at), start in self._starts.items():
            row = self.fires[name][at]
            if row is not None and row.state is not FireState.WAITING:
                started[name] = start.now_us
        for name in self._saved:
            after, before = self.schedules[name], self._before[name]
            if after is None or (after.schedule.start_within is None and not after.state.late_us):
                continue
            known_us = 0 if before is None else before.state.late_us
            if before is not None and name in started and 0 < known_us <= started[name] and name not in self.reported:
                self.add_late(before)
            late_us = rules.watch(before, after, started=name in started)
            if name in self.reported and name not in started:
                late_us = -known_us
            self.schedules[name] = Stored(after.schedule, replace(after.state, late_us=late_us))
            if late_us > 0 and late_us != known_us:
                late[name] = late_us
        return late

    def add_late(self, stored: Stored) -> None:
        """Add the event of a schedule that has started no job in time."""
        self.reported.add(stored.schedule.name)
        self.tables.events.add(late_event_of(stored, self.fires.get(stored.schedule.name, {})))

    def _record(self, writes: Writes) -> None:
        """Record the events of the rows that have just been decided, or have begun after a wait."""
        events = self.tables.events
        if events.interests.types.isdisjoint({types.FIRED, types.MISSED}):
            return
        for row in (*writes.new, *writes.changed):
            if self._states[row.schedule, row.fire_us] is not row.state:
                events.add(event_of(row, self.schedules.get(row.schedule)))

    async def _submit(self) -> None:
        if not self._starts:
            return
        lifecycle = self.tables.lifecycle
        jobs: dict[Key, Job] = {}
        for (name, at), start in self._starts.items():
            row = self.fires[name][at]
            assert row is not None
            job = _job(lifecycle.next_id(), start.schedule, row, start.now_us)
            if lifecycle.reserve(job, self.tables.term):
                jobs[name, at] = job
            else:
                # A foreground job in the node's memory has the same unique. No row can join it, so this one waits for its end.
                self.put(replace(row, state=FireState.WAITING))
                self.count_queued(name, 1)
        reserve = list(jobs.values())
        self.tables.after_rollback(lambda: lifecycle.dropped(reserve))
        joined = await self.tables.submit(reserve)
        for (name, at), job in jobs.items():
            row = self.fires[name][at]
            assert row is not None
            other = joined.get(job.id)
            if other is None:
                self.put(replace(row, job=job.id))
            else:
                self.put(replace(row, state=FireState.JOINED, job=other.id))
        stored = [job for job in reserve if job.id not in joined]
        others = [job for job in reserve if job.id in joined]

        def committed() -> None:
            lifecycle.dropped(others)
            lifecycle.stored(stored)

        self.tables.after_commit(committed)


def event_of(row: Fire, stored: Stored | None) -> NewEvent | None:
    """Return the event of a fire time that was decided; None if it waits."""
    if row.state is FireState.WAITING:
        return None
    namespace, name = split_text(row.schedule)
    function, tags = "", tuple[str, ...]()
    if stored is not None:
        function, tags = name_text(name_of(stored.schedule.function)), stored.schedule.tags
    fields = ScheduleFields(
        fire_us=row.fire_us,
        until_us=row.until_us,
        tags=tags,
        cause=row.cause.value,
        reason="" if row.reason is None else row.reason.value,
        depth=row.depth,
    )
    kind = types.MISSED if row.state is FireState.SKIPPED else types.FIRED
    return NewEvent(kind, namespace, function, name, row.job, fields, tags)


NOT_FIRED: Final = "not_fired"
"""No node has decided the fire time in time."""


def late_event_of(stored: Stored, rows: Mapping[int, Fire | None]) -> NewEvent:
    """Return the event of a schedule that has started no job in time. ``rows`` has that of the fire time, if it was read."""
    schedule = stored.schedule
    namespace, name = split_text(schedule.name)
    fire_us = stored.state.late_us - duration_us(schedule.start_within or 0)
    row = rows.get(fire_us)
    why = NOT_FIRED
    if row is not None and row.state in {FireState.WAITING, FireState.SKIPPED}:
        why = row.state.value if row.reason is None else row.reason.value
    fields = LateScheduleFields(fire_us=fire_us, due_us=stored.state.late_us, why=why, tags=schedule.tags)
    function = name_text(name_of(schedule.function))
    return NewEvent(types.SCHEDULE_OVERDUE, namespace, function, name, 0, fields, schedule.tags)


def _job(job_id: int, schedule: Schedule, row: Fire, now_us: int) -> Job:
    return Job(
        job_id,
        schedule.function,
        schedule.args,
        schedule.unique,
        schedule.priority,
        int(State.SCHEDULED if row.due_us > now_us else State.PENDING),
        created_us=now_us,
        due_us=row.due_us,
        expires_us=0 if schedule.expires is None else row.due_us + duration_us(schedule.expires),
        options=Options(
            schedule.retry,
            schedule.timeout,
            schedule=schedule.name,
            fire_us=row.fire_us,
            tags=schedule.tags,
            depth=row.depth,
            start_us=0 if schedule.start_within is None else row.due_us + duration_us(schedule.start_within),
            deadline_us=0 if schedule.deadline is None else row.due_us + duration_us(schedule.deadline),
        ),
        input_size=len(schedule.args),
    )


# ---- beginnings ----


async def apply_step(changes: ScheduleChanges, stored: Stored, step: Step, now_us: int) -> None:
    """Apply a step of the rules."""
    name = stored.schedule.name
    if step.drop_waiting:
        await drop_waiting(changes, name, Reason.OVERLAP, now_us)
    if step.cancel:
        changes.stop(name)
    changes.save(Stored(stored.schedule, step.state))
    decided = waited = 0
    for row in step.fires:
        before = await changes.row(name, row.fire_us)
        if before is not None and may_run_again(before, row, now_us):
            await reopen_descendants(changes, before)
        elif before is not None:
            decided += 1  # by an earlier schedule of this name, or under its earlier specification
            waited += row.state is FireState.WAITING
            continue
        row = await with_children(changes, stored.schedule, row)
        changes.put(row)
        if row.state is FireState.FIRED:
            changes.start(stored.schedule, row, now_us)
        elif row.state is FireState.SKIPPED:
            await finish(changes, row, now_us)
            await _spread(changes, row, now_us, succeeded=False)
    if waited:
        changes.count_queued(name, -waited)
    if decided:
        await start_waiting(changes, name, now_us)  # the rules have queued rows behind these, but no run is under way


def may_run_again(before: Fire, row: Fire, now_us: int) -> bool:
    """Return whether a row replaces a skipped one of its fire time: that was decided while the clock was ahead of now."""
    return before.state is FireState.SKIPPED and before.decided_us > now_us and row.state is not FireState.SKIPPED


async def drop_waiting(changes: ScheduleChanges, name: str, reason: Reason, now_us: int) -> None:
    """Skip the waiting rows of a schedule."""
    for row in changes.waiting(name):
        dropped = rules.dropped(row, reason, now_us)
        changes.put(dropped)
        await finish(changes, dropped, now_us)
        await _spread(changes, dropped, now_us, succeeded=False)


# ---- ends ----


async def ended(changes: ScheduleChanges, jobs: Sequence[Ended]) -> None:
    """Record the outcomes of runs and apply their consequences."""
    by_id = {job.id: job for job in jobs}
    rows = await changes.tables.of_jobs(sorted(by_id))
    catalogue = await changes.tables.catalogue()
    await changes.read_unfinished({row.schedule for row in rows if catalogue.queues(row.schedule)})
    for row in rows:
        changes.cache(row)
    for row in rows:
        now = changes.fires[row.schedule][row.fire_us]  # the end of an earlier one may have changed it
        if now is not None and not now.outcome:
            await end(changes, now, by_id[row.job])


async def end(changes: ScheduleChanges, row: Fire, job: Ended) -> None:
    """Record the outcome of a run."""
    succeeded = job.state == State.SUCCEEDED
    row = replace(
        row,
        node=changes.tables.node(job.term) if job.term else "",
        worker=job.worker,
        started_us=job.started_us,
        ended_us=job.ended_us,
        outcome=State(job.state).name.lower(),
        error=b"" if succeeded or not job.error else brief(job.error),
        attempt=job.attempt,
    )
    changes.put(row)
    if row.finished:
        await finish(changes, row, job.ended_us)
    await _spread(changes, row, job.ended_us, succeeded=succeeded)


# ---- parents and children ----


async def with_children(changes: ScheduleChanges, schedule: Schedule, row: Fire) -> Fire:
    """Return a row with the number of children that it waits for."""
    if not schedule.wait_for_children or row.state is FireState.SKIPPED:
        return row
    graph = (await changes.tables.catalogue()).graph
    children = [child.name for child in graph.children_of(row)]
    await changes.read_fires((child, row.fire_us) for child in children)
    rows = [(child, changes.fires[child][row.fire_us]) for child in children]
    return graph.with_children(row, {child for child, found in rows if found is not None and found.finished})


async def _spread(changes: ScheduleChanges, row: Fire, now_us: int, *, succeeded: bool) -> None:
    """Apply the success or failure of a row to its children."""
    graph = (await changes.tables.catalogue()).graph
    if not graph.children(row.schedule):
        return
    names = graph.joins(row, succeeded=succeeded)
    await changes.read_joins((name, row.fire_us) for name in names)
    joins = {name: changes.joins[name, row.fire_us] for name in names if (name, row.fire_us) in changes.joins}
    spread = graph.spread(row, joins, now_us, succeeded=succeeded)
    changes.put_joins(spread.joins)
    await changes.read_fires((one.schedule, one.fire_us) for one in spread.stopped)
    for stopped in spread.stopped:
        if changes.fires[stopped.schedule][stopped.fire_us] is None:
            changes.put(stopped)
            await finish(changes, stopped, now_us)
    for child in spread.ready:
        await _start_child(changes, child.name, row, now_us)


async def _start_child(changes: ScheduleChanges, name: str, parent: Fire, now_us: int) -> None:
    stored = await changes.read_schedule(name)
    if name in changes.set_aside and await changes.row(name, parent.fire_us) is None:
        await _miss(changes, name, parent, now_us)
    if stored is None or await changes.row(name, parent.fire_us) is not None:
        return
    await changes.read_unfinished_of(stored)
    live = bool(changes.live(name))
    await apply_step(
        changes, stored, rules.decide_child(stored.schedule, stored.state, parent, now_us, live=live), now_us
    )


async def _miss(changes: ScheduleChanges, name: str, parent: Fire, now_us: int) -> None:
    """Skip the occasion of a child that is set aside here: its history says why it did not run."""
    _, fault = changes.set_aside[name]
    row = Fire(
        schedule=name,
        fire_us=parent.fire_us,
        state=FireState.SKIPPED,
        reason=Reason.MISFIRE,
        cause=Cause.PARENT,
        root=parent.root,
        parent=parent.schedule,
        decided_us=now_us,
        error=failure("SetAside", fault),
    )
    changes.put(row)
    await finish(changes, row, now_us)
    await _spread(changes, row, now_us, succeeded=False)


async def finish(changes: ScheduleChanges, row: Fire, now_us: int) -> None:
    """Count a finished row at its waiting parents, and start the rows that are queued behind runs that are finished now."""
    catalogue = await changes.tables.catalogue()
    finished = [row]
    ancestors = catalogue.graph.ancestors(row.schedule)
    if ancestors:
        await changes.read_fires((name, row.fire_us) for name in ancestors)
        found = {name: changes.fires[name][row.fire_us] for name in ancestors}
        parents = {name: one for name, one in found.items() if one is not None}
        for changed in catalogue.graph.finish(row, parents):
            changes.put(changed)
            if changed.finished:
                finished.append(changed)
    for one in finished:
        if catalogue.queues(one.schedule) and one.state is not FireState.SKIPPED:
            await start_waiting(changes, one.schedule, now_us)


async def start_waiting(changes: ScheduleChanges, name: str, now_us: int) -> bool:
    """Start the oldest waiting row of a schedule unless a run is under way; return whether it started one."""
    stored = await changes.read_schedule(name)
    if stored is None or not stored.state.queued:
        return False
    await changes.read_unfinished({name})
    waiting = changes.waiting(name)
    if changes.live(name) or not waiting:
        return False
    row, state = rules.start_waiting(stored.state, waiting[0], now_us)
    changes.save(Stored(stored.schedule, state))
    changes.put(row)
    changes.start(stored.schedule, row, now_us)
    return True


async def reopen_descendants(changes: ScheduleChanges, row: Fire) -> None:
    """Forget that the descendants of a skipped row were skipped because of it."""
    graph = (await changes.tables.catalogue()).graph
    root = changes.schedules.get(row.schedule)
    family = [one for one in graph.descendants(row.schedule) if graph.takes_part(one.name, row)]
    if not family:
        return
    names = {name for one in family for name in (one.name, *one.parents)}
    await changes.read_schedules(names)
    await changes.read_fires((name, row.fire_us) for name in names)
    undecided = {row.schedule}
    for child in family:  # parents before their children
        if undecided.isdisjoint(child.parents):
            continue
        others = [name for name in child.parents if name not in undecided]
        ended = [name for name in others if _has_ended(changes, name, row.fire_us)]
        is_stopped = any(not _has_succeeded(changes, name, row.fire_us) for name in ended)
        if len(child.parents) > 1:
            changes.put_joins([Join(child.name, row.fire_us, len(child.parents) - len(ended), is_stopped)])
        found = changes.fires[child.name][row.fire_us]
        if found is None:
            undecided.add(child.name)
        elif found.reason is Reason.PARENT and not is_stopped:
            changes.remove_row(found)
            if root is not None:
                await split_range(changes, root.schedule, found)
            undecided.add(child.name)
            _count_again(changes, others, row.fire_us)


async def split_range(changes: ScheduleChanges, schedule: Schedule, row: Fire) -> None:
    """Give the other times of a range a row of their own, if its first time gets another; ``schedule`` has the times."""
    following = triggers.next_after(schedule, row.fire_us) if row.until_us else None
    if following is not None and following <= row.until_us and await changes.row(row.schedule, following) is None:
        changes.put(replace(row, fire_us=following, until_us=row.until_us if following < row.until_us else 0))


def _has_ended(changes: ScheduleChanges, name: str, fire_us: int) -> bool:
    """Return whether a parent has counted at the join of its child; so has a parent whose row was deleted."""
    row, stored = changes.fires[name][fire_us], changes.schedules[name]
    if row is None:
        return stored is not None and fire_us <= stored.state.forgotten_us
    return row.state is FireState.SKIPPED or row.outcome != ""


def _has_succeeded(changes: ScheduleChanges, name: str, fire_us: int) -> bool:
    row = changes.fires[name][fire_us]
    return row is not None and row.outcome == "succeeded"


def _count_again(changes: ScheduleChanges, parents: list[str], fire_us: int) -> None:
    """Let parents that wait for their children, and are not finished, wait for one more."""
    for name in parents:
        row, stored = changes.fires[name][fire_us], changes.schedules[name]
        if row is not None and stored is not None and stored.schedule.wait_for_children and not row.finished:
            changes.put(replace(row, children_left=row.children_left + 1))
