"""The valid changes of a row, and the one job of each fire time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.jobs.model import State
from mainspring.schedules.model import Fire, FireState, Overlap, Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.model import Job
    from mainspring.schedules.model import Schedule
    from mainspring.schedules.store import Key

_LIVE = frozenset({FireState.FIRED, FireState.JOINED})


class Changed(NamedTuple):
    """A row before and after a group."""

    before: Fire | None
    now: Fire

    @property
    def new(self) -> bool:
        return self.before is None

    @property
    def arrived(self) -> bool | None:
        """Return whether its run has succeeded, if this group decided it; otherwise None."""
        if _ended(self.now) is None or (self.before is not None and _ended(self.before) is not None):
            return None
        return _ended(self.now)


def _ended(row: Fire) -> bool | None:
    if row.state is FireState.SKIPPED:
        return False
    return row.outcome == "succeeded" if row.outcome else None


class Rows:
    """All rows after the last group."""

    def __init__(self, tables: Tables, redriven: Collection[int]) -> None:
        self._tables = tables
        self._redriven = redriven
        """Jobs that were redriven after their end; their row no longer follows them."""
        self.rows: dict[str, dict[int, Fire]] = {}
        self._jobs: dict[Key, int] = {}
        """The job that each fire time created."""

    def created(self, job: Job) -> None:
        """Record a job that the store has created."""
        assert job.options is not None
        assert job.options.schedule is not None
        key = (job.options.schedule, job.options.fire_us)
        assert key not in self._jobs, f"{key} has two jobs, {self._jobs[key]} and {job.id}"
        self._jobs[key] = job.id

    def look(self) -> list[Changed]:
        """Return the changes since the last call."""
        changed = []
        for name, stored in self._tables.fires.items():
            rows = self.rows.setdefault(name, {})
            assert len(stored) >= len(rows), f"a row of {name} is gone"
            for fire_us, row in stored.items():
                before = rows.get(fire_us)
                if before is not row:
                    changed.append(Changed(before, row))
                    rows[fire_us] = row
        for one in changed:
            self._check(one)
        for name, times in self._tables.unfinished.items():
            for fire_us in times:
                self._check_job(self.rows[name][fire_us])
        return changed

    def _check(self, changed: Changed) -> None:
        before, row = changed
        what = f"{before} is now {row}"
        assert (row.job != 0) == (row.state in _LIVE), what
        assert (row.reason is not None) == (row.state is FireState.SKIPPED), what
        if row.state is FireState.FIRED:
            assert self._jobs.get((row.schedule, row.fire_us)) == row.job, f"{row} has another's job"
        self._check_job(row)
        if before is None:
            return
        assert before.state is not FireState.SKIPPED, f"decided again: {what}"
        assert row.children_left <= before.children_left, what
        assert row.cause is before.cause, what
        if before.state is FireState.WAITING:
            assert row.state is not FireState.SKIPPED or row.reason in {Reason.OVERLAP, Reason.REMOVED}, what
        else:
            assert (row.state, row.job) == (before.state, before.job), f"decided again: {what}"
        if before.outcome:
            assert (row.outcome, row.ended_us) == (before.outcome, before.ended_us), f"it ends twice: {what}"

    def _check_job(self, row: Fire) -> None:
        """Check that a run with its own job ends with it, in the same transaction."""
        job = self._tables.jobs.get(row.job)
        if job is None or job.id in self._redriven:
            return
        ended = State(job.state).ended
        assert ended or not row.outcome, f"{row} has ended before its job"
        if ended and job.options is not None and job.options.schedule is not None:
            # A joined job may belong to another row; such rows are repaired later.
            assert row.outcome, f"{row} goes on after the end of its job"
        if row.outcome and row.state is FireState.FIRED:
            assert row.outcome == State(job.state).name.lower(), f"{row} has another outcome than its job"
            assert row.attempt == job.attempt, f"{row} has another attempt than its job"

    def whole(self) -> None:
        """Check at the end that each created job belongs to a row, and that no run is in progress."""
        for (name, fire_us), job in self._jobs.items():
            assert self.rows[name][fire_us].job == job, f"{job} belongs to no row"
        for rows in self.rows.values():
            assert all(row.finished for row in rows.values())

    # ---- overlap ----

    def check_overlap(self, changed: Sequence[Changed], schedules: Mapping[str, Schedule]) -> None:
        """Check that runs overlap only if allowed, and that a run is skipped or waits only for that reason."""
        for name in {one.now.schedule for one in changed}:
            schedule = schedules.get(name)
            if schedule is None or schedule.overlap is Overlap.ALLOW:
                continue
            unfinished = [self.rows[name][at] for at in self._tables.unfinished.get(name, ())]
            live = [row for row in unfinished if row.live]
            waiting = [row.fire_us for row in unfinished if row.state is FireState.WAITING]
            assert len(live) <= 1, f"{name} overlaps: {live}"
            assert not waiting or live, f"{name} waits behind nothing"
            mine = [one for one in changed if one.now.schedule == name]
            was_live = bool(live) or any(one.now.live or (one.before is not None and one.before.live) for one in mine)
            was_live = was_live or any(one.now.outcome for one in mine)
            for one in mine:
                self._check_kept_back(one, schedule, was_live=was_live)
                started = one.now.state in _LIVE and one.before is not None and one.before.state is FireState.WAITING
                if started and schedule.overlap is Overlap.QUEUE:
                    new = {other.now.fire_us for other in mine if other.new}
                    first = min(set(waiting) - new, default=one.now.fire_us)
                    assert first >= one.now.fire_us, f"{one.now} has overtaken the one of {first}"
            if schedule.overlap is Overlap.REPLACE:
                assert len(waiting) <= 1, f"more than one wait to replace a run of {name}"
                able = [one.now for one in mine if one.new and one.now.reason in {None, Reason.OVERLAP}]
                newest = able and all(row.reason is Reason.OVERLAP for row in able)
                assert not newest, f"the newest does not run: {able[-1]}"

    @staticmethod
    def _check_kept_back(one: Changed, schedule: Schedule, *, was_live: bool) -> None:
        row = one.now
        if row.reason is Reason.OVERLAP:
            assert schedule.overlap is not Overlap.QUEUE, f"{row} is skipped instead of queued"
            assert was_live or schedule.overlap is Overlap.REPLACE, f"{row} is skipped, and nothing runs"
        elif row.state is FireState.WAITING:
            assert schedule.overlap is not Overlap.FORBID, f"{row} waits instead of being skipped"
            assert was_live, f"{row} waits, and nothing runs"
