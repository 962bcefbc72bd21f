"""The schedules that one transaction has read, and its changes of them.

Nothing is read or written twice: a ``ScheduleChanges`` belongs to one transaction, which writes it at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from mainspring.jobs.model import Job, Options, State
from mainspring.jobs.rules import duration_us
from mainspring.schedules.codecs import fault_of
from mainspring.schedules.model import Fire, FireState, Overlap
from mainspring.schedules.reconcile import Stored
from mainspring.schedules.store import Writes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from mainspring.schedules.model import Schedule
    from mainspring.schedules.parents import Join
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
        """Schedules of which all unfinished rows have been read."""
        self.joins: dict[Key, Join] = {}
        self._saved: dict[str, None] = {}
        self._put_keys: dict[Key, None] = {}
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
        if rows.get(row.fire_us) is None:
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
        self.schedules[stored.schedule.name] = stored
        self._saved[stored.schedule.name] = None

    def remove(self, name: str) -> None:
        """Remove a schedule."""
        self.schedules[name] = None
        self._saved[name] = None

    def count_queued(self, name: str, number: int) -> None:
        """Add a number, possibly negative, to the count of waiting rows in the state of their schedule."""
        stored = self.schedules[name]
        if stored is not None:
            queued = max(stored.state.queued + number, 0)
            self.save(Stored(stored.schedule, replace(stored.state, queued=queued)))

    async def flush(self) -> None:
        """Write the changes, and submit the jobs of the rows that start."""
        await self._submit()
        rows = [(key, row) for key in sorted(self._put_keys) if (row := self.fires[key[0]][key[1]]) is not None]
        writes = Writes(
            {name: self.schedules[name] for name in sorted(self._saved)},
            [row for key, row in rows if key in self._new],
            [row for key, row in rows if key not in self._new],
            [self.joins[key] for key in sorted(self._joined)],
            self.respecified,
            sorted(self._removed),
        )
        if writes.schedules or writes.new or writes.changed or writes.joins or writes.removed:
            await self.tables.write(writes)
        if self._stops:
            rows_of = [self.fires[name][at] for name, at in self._stops]
            stops = list(dict.fromkeys(row.job for row in rows_of if row is not None and row.job))
            self.tables.after_commit(lambda: self.tables.lifecycle.cancel(stops, REPLACED))

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
            schedule.retry, schedule.timeout, schedule=schedule.name, fire_us=row.fire_us, tags=schedule.tags
        ),
        input_size=len(schedule.args),
    )
