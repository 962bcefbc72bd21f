"""Decisions on fire times: pure functions of a schedule, its state, and the time; also on past fire times, for backfills."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from mainspring.jobs.rules import duration_us
from mainspring.schedules import triggers
from mainspring.schedules.model import Cause, Fire, FireState, Origin, Overlap, Reason, ScheduleState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.schedules.model import Schedule
    from mainspring.schedules.reconcile import Stored

STEP_ROWS = 1000
"""Rows of one step, by default."""

MOST_ROWS = 100
"""The most successive skipped times that have rows of their own."""

MAX_QUEUED = 1000
"""With ``queue``: the fire times that may wait behind a run. More are skipped, because a slow schedule would queue for ever."""

MAX_MISFIRES = 1000
"""The largest number that ``misfire`` may be."""


CLOCKS_DIFFER_US = 5_000_000
"""Times that lie ahead by less may be those of another node, and come soon."""

_STEP_US = 1_000_000
"""Triggers by hand come closer together than this. A larger difference to the last one shows that the clock was set back."""


class Step(NamedTuple):
    """The changes of one decision, written in one transaction if the stored version is ``state.version - 1``."""

    fires: list[Fire]
    """New rows, in the order of their fire times. FIRED rows need a job that is due at ``due_us``; if it joins a live job of the
    same unique, the row becomes JOINED."""
    state: ScheduleState
    cancel: bool = False
    """Cancel the runs of this schedule that are under way (``replace``)."""
    drop_waiting: bool = False
    """Its earlier WAITING rows become SKIPPED with the reason overlap: a newer one has replaced them."""
    more: bool = False
    """More fire times are due: step again immediately."""


# ---- states of schedules ----


def created(
    schedule: Schedule,
    now_us: int,
    *,
    origin: Origin = Origin.CODE,
    app: str = "",
    declared: bytes = b"",
    forgotten_us: int = 0,
    first_us: int | UnsetType | None = UNSET,
) -> ScheduleState:
    """Return the state of a new schedule: its first fire time is in the future (``triggers.first`` handles a past ``At``).

    ``forgotten_us`` is the newest fire time whose row was deleted, of earlier schedules of this name. ``first_us`` is the result
    of ``triggers.first`` if the caller has it already.
    """
    next_us = triggers.first(schedule, now_us) if first_us is UNSET else first_us
    return ScheduleState(next_us=next_us, origin=origin, app=app, declared=declared, forgotten_us=forgotten_us)


def changed(
    before: Schedule,
    after: Schedule,
    state: ScheduleState,
    now_us: int,
    first_us: int | UnsetType | None = UNSET,
) -> ScheduleState:
    """Return the state of a schedule with a new specification; ``first_us`` as in `created`.

    If its times change, the new ones apply from now on. The caller must have decided the due times under the old ones: it steps
    with ``before`` until there is no ``more``. If its times stay, no fire time is lost or repeated.
    """
    following = replace(state, version=state.version + 1)
    if _times(before) == _times(after):
        return following
    next_us = triggers.first(after, now_us) if first_us is UNSET else first_us
    # Not later than now: if the clock was ahead, rows may lie ahead, and `consequences.apply_step` goes by them.
    taken_us = min(max(state.last_us, state.triggered_us), now_us)
    if next_us is not None and next_us <= taken_us:
        next_us = triggers.next_after(after, taken_us)
    return replace(following, next_us=next_us)


def _times(schedule: Schedule) -> tuple[object, ...]:
    return schedule.trigger, schedule.timezone, schedule.start_us, schedule.end_us


def paused(state: ScheduleState, now_us: int) -> ScheduleState:
    """Pause: fire times from now on are skipped. Return the same state if it is paused already.

    If fire times of an earlier pause are still undecided, both count as one pause.
    """
    if state.paused:
        return state
    undecided = state.next_us is not None and state.next_us < state.resumed_us
    since = state.paused_us if undecided else max(now_us, 1)
    return replace(state, version=state.version + 1, paused_us=since, resumed_us=0)


def resumed(state: ScheduleState, now_us: int) -> ScheduleState:
    """Resume: fire times from now on run again, those of the pause stay skipped. Return the same state if it is not paused."""
    if not state.paused:
        return state
    return replace(state, version=state.version + 1, resumed_us=max(now_us, state.paused_us))


def rewound(schedule: Schedule, state: ScheduleState, now_us: int, before_us: int = 0) -> ScheduleState:
    """Return the state after the clock was set back: nothing in it waits for a time at which the clock was wrong.

    Fire times that were decided while the clock was ahead come once more. Those that ran have a row that shows it, and do not run
    again; those that were skipped may run now. ``before_us`` is the time that the clock showed before; 0: unknown. All fire times
    up to it are decided, in case that the clock was right then and is corrected later. Return the same state if the clock has
    left nothing in it.
    """
    next_us, last_us = triggers.next_after(schedule, now_us), state.last_us
    limit_us = now_us + CLOCKS_DIFFER_US
    if next_us is None or (state.next_us is not None and state.next_us <= max(next_us, limit_us)):
        next_us = state.next_us
    else:
        last_us = max(
            last_us, before_us if state.next_us is None else min(before_us, state.next_us - 1)
        )  # see `decide`
    paused_us, resumed_us, forgotten_us = (
        now_us if at_us > limit_us else at_us for at_us in (state.paused_us, state.resumed_us, state.forgotten_us)
    )
    if (next_us, paused_us, resumed_us, forgotten_us) == (
        state.next_us,
        state.paused_us,
        state.resumed_us,
        state.forgotten_us,
    ):
        return state
    return replace(
        state,
        version=state.version + 1,
        next_us=next_us,
        last_us=last_us,
        paused_us=paused_us,
        resumed_us=resumed_us,
        forgotten_us=forgotten_us,
    )


# ---- absence ----


def watch(before: Stored | None, after: Stored, *, started: bool) -> int:
    """Return the time by which a schedule should start a job next after a change of it: ``ScheduleState.late_us``.

    ``started`` is whether it has just started a job. Without one, the time stays as it is while fire times go by: it is that of
    the first of them. A schedule that is late stays silent until it starts a job.
    """
    schedule, state = after.schedule, after.state
    if schedule.start_within is None or state.paused:
        return 0
    is_fresh = (
        before is None
        or before.state.paused
        or before.schedule.start_within != schedule.start_within
        or _times(before.schedule) != _times(schedule)
    )
    known_us = 0 if before is None else before.state.late_us
    if not (started or is_fresh or known_us > 0):
        return known_us
    next_us = state.next_us
    if next_us is not None and is_fresh and next_us <= state.resumed_us:
        # The times of the pause are not decided yet, and start nothing.
        next_us = triggers.next_after(schedule, state.resumed_us)
    if next_us is not None and triggers.excluded(schedule, next_us):
        next_us = next(triggers.running_times(schedule, next_us, next_us + _YEAR_US), None)
    following_us = 0 if next_us is None else next_us + duration_us(schedule.start_within)
    if started or is_fresh:
        return following_us
    return min(known_us, following_us or known_us)  # the clock may have been set back


_YEAR_US = 366 * 86_400_000_000


# ---- due fire times ----


def decide(
    schedule: Schedule, state: ScheduleState, now_us: int, *, live: bool, limit: int = STEP_ROWS, ranges: bool = True
) -> Step | None:
    """Decide the oldest ``limit`` due fire times; return None if none is due.

    ``live`` is whether a run of this schedule is under way: one of its rows is ``Fire.live``. ``ranges`` is whether many skipped
    times may share a row: then it is the step's only one.
    """
    if state.next_us is None or state.next_us > now_us:
        return None
    if state.next_us <= state.last_us < now_us:
        # The clock was set back, and is now past all that was decided before: go on behind that.
        next_us = triggers.next_after(schedule, state.last_us)
        state = replace(state, next_us=next_us)
        if next_us is None or next_us > now_us:
            return Step([], replace(state, version=state.version + 1))
    due = list(islice(_due(schedule, state, now_us), limit + 1))
    more = len(due) > limit
    if ranges and (more or len(due) > MOST_ROWS) and (step := _skip_range(schedule, state, now_us)) is not None:
        return step
    following = due[limit] if more else triggers.next_after(schedule, due[-1])
    due = due[:limit]
    reasons = {fire_us: reason for fire_us in due if (reason := _skip_reason(schedule, state, fire_us)) is not None}
    for fire_us in _missed(schedule, state, [one for one in due if one not in reasons], due[-1], now_us):
        reasons[fire_us] = Reason.MISFIRE
    builder = _StepBuilder(schedule, state, live=live)
    running = [fire_us for fire_us in due if fire_us not in reasons]
    for fire_us in due:
        reason = reasons.get(fire_us)
        if reason is None:
            builder.run(_row(schedule, fire_us, now_us), superseded=fire_us != running[-1])
        else:
            builder.skip(_row(schedule, fire_us, now_us), reason)
    return builder.step(next_us=following, last_us=max(due[-1], state.last_us), more=more)


def _due(schedule: Schedule, state: ScheduleState, now_us: int) -> Iterator[int]:
    assert state.next_us is not None
    yield state.next_us
    yield from triggers.fire_times(schedule, state.next_us, now_us)


def _skip_range(schedule: Schedule, state: ScheduleState, now_us: int) -> Step | None:
    """Skip the first due times together, if there are many; those on excluded days among them count as missed, too."""
    first_us, found = state.next_us, _skipped_until(schedule, state, now_us)
    assert first_us is not None
    if found is None or first_us <= state.forgotten_us:
        return None
    until_us, reason = found
    if next(islice(_due(schedule, state, until_us), MOST_ROWS, None), None) is None:
        return None
    (last_us,) = triggers.newest(
        lambda after_us: triggers.fire_times(schedule, after_us, until_us), first_us, until_us, 1
    )
    row = replace(_row(schedule, first_us, now_us), until_us=last_us)
    builder = _StepBuilder(schedule, state, live=False)
    builder.skip(row, reason)
    following = triggers.next_after(schedule, last_us)
    more = following is not None and following <= now_us
    return builder.step(next_us=following, last_us=max(last_us, state.last_us), more=more)


def _skipped_until(schedule: Schedule, state: ScheduleState, now_us: int) -> tuple[int, Reason] | None:
    """Return the time up to which all due times are skipped for one reason; None: the first one may run."""
    first_us = state.next_us
    assert first_us is not None
    if _in_pause(state, first_us):
        return (now_us if state.paused else min(state.resumed_us - 1, now_us)), Reason.PAUSED
    wanted = _allowed_misfires(schedule)
    if wanted is None:
        return None
    until_us = now_us - round(schedule.misfire_after * 1_000_000) - 1
    if wanted:
        times = triggers.newest(lambda after_us: _able(schedule, state, after_us, now_us), first_us - 1, now_us, wanted)
        if len(times) < wanted:
            return None
        until_us = min(until_us, times[0] - 1)
    if first_us < state.paused_us:
        until_us = min(until_us, state.paused_us - 1)
    return (until_us, Reason.MISFIRE) if first_us <= until_us else None


def _skip_reason(schedule: Schedule, state: ScheduleState, fire_us: int) -> Reason | None:
    if fire_us <= state.forgotten_us:
        return Reason.MISFIRE  # it may have run: its row may have been deleted
    if _in_pause(state, fire_us):
        return Reason.PAUSED
    if triggers.excluded(schedule, fire_us):
        return Reason.EXCLUDED
    return None


def _in_pause(state: ScheduleState, fire_us: int) -> bool:
    return state.paused_us != 0 and state.paused_us <= fire_us and (state.paused or fire_us < state.resumed_us)


def _missed(schedule: Schedule, state: ScheduleState, able: list[int], last_us: int, now_us: int) -> list[int]:
    """Return the times among ``able`` (the times of this step that could run) that are too late to run under ``misfire``.

    ``last_us`` is the end of the step: newer due times take precedence over the times in it.
    """
    wanted = _allowed_misfires(schedule)
    if wanted is None:
        return []
    in_time_us = now_us - round(schedule.misfire_after * 1_000_000)
    late = [fire_us for fire_us in able if fire_us < in_time_us]
    newer = len(able) - len(late) + sum(1 for _ in islice(_able(schedule, state, last_us, now_us), wanted))
    return late[: max(len(late) - max(wanted - newer, 0), 0)]


def _allowed_misfires(schedule: Schedule) -> int | None:
    match schedule.misfire:
        case "skip":
            return 0
        case "once":
            return 1
        case "all":
            return None
        case number:
            assert isinstance(number, int)
            return number


def _able(schedule: Schedule, state: ScheduleState, after_us: int, until_us: int) -> Iterator[int]:
    """Yield the fire times after a step that may run; a pause or an excluded day is skipped as a whole."""
    if state.paused_us == 0:
        yield from triggers.running_times(schedule, after_us, until_us)
        return
    yield from triggers.running_times(schedule, after_us, min(until_us, state.paused_us - 1))
    if not state.paused:
        yield from triggers.running_times(schedule, max(after_us, state.resumed_us - 1), until_us)


# ---- other causes ----


def decide_child(schedule: Schedule, state: ScheduleState, parent: Fire, now_us: int, *, live: bool) -> Step:
    """Decide a child's run for an occasion after all its parents have succeeded; ``parent`` is the row of the last one.

    Pause, excluded days and overlap apply as to due fire times. An occasion triggered by hand also runs on excluded days.
    """
    row = replace(_row(schedule, parent.fire_us, now_us), cause=Cause.PARENT, root=parent.root, parent=parent.schedule)
    row = replace(row, depth=parent.depth)
    builder = _StepBuilder(schedule, state, live=live)
    if row.fire_us <= state.forgotten_us:
        builder.skip(row, Reason.MISFIRE)
    elif _in_pause(state, now_us):
        builder.skip(row, Reason.PAUSED)
    elif not parent.root and triggers.excluded(schedule, row.fire_us):
        builder.skip(row, Reason.EXCLUDED)
    else:
        builder.run(row)
    return builder.step(next_us=state.next_us, last_us=max(row.fire_us, state.last_us))


def trigger_now(schedule: Schedule, state: ScheduleState, now_us: int, *, live: bool, depth: int = 0) -> Step:
    """Run a schedule by hand, even while it is paused and on excluded days; overlap applies.

    The fire time is now, or the next microsecond that is not a regular fire time. It begins its own occasion. ``depth`` is
    that of the request.
    """
    fire_us = now_us
    if state.triggered_us < now_us + _STEP_US:  # a later one was triggered while the clock was ahead
        fire_us = max(now_us, state.triggered_us + 1)
    while triggers.fires_at(schedule, fire_us):
        fire_us += 1
    row = replace(_row(schedule, fire_us, now_us), cause=Cause.MANUAL, root=schedule.name, due_us=fire_us, depth=depth)
    builder = _StepBuilder(schedule, state, live=live)
    builder.run(row)
    step = builder.step(next_us=state.next_us, last_us=state.last_us)
    return step._replace(state=replace(step.state, triggered_us=fire_us))


def start_waiting(state: ScheduleState, waiting: Fire, now_us: int) -> tuple[Fire, ScheduleState]:
    """Start the oldest WAITING row of a schedule when no run of it is under way.

    Return the row, which now needs a job, and the new state. Call it in the transaction that finishes a run, and periodically for
    schedules with ``queued`` rows and no live run, in case a transaction has missed one.
    """
    fire = replace(waiting, state=FireState.FIRED, due_us=max(now_us, waiting.due_us))
    queued, fired_us = max(state.queued - 1, 0), max(fire.fire_us, state.fired_us)
    return fire, replace(state, version=state.version + 1, queued=queued, fired_us=fired_us)


def dropped(waiting: Fire, reason: Reason, now_us: int) -> Fire:
    """Return a WAITING row as skipped: a newer one has replaced it, or its schedule was removed."""
    return replace(waiting, state=FireState.SKIPPED, reason=reason, decided_us=now_us, due_us=0, children_left=0)


def _row(schedule: Schedule, fire_us: int, now_us: int) -> Fire:
    due_us = fire_us + triggers.jitter_us(schedule, fire_us)
    return Fire(schedule=schedule.name, fire_us=fire_us, state=FireState.FIRED, due_us=due_us, decided_us=now_us)


class _StepBuilder:
    """Processes the rows of one step in order, and decides overlap by the results of earlier rows."""

    def __init__(self, schedule: Schedule, state: ScheduleState, *, live: bool) -> None:
        self._overlap = schedule.overlap
        self._state = state
        self._fires: list[Fire] = []
        self._live = live
        self._queued = state.queued
        self._fired_us = state.fired_us
        self._cancel = self._drop_waiting = False

    def skip(self, row: Fire, reason: Reason) -> None:
        self._fires.append(replace(row, state=FireState.SKIPPED, reason=reason, due_us=0, children_left=0))

    def run(self, row: Fire, *, superseded: bool = False) -> None:
        """Run a row if overlap allows it; ``superseded``: this step has a newer row that will run."""
        match self._overlap:
            case Overlap.FORBID if self._live:
                self.skip(row, Reason.OVERLAP)
            case Overlap.QUEUE if (self._live or self._queued) and self._queued >= MAX_QUEUED:
                self.skip(row, Reason.OVERLAP)
            case Overlap.QUEUE if self._live or self._queued:
                self._wait(row)
            case Overlap.REPLACE if superseded:
                self.skip(row, Reason.OVERLAP)
            case Overlap.REPLACE:
                self._drop_waiting = self._queued > 0
                self._queued = 0
                self._cancel = self._live
                if self._live:
                    self._wait(row)
                else:
                    self._fire(row)
            case _:
                self._fire(row)

    def _fire(self, row: Fire) -> None:
        self._fires.append(row)
        self._live = True
        self._fired_us = max(row.fire_us, self._fired_us)

    def _wait(self, row: Fire) -> None:
        self._fires.append(replace(row, state=FireState.WAITING))
        self._queued += 1

    def step(self, *, next_us: int | None, last_us: int, more: bool = False) -> Step:
        state = replace(
            self._state,
            version=self._state.version + 1,
            next_us=next_us,
            last_us=last_us,
            fired_us=self._fired_us,
            queued=self._queued,
        )
        return Step(self._fires, state, self._cancel, self._drop_waiting, more)


class Backfill(NamedTuple):
    """A step of a backfill."""

    operation: int
    """The id of the operation."""
    name: str
    """The schedule's key."""
    after_us: int
    """The place: times after this one have not had their turn."""
    until_us: int
    """The last time that has a turn."""
    limit: int
    """The most times in this step."""
    now_us: int
    permits: Callable[[str], bool]
    """Returns whether the caller may run a function."""


class Backfilled(NamedTuple):
    """The outcome of a step."""

    rows: list[Fire]
    """The rows of the times that it has fired."""
    after_us: int
    """The new place; the same if ``overlap`` forbids more runs for now."""
    is_last: bool = False
    """Whether no times are left."""
    already: int = 0
    """The number of times that have run already, or are about to."""
    forgotten: int = 0
    """The number of times that may have run already: their rows may have been deleted."""
    error: str = ""
    """Why the backfill cannot go on."""


def past_times(stored: Stored, after_us: int, until_us: int) -> Iterator[int | None]:
    """Yield the decided fire times after an instant up to another, and None for each excluded day; see ``running_steps``."""
    schedule, state, _ = stored
    if state.next_us is not None:
        until_us = min(until_us, state.next_us - 1)  # the schedule itself decides later times
    return triggers.running_steps(schedule, after_us, until_us)
