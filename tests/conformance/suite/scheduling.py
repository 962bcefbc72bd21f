"""A driver of an engine's schedules for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
from msgspec.structs import replace

from mainspring.jobs.model import Job, State
from mainspring.jobs.rules import Event, Settlement
from mainspring.queries import ListFires
from mainspring.schedules import store as ops
from mainspring.schedules.model import At, Every, Fire, FireState, Schedule, Trigger
from tests.conformance.suite.driver import NO_LIMIT, Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mainspring.schedules.reconcile import Stored
    from tests.conformance.suite.driver import Make

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
        """Use the lifecycle of the engine that was just opened."""
        self.lifecycle = self.store.lifecycle

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
        """Return the operation that changes schedules."""
        return ops.SaveSchedules(changes, self.now_us)

    def put(self, *schedules: Schedule) -> None:
        """Add or change schedules."""
        versions = {stored.schedule.name: stored.state.version for stored in self.read()}
        saved = self.save(*(ops.Change("put", one.name, versions.get(one.name, 0), one) for one in schedules))
        assert saved.error is None, saved.error

    def add(self, name: str, **fields: Any) -> Schedule:
        """Add a schedule; without a trigger and parents it fires every minute."""
        fields = {"function": name.encode(), "trigger": None if fields.get("parents") else Every(MINUTE)} | fields
        schedule = Schedule(name=name, **fields)
        self.put(schedule)
        return schedule

    def change(self, kind: Literal["pause", "resume", "remove", "rewind"], name: str) -> ops.Saved:
        """Pause, resume or remove a schedule."""
        return self.save(ops.Change(kind, name))

    def due(self, until_us: int | None = None, limit: int = NO_LIMIT) -> ops.Upcoming:
        """Return the schedules that are due."""
        until_us = self.now_us if until_us is None else until_us
        (found,) = self.group(ops.FindDue(until_us, limit))
        assert isinstance(found, ops.Upcoming)
        return found

    def firing(self, *names: str, limit: int = 1000) -> ops.FireSchedules:
        """Return the operation that fires the due schedules, all or some."""
        due = [one for one, _ in self.due().due if not names or one.name in names]
        return ops.FireSchedules(due, self.now_us, limit)

    def fire(self, *names: str) -> dict[str, ops.Fired]:
        """Fire schedules until none is due."""
        fired: dict[str, ops.Fired] = {}
        while True:
            operation = self.firing(*names)
            if not operation.due:
                return fired
            (outcome,) = self.group(operation)
            assert all(one.won for one in outcome.values())
            fired |= outcome

    def at(self, minute: float) -> None:
        """Set the time to a number of minutes after the start."""
        self.now_us = START + round(minute * MINUTE)

    def trigger(self, name: str) -> Fire | None:
        """Run a schedule by hand."""
        (row,) = self.group(ops.TriggerSchedule(name, self.now_us))
        assert row is None or isinstance(row, Fire)
        return row

    def repair(self, limit: int = 1000) -> int:
        """Repair states that no transaction could see."""
        (number,) = self.group(ops.RepairSchedules(self.now_us, limit))
        assert isinstance(number, int)
        return number

    def declare(self, app: str, digest: bytes, others: Sequence[str] = ()) -> list[ops.Declared]:
        """Declare schedules of an App."""
        (declared,) = self.group(ops.Declare(app, digest, self.now_us, others))
        return sorted(declared)

    # ---- jobs ----

    def claim(self, name: str) -> list[Job]:
        """Claim all jobs of a schedule's own function: one claim may skip jobs that other nodes have just stored."""
        jobs: list[Job] = []
        while more := self.store.claim(name.encode()):
            jobs += more
        return jobs

    def running(self, name: str) -> Job:
        """Claim the one pending job of a schedule."""
        (job,) = self.claim(name)
        return job

    def settlement(self, job: Job, event: Event = Event.SUCCEED, **values: Any) -> Settlement:
        """Return the settlement of a job by a worker called ``w``."""
        times = {"started_us": self.now_us - 1, "ended_us": self.now_us}
        return Settlement(job, event, job.attempt + 1, worker="w", **{**times, **values})

    def end(self, job: Job, event: Event = Event.SUCCEED, **values: Any) -> None:
        """Settle a claimed job."""
        assert self.store.settle(self.settlement(job, event, **values)) == set()

    def run(self, name: str, event: Event = Event.SUCCEED) -> None:
        """Claim and settle the one pending job of a schedule."""
        self.end(self.running(name), event)

    # ---- reading ----

    def read(self, *names: str) -> list[Stored]:
        """List schedules."""
        return self.store.all_of(ops.ListSchedules(limit=NO_LIMIT, names=names or None))

    def stored(self, name: str) -> Stored:
        """Return a schedule."""
        (stored,) = self.read(name)
        return stored

    def history(self, name: str, **which: Any) -> list[Fire]:
        """Return the fire times of a schedule, oldest first."""
        return self.store.all_of(ListFires(name, **{"limit": NO_LIMIT, **which}))[::-1]

    def outcomes(self, name: str) -> list[str]:
        """Return the outcomes of a schedule's fire times, each as one word, oldest first."""
        return [_outcome(row) for row in self.history(name)]

    def check(self) -> None:
        """Check invariants: each fired row has a job of its own, and the lifecycle's record is true."""
        owned: dict[int, Fire] = {}
        for stored in self.read():
            rows = self.history(stored.schedule.name)
            assert len({row.fire_us for row in rows}) == len(rows)
            assert stored.state.queued == sum(row.state is FireState.WAITING for row in rows)
            for row in rows:
                assert (row.job != 0) == (row.state in {FireState.FIRED, FireState.JOINED})
                if row.state is FireState.FIRED:
                    assert row.job not in owned, "a job belongs to one fire time"
                    owned[row.job] = row
        scheduled = [job for job in self.store.list() if job.options is not None and job.options.schedule is not None]
        for job in scheduled:
            assert job.options is not None
            if job.id in owned:  # otherwise its schedule was removed
                row = owned[job.id]
                assert (job.options.schedule, job.options.fire_us) == (row.schedule, row.fire_us)
                assert (row.outcome != "") == State(job.state).ended, f"{row} has the job {job}"
        assert sorted(self.lifecycle.live) == sorted(self.lifecycle.committed)


def _outcome(row: Fire) -> str:
    if row.state is FireState.SKIPPED:
        return f"{row.reason}"
    if row.outcome:
        return row.outcome if row.finished else f"{row.outcome}, {row.children_left} left"
    return row.state.value


def at(minute: int) -> Trigger:
    """Return the trigger that fires once, at a number of minutes after the start."""
    return At(START + minute * MINUTE)


def named(schedule: Schedule, name: str, **fields: Any) -> Schedule:
    """Return a schedule with another name, and other fields."""
    return replace(schedule, name=name, **fields)


class ScheduleFixtures:
    """The fixtures of schedule suites."""

    @pytest.fixture
    def make(self) -> Make:
        """Return a function that makes an engine; a derived class defines it."""
        raise NotImplementedError

    @pytest.fixture
    def s(self, make: Make) -> Iterator[Scheduling]:
        """Yield a driver of an open store."""
        store = Store(make)
        try:
            scheduling = Scheduling(make, store)
            yield scheduling
            scheduling.check()
            store.counts()
        finally:
            store.close()
