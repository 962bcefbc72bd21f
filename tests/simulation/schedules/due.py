"""The due fire times and their expected outcomes, computed a second time from the saved changes and their times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.schedules.model import At, Cause, FireState, Reason, Schedule

from .plan import SECOND, excluded, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.schedules.model import Fire
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.store import Change
    from tests.simulation.fleet.content import Content

    from .rows import Changed

HORIZON_US = 200 * SECOND
"""Microseconds ahead in which a next fire time is searched."""
WRONG = 2.0
"""Seconds by which a node's clock may drift until it is corrected, without the error by a slow answer."""


class Expected(msgspec.Struct):
    """The expected state of a schedule."""

    schedule: Schedule
    next_us: int | None
    """The first undecided fire time, as far as it was computed."""
    taken_us: int = 0
    """The newest fire time that was decided or triggered."""
    stored: Stored | None = None
    pauses: list[list[int]] = []
    """Begin and end of each pause; an end of 0: still paused."""
    mixed: bool = False
    """Whether it was edited by a planner that had read an earlier schedule of this name."""
    respecified: bool = False
    """Whether it was changed in the current group."""
    rewound: bool = False
    """Whether a node has set it back in the current group, because its clock was: the answer to its question came late."""

    def paused_at(self, fire_us: int) -> bool:
        return any(since <= fire_us and (not until or fire_us < until) for since, until in self.pauses)


