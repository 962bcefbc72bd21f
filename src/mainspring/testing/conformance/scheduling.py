"""Driving the schedules of an engine as nodes do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
from msgspec.structs import replace

from mainspring.jobs.model import Job, State
from mainspring.jobs.rules import Event, Settlement
from mainspring.queries.schedules import ListFires
from mainspring.schedules import store as ops
from mainspring.schedules.model import At, Every, Fire, FireState, Schedule, Trigger
from mainspring.testing.conformance.driver import EVERYTHING, Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.schedules.reconcile import Stored
    from mainspring.testing.conformance.driver import Make

SECOND = 1_000_000
MINUTE = 60 * SECOND
START = 1_700_000_040 * SECOND
"""A full minute."""


class Scheduling:
    """An open store with schedules, and a time of day that the test moves."""

    def __init__(self, make: Make, store: Store) -> None:
        self.make = make
        self.store = store
        self.now_us = START
        self._worked: set[int] = set()
        self.attend()

    def attend(self) -> None:
        """Be the node of the engine, which has been opened."""
        self.noted = self.store.noted

    # ---- operations ----

    def group(self, *operations: Any) -> list[Any]:
        """Commit a group."""
        return self.store.group(*operations)

    def save(self, *changes: ops.Change) -> ops.Saved:
        """Change schedules."""
        (saved,) = self.group(ops.SaveSchedules(changes, self.now_us))
        assert isinstance(saved, ops.Saved)
        return saved

    def saving(self, *changes: ops.Change) -> ops.SaveSchedules:
        """Return the operation."""
        return ops.SaveSchedules(changes, self.now_us)

    def put(self, *schedules: Schedule) -> None:
        """Add schedules, or change them."""
        known = {stored.schedule.name: stored.state.version for stored in self.read()}
        saved = self.save(*(ops.Change("put", one.name, known.get(one.name, 0), one) for one in schedules))
        assert saved.error is None, saved.error

    def add(self, name: str, **fields: Any) -> Schedule:
        """Add one; without a trigger and parents it fires every minute."""
        fields = {"function": name.encode(), "trigger": None if fields.get("parents") else Every(MINUTE)} | fields
        schedule = Schedule(name=name, **fields)
        self.put(schedule)
        return schedule

    def change(self, kind: Literal["pause", "resume", "remove"], name: str) -> ops.Saved:
        """Pause, resume or remove one."""
        return self.save(ops.Change(kind, name))

    def due(self, until_us: int | None = None, limit: int = EVERYTHING) -> ops.Upcoming:
        """Look for what is due."""
        until_us = self.now_us if until_us is None else until_us
        (found,) = self.group(ops.FindDue(until_us, limit))
        assert isinstance(found, ops.Upcoming)
        return found

    def firing(self, *names: str, limit: int = 1000) -> ops.FireSchedules:
        """Return the operation that fires what is due, of all or of some schedules."""
        due = [one for one, _ in self.due().due if not names or one.name in names]
        return ops.FireSchedules(due, self.now_us, limit)

    def fire(self, *names: str) -> dict[str, ops.Fired]:
        """Fire what is due, until nothing is."""
        fired: dict[str, ops.Fired] = {}
        while True:
            operation = self.firing(*names)
            if not operation.due:
                return fired
            (outcome,) = self.group(operation)
            assert all(one.won for one in outcome.values())
            fired |= outcome

    def at(self, minute: float) -> None:
        """Let it be so many minutes after the start."""
        self.now_us = START + round(minute * MINUTE)

    def trigger(self, name: str) -> Fire | None:
        """Run one by hand."""
        (row,) = self.group(ops.TriggerSchedule(name, self.now_us))
        assert row is None or isinstance(row, Fire)
        return row

    def mend(self, limit: int = 1000) -> int:
        """Put right what no transaction could see."""
        (number,) = self.group(ops.RepairSchedules(self.now_us, limit))
        assert isinstance(number, int)
        return number

    def declare(self, app: str, digest: bytes) -> list[ops.Declared]:
        """Declare schedules of an App."""
        (known,) = self.group(ops.Declare(app, digest, self.now_us))
        return sorted(known)

    # ---- jobs ----

    def claim(self, name: str) -> list[Job]:
        """Claim the jobs of a schedule's own function, all of them: one claim may pass over what others have just stored."""
        jobs: list[Job] = []
        while more := self.store.claim(name.encode()):
            jobs += more
        return jobs

    def running(self, name: str) -> Job:
        """Claim the one job of a schedule that waits."""
        (job,) = self.claim(name)
        return job

    def settlement(self, job: Job, event: Event = Event.SUCCEED, **values: Any) -> Settlement:
        """Return the end of a job as a worker called ``w`` brings it about."""
        times = {"started_us": self.now_us - 1, "ended_us": self.now_us}
        return Settlement(job, event, job.attempt + 1, worker="w", **{**times, **values})

    def end(self, job: Job, event: Event = Event.SUCCEED, **values: Any) -> None:
        """Settle a claimed job."""
        assert self.store.settle(self.settlement(job, event, **values)) == set()

    def run(self, name: str, event: Event = Event.SUCCEED) -> None:
        """Run the one job of a schedule that waits."""
        self.end(self.running(name), event)

    # ---- looking ----

    def read(self, *names: str) -> list[Stored]:
        """List schedules."""
        return self.store.all_of(ops.ListSchedules(limit=EVERYTHING, names=names or None))

    def stored(self, name: str) -> Stored:
        """Read one."""
        (stored,) = self.read(name)
        return stored

    def history(self, name: str, **which: Any) -> list[Fire]:
        """Read the rows of one, the oldest first."""
        return self.store.all_of(ListFires(name, **{"limit": EVERYTHING, **which}))[::-1]

    def told(self, name: str) -> list[str]:
        """Say in a word each what became of the fire times of a schedule, the oldest first."""
        return [_told(row) for row in self.history(name)]

    def check(self) -> None:
        """Check what is true of every store: each row that fired has a job of its own, and what the node was told is so."""
        owned: dict[int, Fire] = {}
        for stored in self.read():
            rows = self.history(stored.schedule.name)
            assert len({row.fire_us for row in rows}) == len(rows)
            assert stored.state.queued == sum(row.state is FireState.WAITING for row in rows)
            for row in rows:
                assert (row.job != 0) == (row.state in {FireState.FIRED, FireState.JOINED})
                if row.state is FireState.FIRED:
                    assert row.job not in owned, "a job stands for one fire time"
                    owned[row.job] = row
        scheduled = [job for job in self.store.list() if job.options is not None and job.options.schedule is not None]
        for job in scheduled:
            assert job.options is not None
            if job.id in owned:  # otherwise its schedule was removed
                row = owned[job.id]
                assert (job.options.schedule, job.options.fire_us) == (row.schedule, row.fire_us)
                assert (row.outcome != "") == State(job.state).ended, f"{row} has the job {job}"
        assert sorted(self.noted.live) == sorted(self.noted.committed)


def _told(row: Fire) -> str:
    if row.state is FireState.SKIPPED:
        return f"{row.reason}"
    if row.outcome:
        return row.outcome if row.finished else f"{row.outcome}, {row.children_left} left"
    return row.state.value


def at(minute: int) -> Trigger:
    """Return the trigger that fires once, so many minutes after the start."""
    return At(START + minute * MINUTE)


def named(schedule: Schedule, name: str, **fields: Any) -> Schedule:
    """Return the same with another name, and other fields."""
    return replace(schedule, name=name, **fields)


class OfSchedules:
    """What suites of schedules give their tests."""

    @pytest.fixture
    def make(self) -> Make:
        """Return how to make an engine; a derived class says how."""
        raise NotImplementedError

    @pytest.fixture
    def s(self, make: Make) -> Iterator[Scheduling]:
        """Give a test an open store."""
        store = Store(make)
        try:
            scheduling = Scheduling(make, store)
            yield scheduling
            scheduling.check()
            store.counts()
        finally:
            store.close()
