"""What one transaction does to the schedules: it reads what the rules need, asks them, and gathers what they say for one write.

Nothing is decided here, and nothing is written twice: this is the bookkeeping between ``rules`` and ``parents`` and an engine's
tables (``store.ScheduleTables``), once for all engines. A ``Work`` belongs to one transaction, and remembers what it has read and
changed until ``flush``.

A row ends, a child starts, a waiting row follows: each may lead to the next, all in the transaction in which the first one
happened. The way is always the same: ``_put`` a row; ``_spread`` its success or failure to its children; ``_finish`` it, once,
when it has become finished, which counts at its parents and lets waiting rows start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from mainspring.errors import ConflictError, MainspringError, NotFoundError, UsageError
from mainspring.jobs.model import Job, Options, State
from mainspring.jobs.rules import duration_us
from mainspring.jobs.store import Ended
from mainspring.schedules import rules
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.model import Fire, FireState, Origin, Overlap, Reason
from mainspring.schedules.reconcile import Stored
from mainspring.schedules.store import (
    Declare,
    Fired,
    FireSchedules,
    MendSchedules,
    Saved,
    SaveSchedules,
    TriggerSchedule,
    Writes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from mainspring.schedules.model import Schedule
    from mainspring.schedules.parents import Join
    from mainspring.schedules.rules import Step
    from mainspring.schedules.store import Change, Due, Key, ScheduleTables
    from mainspring.storage.operation import Operation

CATCH_UP = 100
"""Steps by which a schedule is brought up to date before it is changed. More are left to its own firing."""
LOST = b'{"type":"Lost","message":"its job is no longer kept, and how it ended was not noted"}'


async def follow(tables: ScheduleTables, jobs: Sequence[Ended]) -> None:
    """Do what follows for schedules from the ends of jobs."""
    work = Work(tables)
    await work.ended(jobs)
    await work.flush()


async def run(tables: ScheduleTables, operation: Operation) -> Any:
    """Run one of the operations of ``store.WRITING``; returns its outcome."""
    work = Work(tables)
    outcome: Any
    match operation:
        case SaveSchedules():
            outcome = await work.save(operation)
        case FireSchedules():
            outcome = await work.fire(operation.due, operation.now_us, operation.limit)
        case TriggerSchedule():
            outcome = await work.trigger(operation.name, operation.now_us)
        case MendSchedules():
            outcome = await work.mend(operation)
        case Declare():
            return await tables.declare(operation.app, operation.digest, operation.now_us)
        case _:
            raise TypeError(f"{operation!r} is none of the operations that write schedules")
    await work.flush()
    if isinstance(outcome, Fire):
        return work.row(outcome)  # it has its job now
    return outcome


class _Start(NamedTuple):
    """A row that needs a job."""

    schedule: Schedule
    now_us: int


class Work:
    """The schedules' part of one transaction."""

    def __init__(self, tables: ScheduleTables) -> None:
        self._tables = tables
        self._schedules: dict[str, Stored | None] = {}
        self._fires: dict[str, dict[int, Fire | None]] = {}
        """Rows by schedule and fire time; None where it is known that there is none."""
        self._complete: set[str] = set()
        """Schedules of which all unfinished rows have been read."""
        self._joins: dict[Key, Join] = {}
        self._saved: dict[str, None] = {}
        self._put_keys: dict[Key, None] = {}
        self._new: set[Key] = set()
        self._joined: dict[Key, None] = {}
        self._starts: dict[Key, _Start] = {}
        self._stops: list[int] = []
        self._respecified = False

    # ---- what follows from the end of jobs ----

    async def ended(self, jobs: Sequence[Ended]) -> None:
        """Note how runs have ended, and do all that follows from it."""
        by_id = {job.id: job for job in jobs}
        rows = await self._tables.of_jobs(sorted(by_id))
        catalogue = await self._tables.catalogue()
        await self._read_unfinished({row.schedule for row in rows if catalogue.queues(row.schedule)})
        for row in rows:
            self._know(row)
        for row in rows:
            now = self._fires[row.schedule][row.fire_us]  # an earlier one of these may have counted at it
            if now is not None and not now.outcome:
                await self._end(now, by_id[row.job])

    async def _end(self, row: Fire, job: Ended) -> None:
        succeeded = job.state == State.SUCCEEDED
        row = replace(
            row,
            node=self._tables.node(job.term) if job.term else "",
            worker=job.worker,
            started_us=job.started_us,
            ended_us=job.ended_us,
            outcome=State(job.state).name.lower(),
            error=b"" if succeeded else job.error,
            attempt=job.attempt,
        )
        self._put(row)
        if row.finished:
            await self._finish(row, job.ended_us)
        await self._spread(row, job.ended_us, succeeded=succeeded)

    # ---- due fire times ----

    async def fire(self, due: Sequence[Due], now_us: int, limit: int) -> dict[str, Fired]:
        """Decide what is due."""
        await self._read_schedules({one.name for one in due})
        won = []
        for name, version in due:
            stored = self._schedules[name]
            if stored is not None and stored.state.version == version:
                won.append(stored)
        await self._read_unfinished({one.schedule.name for one in won if one.schedule.overlap is not Overlap.ALLOW})
        steps = [(stored, self._decide(stored, now_us, limit)) for stored in won]
        await self._read_fires((row.schedule, row.fire_us) for _, step in steps if step for row in step.fires)
        more: set[str] = set()
        for stored, step in steps:
            if step is not None:
                await self._take(stored, step, now_us)
                if step.more:
                    more.add(stored.schedule.name)
        names = {stored.schedule.name for stored in won}
        return {one.name: Fired(one.name in names, self._schedules[one.name], one.name in more) for one in due}

    def _decide(self, stored: Stored, now_us: int, limit: int) -> Step | None:
        live = bool(self._live(stored.schedule.name))
        return rules.decide(stored.schedule, stored.state, now_us, live=live, limit=limit)

    async def trigger(self, name: str, now_us: int) -> Fire | None:
        """Run a schedule by hand."""
        stored = await self._read_schedule(name)
        if stored is None:
            return None
        await self._read_unfinished_of(stored)
        graph = (await self._tables.catalogue()).graph
        relatives = [*graph.ancestors(name), name, *(one.name for one in graph.descendants(name))]
        while True:
            step = rules.trigger_now(stored.schedule, stored.state, now_us, live=bool(self._live(name)))
            (row,) = step.fires
            await self._read_fires((one, row.fire_us) for one in relatives)
            taken = any(self._fires[one][row.fire_us] is not None for one in relatives)
            if not taken and not graph.may_fire_at(name, row.fire_us):
                break
            # An occasion of a relative has this time, or a schedule of this name was there before.
            now_us = row.fire_us + 1
        await self._take(stored, step, now_us)
        return self._fires[name][row.fire_us]

    async def _take(self, stored: Stored, step: Step, now_us: int) -> None:
        """Carry out a step of the rules."""
        name = stored.schedule.name
        if step.drop_waiting:
            await self._drop_waiting(name, Reason.OVERLAP, now_us)
        if step.cancel:
            self._stops.extend(row.job for row in self._live(name) if row.job)
        self._save(Stored(stored.schedule, step.state))
        waited = 0
        for row in step.fires:
            if await self._row(name, row.fire_us) is not None:
                waited += row.state is FireState.WAITING
                continue  # decided already, for a schedule of this name that was removed or had other times
            row = await self._with_children(stored.schedule, row)
            self._put(row)
            if row.state is FireState.FIRED:
                self._starts[name, row.fire_us] = _Start(stored.schedule, now_us)
            elif row.state is FireState.SKIPPED:
                await self._finish(row, now_us)
                await self._spread(row, now_us, succeeded=False)
        if waited:
            self._count_queued(name, -waited)

    async def _drop_waiting(self, name: str, reason: Reason, now_us: int) -> None:
        for row in self._waiting(name):
            dropped = rules.dropped(row, reason, now_us)
            self._put(dropped)
            await self._finish(dropped, now_us)
            await self._spread(dropped, now_us, succeeded=False)

    # ---- parents and children ----

    async def _with_children(self, schedule: Schedule, row: Fire) -> Fire:
        """Return a row with the number of children that it has to wait for."""
        if not schedule.wait_for_children or row.state is FireState.SKIPPED:
            return row
        graph = (await self._tables.catalogue()).graph
        children = [child.name for child in graph.children_of(row)]
        await self._read_fires((child, row.fire_us) for child in children)
        rows = [(child, self._fires[child][row.fire_us]) for child in children]
        return graph.with_children(row, {child for child, found in rows if found is not None and found.finished})

    async def _spread(self, row: Fire, now_us: int, *, succeeded: bool) -> None:
        """Tell the children of a row how it went."""
        graph = (await self._tables.catalogue()).graph
        if not graph.children(row.schedule):
            return
        names = graph.joins(row, succeeded=succeeded)
        await self._read_joins((name, row.fire_us) for name in names)
        known = {name: self._joins[name, row.fire_us] for name in names if (name, row.fire_us) in self._joins}
        spread = graph.spread(row, known, now_us, succeeded=succeeded)
        for join in spread.joins:
            self._joins[join.child, join.fire_us] = join
            self._joined[join.child, join.fire_us] = None
        await self._read_fires((one.schedule, one.fire_us) for one in spread.stopped)
        for stopped in spread.stopped:
            if self._fires[stopped.schedule][stopped.fire_us] is None:
                self._put(stopped)
                await self._finish(stopped, now_us)
        for child in spread.ready:
            await self._start_child(child.name, row, now_us)

    async def _start_child(self, name: str, parent: Fire, now_us: int) -> None:
        stored = await self._read_schedule(name)
        if stored is None or await self._row(name, parent.fire_us) is not None:
            return
        await self._read_unfinished_of(stored)
        live = bool(self._live(name))
        await self._take(stored, rules.decide_child(stored.schedule, stored.state, parent, now_us, live=live), now_us)

    async def _finish(self, row: Fire, now_us: int) -> None:
        """Count a finished row at those that wait for it, and start what waits behind those that are finished thereby."""
        catalogue = await self._tables.catalogue()
        finished = [row]
        ancestors = catalogue.graph.ancestors(row.schedule)
        if ancestors:
            await self._read_fires((name, row.fire_us) for name in ancestors)
            found = {name: self._fires[name][row.fire_us] for name in ancestors}
            parents = {name: one for name, one in found.items() if one is not None}
            for changed in catalogue.graph.finish(row, parents):
                self._put(changed)
                if changed.finished:
                    finished.append(changed)
        for one in finished:
            if catalogue.queues(one.schedule) and one.state is not FireState.SKIPPED:
                await self._start_waiting(one.schedule, now_us)

    async def _start_waiting(self, name: str, now_us: int) -> bool:
        """Start the oldest waiting row of a schedule, if no run of it is under way."""
        stored = await self._read_schedule(name)
        if stored is None or not stored.state.queued:
            return False
        await self._read_unfinished({name})
        waiting = self._waiting(name)
        if self._live(name) or not waiting:
            return False
        row, state = rules.start_waiting(stored.state, waiting[0], now_us)
        self._save(Stored(stored.schedule, state))
        self._put(row)
        self._starts[name, row.fire_us] = _Start(stored.schedule, now_us)
        return True

    # ---- changes of schedules ----

    async def save(self, operation: SaveSchedules) -> Saved:
        """Change schedules."""
        changes, now_us = operation.changes, operation.now_us
        before = await self._tables.catalogue(lock=True)
        await self._read_schedules({change.name for change in changes})
        error = _refusal(changes, self._schedules) or self._misfit(changes, before, now_us)
        if error is None:
            error = await self._catch_up([change.name for change in changes if change.kind == "put"], now_us)
        if error is None:
            for change in changes:
                await self._change(change, now_us)
        return Saved({change.name: self._schedules[change.name] for change in changes}, error)

    def _misfit(self, changes: Sequence[Change], before: Catalogue, now_us: int) -> UsageError | None:
        after = dict(before.schedules)
        for change in changes:
            if change.schedule is not None:
                after[change.name] = change.schedule
            elif change.kind == "remove":
                del after[change.name]
        try:
            Catalogue(after).check([change.name for change in changes], now_us)
        except UsageError as error:
            return error
        return None

    async def _catch_up(self, names: Iterable[str], now_us: int) -> ConflictError | None:
        """Decide what is due under the specifications as they are."""
        for name in names:
            for _ in range(CATCH_UP):
                stored = self._schedules[name]
                if stored is None:
                    break
                await self._read_unfinished_of(stored)
                step = self._decide(stored, now_us, rules.STEP)
                if step is None:
                    break
                await self._take(stored, step, now_us)
                if not step.more:
                    break
            else:
                return ConflictError(f"schedule {name!r} is behind with very many fire times: try again in a while")
        return None

    async def _change(self, change: Change, now_us: int) -> None:
        stored, schedule = self._schedules[change.name], change.schedule
        match change.kind:
            case "put":
                assert schedule is not None
                self._respecified = True
                if stored is None:
                    origin, declared = change.origin or Origin.CLI, change.declared or b""
                    state = rules.created(schedule, now_us, origin=origin, app=change.app, declared=declared)
                else:
                    state = rules.changed(stored.schedule, schedule, stored.state, now_us)
                    if change.declared is not None:
                        state = replace(state, declared=change.declared)
                self._save(Stored(schedule, state))
            case "remove":
                self._respecified = True
                await self._read_unfinished({change.name})
                await self._drop_waiting(change.name, Reason.REMOVED, now_us)
                self._schedules[change.name] = None
                self._saved[change.name] = None
            case "pause" | "resume":
                assert stored is not None
                decided = rules.paused if change.kind == "pause" else rules.resumed
                state = decided(stored.state, now_us)
                if state is not stored.state:
                    self._save(Stored(stored.schedule, state))

    # ---- what no transaction could see ----

    async def mend(self, operation: MendSchedules) -> int:
        """Put right what no transaction could see; returns how many rows changed."""
        now_us, limit = operation.now_us, operation.limit
        mended = 0
        for row, job in await self._tables.joined(limit):
            self._know(row)
            now = self._fires[row.schedule][row.fire_us]
            if now is not None and not now.outcome:
                await self._end(now, job or _lost(row, now_us))
                mended += 1
        for row in await self._tables.stuck(limit):
            mended += await self._recount(row, now_us)
        for name in sorted(await self._tables.queued(limit)):
            stored = await self._read_schedule(name)
            await self._read_unfinished({name})
            if await self._start_waiting(name, now_us):
                mended += 1
            elif stored is not None and stored.schedule.overlap is Overlap.REPLACE:
                self._stops.extend(row.job for row in self._live(name) if row.job)
        return mended

    async def _recount(self, row: Fire, now_us: int) -> bool:
        stored = await self._read_schedule(row.schedule)
        known = await self._row(row.schedule, row.fire_us)
        if known is None or known.finished or known.outcome == "":
            return False  # it was finished meanwhile
        counted = replace(known, children_left=0)
        if stored is not None:
            counted = await self._with_children(stored.schedule, counted)
        if counted == known:
            return False
        self._put(counted)
        if counted.finished:
            await self._finish(counted, now_us)
        return True

    # ---- what is known ----

    async def _read_schedules(self, names: Collection[str]) -> None:
        unknown = sorted(set(names) - self._schedules.keys())
        if unknown:
            found = await self._tables.schedules(unknown)
            self._schedules |= {name: found.get(name) for name in unknown}

    async def _read_schedule(self, name: str) -> Stored | None:
        await self._read_schedules({name})
        return self._schedules[name]

    async def _read_unfinished(self, names: Collection[str]) -> None:
        unknown = sorted(set(names) - self._complete)
        if unknown:
            await self._read_schedules(
                unknown
            )  # which locks them: whoever lets a row wait, or start, has read them too
            for row in await self._tables.unfinished(unknown):
                self._know(row)
            self._complete.update(unknown)

    async def _read_unfinished_of(self, stored: Stored) -> None:
        if stored.schedule.overlap is not Overlap.ALLOW:
            await self._read_unfinished({stored.schedule.name})

    async def _read_fires(self, keys: Iterable[Key]) -> None:
        unknown = sorted({(name, at) for name, at in keys if at not in self._fires.get(name, ())})
        if unknown:
            found = await self._tables.fires(unknown)
            for name, at in unknown:
                self._fires.setdefault(name, {})[at] = found.get((name, at))

    async def _row(self, name: str, fire_us: int) -> Fire | None:
        await self._read_fires([(name, fire_us)])
        return self._fires[name][fire_us]

    async def _read_joins(self, keys: Iterable[Key]) -> None:
        unknown = sorted(set(keys) - self._joins.keys())
        if unknown:
            self._joins |= await self._tables.joins(unknown)

    def _know(self, row: Fire) -> None:
        """Remember a row that was read, unless it has been changed here since."""
        self._fires.setdefault(row.schedule, {}).setdefault(row.fire_us, row)

    def _live(self, name: str) -> list[Fire]:
        return [row for row in self._fires.get(name, {}).values() if row is not None and row.live]

    def _waiting(self, name: str) -> list[Fire]:
        rows = [row for row in self._fires.get(name, {}).values() if row is not None and row.state is FireState.WAITING]
        return sorted(rows, key=lambda row: row.fire_us)

    def row(self, row: Fire) -> Fire:
        """Return a row as it is now."""
        return self._fires[row.schedule][row.fire_us] or row

    # ---- what changes ----

    def _put(self, row: Fire) -> None:
        key, rows = (row.schedule, row.fire_us), self._fires.setdefault(row.schedule, {})
        if rows.get(row.fire_us) is None:
            self._new.add(key)
        rows[row.fire_us] = row
        self._put_keys[key] = None

    def _save(self, stored: Stored) -> None:
        self._schedules[stored.schedule.name] = stored
        self._saved[stored.schedule.name] = None

    def _count_queued(self, name: str, number: int) -> None:
        stored = self._schedules[name]
        if stored is not None:
            queued = max(stored.state.queued + number, 0)
            self._save(Stored(stored.schedule, replace(stored.state, queued=queued)))

    async def flush(self) -> None:
        """Write what has changed, and submit the jobs of the rows that start."""
        await self._submit()
        rows = [(key, row) for key in sorted(self._put_keys) if (row := self._fires[key[0]][key[1]]) is not None]
        writes = Writes(
            {name: self._schedules[name] for name in sorted(self._saved)},
            [row for key, row in rows if key in self._new],
            [row for key, row in rows if key not in self._new],
            [self._joins[key] for key in sorted(self._joined)],
            self._respecified,
        )
        if writes.schedules or writes.new or writes.changed or writes.joins:
            await self._tables.write(writes)
        if self._stops:
            stops = list(dict.fromkeys(self._stops))
            self._tables.after_commit(lambda: self._tables.followers.stop(stops))
        self._saved.clear()
        self._put_keys.clear()
        self._new.clear()
        self._joined.clear()
        self._stops = []
        self._respecified = False

    async def _submit(self) -> None:
        if not self._starts:
            return
        followers = self._tables.followers
        jobs: dict[Key, Job] = {}
        for (name, at), start in self._starts.items():
            row = self._fires[name][at]
            assert row is not None
            job = _job(followers.next_id(), start.schedule, row, start.now_us)
            if followers.coming(job):
                jobs[name, at] = job
            else:
                # A foreground job in the node's memory has its unique, and no row can join that: it waits until that has ended.
                self._put(replace(row, state=FireState.WAITING))
                self._count_queued(name, 1)
        self._starts.clear()
        coming = list(jobs.values())
        self._tables.after_rollback(lambda: followers.dropped(coming))
        joined = await self._tables.submit(coming)
        for (name, at), job in jobs.items():
            row = self._fires[name][at]
            assert row is not None
            other = joined.get(job.id)
            if other is None:
                self._put(replace(row, job=job.id))
            else:
                self._put(replace(row, state=FireState.JOINED, job=other.id))
        stored = [job for job in coming if job.id not in joined]
        others = [job for job in coming if job.id in joined]

        def committed() -> None:
            followers.dropped(others)
            followers.stored(stored)

        self._tables.after_commit(committed)


def _refusal(changes: Sequence[Change], stored: dict[str, Stored | None]) -> MainspringError | None:
    if len({change.name for change in changes}) < len(changes):
        return UsageError("a schedule is named twice in one request")
    for change in changes:
        name, now = change.name, stored[change.name]
        if now is None:
            if change.kind == "put" and not change.version:
                continue
            return NotFoundError(f"there is no schedule {name!r}")
        if change.kind == "put" and not change.version:
            return ConflictError(f"there is a schedule {name!r} already")
        if change.version is not None and change.version != now.state.version:
            return ConflictError(f"schedule {name!r} was changed meanwhile: read it again")
    return None


def _lost(row: Fire, now_us: int) -> Ended:
    return Ended(row.job, int(State.FAILED), 0, 0, "", 0, now_us, LOST)


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
        options=Options(schedule.retry, schedule.timeout, schedule=schedule.name, fire_us=row.fire_us),
        input_size=len(schedule.args),
        namespace=schedule.namespace,
    )