class DueTimes:
    """Follows each schedule from fire time to fire time. ``schedules`` has the existing ones, by name."""

    def __init__(self, content: Content, schedules: dict[str, Schedule]) -> None:
        self._content = content
        self._tables = content.tables
        self._schedules = schedules
        self._expected: dict[str, Expected] = {}
        self.passed_over: set[str] = set()
        """Schedules whose fire times were skipped in the current group, because one of the same name has decided them."""
        self._before: list[Schedule] = []
        """Specifications that were valid at the beginning of the current group, and not at its end."""

    # ---- changes ----

    def change(self, change: Change, now_us: int) -> None:
        """Record a committed change of a schedule."""
        name, schedule = change.name, change.schedule
        expected = self._expected.get(name)
        match change.kind:
            case "put" if expected is None:
                assert schedule is not None
                first_us = 0 if isinstance(schedule.trigger, At) else now_us
                self._expected[name] = Expected(schedule, _next(schedule, first_us), respecified=True)
                self._schedules[name] = schedule
            case "put":
                assert schedule is not None
                assert expected is not None
                saved, read = (tuple(map(int, one.args.split(b"."))) for one in (schedule, expected.schedule))
                # A schedule that is removed and added starts with the first version: edits of its predecessor may apply to it.
                expected.mixed = expected.mixed or saved[0] != read[0]
                right = expected.mixed or saved[1] == read[1] + 1
                assert right, f"an edit of {name} is lost: {read} was there, and this is {saved}"
                self._edit(expected, schedule, now_us)
                self._schedules[name] = schedule
            case "remove":
                assert expected is not None
                self._before.append(expected.schedule)
                del self._expected[name], self._schedules[name]
            case "pause":
                assert expected is not None
                self._pause(expected, now_us)
            case "resume":
                assert expected is not None
                expected.respecified = True
                if expected.pauses and not expected.pauses[-1][1]:
                    expected.pauses[-1][1] = max(now_us, expected.pauses[-1][0])
            case "rewind" if expected is not None:
                expected.rewound = True

    def _edit(self, expected: Expected, schedule: Schedule, now_us: int) -> None:
        before, expected.schedule, expected.respecified = expected.schedule, schedule, True
        self._before.append(before)
        rows = self._tables.fires.get(schedule.name, {})
        if expected.next_us is not None and expected.next_us <= now_us:
            for fire_us in times(before, expected.next_us, now_us):
                assert fire_us in rows, f"{fire_us} of {before} was due, and is not decided before it is changed"
                expected.taken_us = max(fire_us, expected.taken_us)
            expected.next_us = _next(before, now_us + 1)
        if _when(before) == _when(schedule):
            return
        expected.next_us = _next(schedule, 0 if isinstance(schedule.trigger, At) else now_us)
        if expected.next_us is not None and expected.next_us <= expected.taken_us:
            expected.next_us = _next(schedule, expected.taken_us + 1)

    @staticmethod
    def _pause(expected: Expected, now_us: int) -> None:
        expected.respecified = True
        if expected.pauses and not expected.pauses[-1][1]:
            return
        if expected.pauses and expected.next_us is not None and expected.next_us < expected.pauses[-1][1]:
            expected.pauses[-1][1] = 0  # the last pause is not processed yet: both count as one
        else:
            expected.pauses.append([now_us, 0])

    # ---- after each group ----

    def look(self, changed: Sequence[Changed], astray: float) -> None:
        """Check that each passed fire time has a row, and that each row is right and belongs to a fire time.

        ``astray`` is the error of a clock, in seconds, that slow answers may have caused.
        """
        assert self._tables.schedules.keys() == self._expected.keys(), "the schedules differ"
        self.passed_over.clear()
        batches: dict[str, list[Fire]] = {}
        for one in changed:
            if one.new and one.now.cause is Cause.TRIGGER:
                batches.setdefault(one.now.schedule, []).append(one.now)
        for batch in batches.values():
            self._check_batch(batch, self._content.wall() + WRONG + astray)
        for name, stored in self._tables.schedules.items():
            expected = self._expected[name]
            if stored is not expected.stored:
                self._check_state(expected, stored)
                expected.stored = stored
            expected.respecified = expected.rewound = False
        for row in (one.now for one in changed):
            if row.cause is Cause.MANUAL and row.root == row.schedule and row.schedule in self._expected:
                expected = self._expected[row.schedule]
                expected.taken_us = max(row.fire_us, expected.taken_us)
        self._before.clear()

    def _check_state(self, expected: Expected, stored: Stored) -> None:
        schedule, state, _ = stored
        rows = self._tables.fires.get(schedule.name, {})
        assert schedule == expected.schedule, f"{schedule} is stored, and {expected.schedule} was saved"
        if expected.stored is not None:
            assert state.version > expected.stored.state.version, (
                f"{schedule.name} has changed, and its version has not"
            )
        paused = bool(expected.pauses) and not expected.pauses[-1][1]
        assert state.paused == paused, f"{schedule.name} is{'' if state.paused else ' not'} paused"
        queued = sum(rows[at].state is FireState.WAITING for at in self._tables.unfinished.get(schedule.name, ()))
        assert state.queued == queued, f"{queued} rows of {schedule.name} wait, not {state.queued}"
        if expected.rewound and state.next_us is not None and state.next_us < (expected.next_us or state.next_us + 1):
            until_us = state.next_us + HORIZON_US if expected.next_us is None else expected.next_us - 1
            for fire_us in times(schedule, state.next_us, until_us):
                assert fire_us in rows, f"{schedule.name} goes back to {fire_us}, which was not decided"
            expected.next_us = state.next_us
            return
        if expected.next_us is None:
            assert state.next_us is None, f"{schedule.name} fires after its end"
            return
        if expected.mixed and state.next_us is not None and state.next_us <= expected.taken_us < expected.next_us:
            return  # the edit of its predecessor was delayed: the next operation goes on behind what has been decided
        until_us = expected.next_us + HORIZON_US if state.next_us is None else state.next_us
        passed = times(schedule, expected.next_us, until_us)
        if state.next_us is not None:
            assert passed, f"{schedule.name} goes back, or fires at times of others: {state.next_us}"
            assert passed.pop() == state.next_us, f"{schedule.name} fires at times of others: {state.next_us}"
        for fire_us in passed:
            assert fire_us in rows, f"{schedule.name} has missed {fire_us}"
            expected.taken_us = max(fire_us, expected.taken_us)
        expected.next_us = state.next_us

    def _check_batch(self, batch: list[Fire], until: float) -> None:
        """Check the outcomes of fire times of a schedule that were decided in one group."""
        name = batch[0].schedule
        expected = self._expected.get(name)
        specified = [one for one in self._before if one.name == name]
        if expected is not None:
            specified.append(expected.schedule)
        for row in batch:
            right = any(times(schedule, row.fire_us, row.fire_us) for schedule in specified)
            assert right, f"no fire time: {row} of {specified}"
            assert row.fire_us <= until * SECOND, f"{row.fire_us / SECOND - until} s too early: {row}"
        if expected is None or expected.respecified:
            return
        schedule, able = expected.schedule, []
        batch.sort(key=lambda row: row.fire_us)
        for row in batch:
            if expected.paused_at(row.fire_us):
                assert row.reason is Reason.PAUSED, f"it is paused: {row}"
            elif excluded(schedule, row.fire_us):
                assert row.reason is Reason.EXCLUDED, f"it is excluded: {row}"
            else:
                assert row.reason in {None, Reason.MISFIRE, Reason.OVERLAP, Reason.REMOVED}, (
                    f"nothing keeps it back: {row}"
                )
                able.append(row)
        next_us = self._tables.schedules[name].state.next_us
        if expected.next_us is not None:
            passed = times(schedule, expected.next_us, batch[-1].fire_us if next_us is None else next_us - 1)
            if set(passed) != {row.fire_us for row in batch}:
                self.passed_over.add(name)
                return
        decided = {row.decided_us for row in able if row.reason not in {Reason.OVERLAP, Reason.REMOVED}}
        if not decided:
            return  # other runs have replaced them since, which is another decision
        (decided_us,) = decided
        # Those that are left to the next operation are newer, and take precedence.
        left = [] if next_us is None else times(schedule, next_us, decided_us)
        due = [row.fire_us for row in able]
        due += [one for one in left if not expected.paused_at(one) and not excluded(schedule, one)]
        late = [fire_us for fire_us in due if fire_us < decided_us - schedule.misfire_after * SECOND]
        missed = _missed(schedule, len(late), len(due) - len(late))
        for number, row in enumerate(able):
            assert (row.reason is Reason.MISFIRE) == (number < missed), f"{missed} of {len(able)} are missed: {row}"


def _missed(schedule: Schedule, late: int, in_time: int) -> int:
    match schedule.misfire:
        case "all":
            return 0
        case "skip":
            return late
        case "once":
            wanted = 1
        case number:
            assert isinstance(number, int)
            wanted = number
    return late - min(max(wanted - in_time, 0), late)


def _when(schedule: Schedule) -> tuple[object, ...]:
    return schedule.trigger, schedule.start_us, schedule.end_us


def _next(schedule: Schedule, from_us: int) -> int | None:
    if isinstance(schedule.trigger, At):
        found = times(schedule, from_us, schedule.trigger.at_us)
    else:
        found = times(schedule, from_us, max(from_us, schedule.start_us or 0) + HORIZON_US)
    return found[0] if found else None
