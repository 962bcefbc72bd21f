"""Which fire times are due, and what has to become of each: decided a second time, from what was saved and when."""

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
"""As far ahead a next fire time is looked for."""
WRONG = 2.0
"""Seconds by which a node's clock may go wrong until it is put right, besides what a slow answer makes of it."""


class Known(msgspec.Struct):
    """What is known of a schedule that is there."""

    schedule: Schedule
    next_us: int | None
    """The first fire time that has not been decided, as far as it was looked at."""
    taken_us: int = 0
    """The newest that was decided, or was made by hand."""
    stored: Stored | None = None
    pauses: list[list[int]] = []
    """Since when and until when it was paused; 0: it still is."""
    mixed: bool = False
    """It was edited by somebody who had read another one of this name."""
    respecified: bool = False
    """In the group under way."""

    def paused_at(self, fire_us: int) -> bool:
        return any(since <= fire_us and (not until or fire_us < until) for since, until in self.pauses)


class DueTimes:
    """Goes with each schedule from fire time to fire time. ``schedules`` has those that are there, by name."""

    def __init__(self, content: Content, schedules: dict[str, Schedule]) -> None:
        self._content = content
        self._tables = content.tables
        self._schedules = schedules
        self._known: dict[str, Known] = {}
        self.passed_over: set[str] = set()
        """Schedules whose fire times were passed over in the group under way: one of the same name has decided them."""
        self._before: list[Schedule] = []
        """Specifications that counted at the beginning of the group under way, and do not at its end."""

    # ---- changes ----

    def change(self, change: Change, now_us: int) -> None:
        """A change of a schedule was committed."""
        name, schedule = change.name, change.schedule
        known = self._known.get(name)
        match change.kind:
            case "put" if known is None:
                assert schedule is not None
                first_us = 0 if isinstance(schedule.trigger, At) else now_us
                self._known[name] = Known(schedule, _next(schedule, first_us), respecified=True)
                self._schedules[name] = schedule
            case "put":
                assert schedule is not None
                assert known is not None
                said, read = (tuple(map(int, one.args.split(b"."))) for one in (schedule, known.schedule))
                # Versions begin again where one of this name was removed and added: edits of the former may count for it.
                known.mixed = known.mixed or said[0] != read[0]
                right = known.mixed or said[1] == read[1] + 1
                assert right, f"an edit of {name} is lost: {read} was there, and this is {said}"
                self._edit(known, schedule, now_us)
                self._schedules[name] = schedule
            case "remove":
                assert known is not None
                self._before.append(known.schedule)
                del self._known[name], self._schedules[name]
            case "pause":
                assert known is not None
                self._pause(known, now_us)
            case "resume":
                assert known is not None
                known.respecified = True
                if known.pauses and not known.pauses[-1][1]:
                    known.pauses[-1][1] = max(now_us, known.pauses[-1][0])

    def _edit(self, known: Known, schedule: Schedule, now_us: int) -> None:
        before, known.schedule, known.respecified = known.schedule, schedule, True
        self._before.append(before)
        rows = self._tables.fires.get(schedule.name, {})
        if known.next_us is not None and known.next_us <= now_us:
            for fire_us in times(before, known.next_us, now_us):
                assert fire_us in rows, f"{fire_us} of {before} was due, and is not decided before it is changed"
                known.taken_us = max(fire_us, known.taken_us)
            known.next_us = _next(before, now_us + 1)
        if _when(before) == _when(schedule):
            return
        known.next_us = _next(schedule, 0 if isinstance(schedule.trigger, At) else now_us)
        if known.next_us is not None and known.next_us <= known.taken_us:
            known.next_us = _next(schedule, known.taken_us + 1)

    @staticmethod
    def _pause(known: Known, now_us: int) -> None:
        known.respecified = True
        if known.pauses and not known.pauses[-1][1]:
            return
        if known.pauses and known.next_us is not None and known.next_us < known.pauses[-1][1]:
            known.pauses[-1][1] = 0  # the last one is not worked off yet: both count as one
        else:
            known.pauses.append([now_us, 0])

    # ---- after each group ----

    def look(self, changed: Sequence[Changed], astray: float) -> None:
        """Each fire time that was passed has its row, each row is that of a fire time, and says what is so.

        ``astray`` is by how many seconds slow answers may have put a clock wrong.
        """
        assert self._tables.schedules.keys() == self._known.keys(), "other schedules are there"
        self.passed_over.clear()
        batches: dict[str, list[Fire]] = {}
        for one in changed:
            if one.new and one.now.cause is Cause.TRIGGER:
                batches.setdefault(one.now.schedule, []).append(one.now)
        for batch in batches.values():
            self._check_batch(batch, self._content.wall() + WRONG + astray)
        for name, stored in self._tables.schedules.items():
            known = self._known[name]
            if stored is not known.stored:
                self._check_state(known, stored)
                known.stored = stored
            known.respecified = False
        for row in (one.now for one in changed):
            if row.cause is Cause.MANUAL and row.root == row.schedule and row.schedule in self._known:
                known = self._known[row.schedule]
                known.taken_us = max(row.fire_us, known.taken_us)
        self._before.clear()

    def _check_state(self, known: Known, stored: Stored) -> None:
        schedule, state = stored
        rows = self._tables.fires.get(schedule.name, {})
        assert schedule == known.schedule, f"{schedule} is stored, and {known.schedule} was said"
        if known.stored is not None:
            assert state.version > known.stored.state.version, f"{schedule.name} has changed, and its version has not"
        paused = bool(known.pauses) and not known.pauses[-1][1]
        assert state.paused == paused, f"{schedule.name} is{'' if state.paused else ' not'} paused"
        queued = sum(rows[at].state is FireState.WAITING for at in self._tables.unfinished.get(schedule.name, ()))
        assert state.queued == queued, f"{queued} rows of {schedule.name} wait, not {state.queued}"
        if known.next_us is None:
            assert state.next_us is None, f"{schedule.name} fires after its end"
            return
        until_us = known.next_us + HORIZON_US if state.next_us is None else state.next_us
        passed = times(schedule, known.next_us, until_us)
        if state.next_us is not None:
            assert passed, f"{schedule.name} goes back, or fires at times of others: {state.next_us}"
            assert passed.pop() == state.next_us, f"{schedule.name} fires at times of others: {state.next_us}"
        for fire_us in passed:
            assert fire_us in rows, f"{schedule.name} has missed {fire_us}"
            known.taken_us = max(fire_us, known.taken_us)
        known.next_us = state.next_us

    def _check_batch(self, batch: list[Fire], until: float) -> None:
        """See what became of the fire times of a schedule that were decided together."""
        name = batch[0].schedule
        known = self._known.get(name)
        specified = [one for one in self._before if one.name == name]
        if known is not None:
            specified.append(known.schedule)
        for row in batch:
            right = any(times(schedule, row.fire_us, row.fire_us) for schedule in specified)
            assert right, f"no fire time: {row} of {specified}"
            assert row.fire_us <= until * SECOND, f"{row.fire_us / SECOND - until} s too early: {row}"
        if known is None or known.respecified:
            return
        schedule, able = known.schedule, []
        batch.sort(key=lambda row: row.fire_us)
        for row in batch:
            if known.paused_at(row.fire_us):
                assert row.reason is Reason.PAUSED, f"it is paused: {row}"
            elif excluded(schedule, row.fire_us):
                assert row.reason is Reason.EXCLUDED, f"it is excluded: {row}"
            else:
                assert row.reason in {None, Reason.MISFIRE, Reason.OVERLAP, Reason.REMOVED}, (
                    f"nothing keeps it back: {row}"
                )
                able.append(row)
        next_us = self._tables.schedules[name].state.next_us
        if known.next_us is not None:
            passed = times(schedule, known.next_us, batch[-1].fire_us if next_us is None else next_us - 1)
            if set(passed) != {row.fire_us for row in batch}:
                self.passed_over.add(name)
                return
        decided = {row.decided_us for row in able if row.reason not in {Reason.OVERLAP, Reason.REMOVED}}
        if not decided:
            return  # others have taken their place since, which counts as another decision
        (decided_us,) = decided
        late = [row for row in able if row.fire_us < decided_us - schedule.misfire_after * SECOND]
        missed = _missed(schedule, len(late), len(able) - len(late))
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
