from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mainspring.schedules import rules, triggers
from mainspring.schedules.model import (
    At,
    Cause,
    Cron,
    Every,
    Fire,
    FireState,
    Misfire,
    Origin,
    Overlap,
    Reason,
    Schedule,
    ScheduleState,
)

from .zones import DAY, HOUR, MINUTE, at

if TYPE_CHECKING:
    from collections.abc import Sequence

SECOND = 1_000_000
NOON = at("2030-01-01T12:00")
SECONDLY = Schedule(name="s", function=b"f", trigger=Every(SECOND))
HOURLY = Schedule(name="s", function=b"f", trigger=Cron("@hourly"))

SCHEDULES = st.builds(
    Schedule,
    name=st.just("s"),
    function=st.just(b"f"),
    trigger=st.sampled_from(
        [Every(7 * MINUTE), Cron("*/10 * * * *"), Cron("30 2 * * *"), At(NOON + HOUR), Every(13 * HOUR)]
    ),
    timezone=st.sampled_from(["UTC", "Europe/Berlin", "Asia/Tokyo"]),
    end_us=st.none() | st.integers(NOON, NOON + 4 * DAY),
    exclude=st.sampled_from([(), ("2030-01-02",), ("2030-01-01", "2030-01-03")]),
    misfire=st.sampled_from(["skip", "once", "all"]) | st.integers(0, 20),
    misfire_after=st.sampled_from([1.0, 60.0, 3600.0]),
    overlap=st.sampled_from(Overlap),
    jitter=st.sampled_from([0.0, 30.0]),
)


class Store:
    """Applies decisions as an engine does: it stores the state and the rows, and refuses a second row for a fire time."""

    def __init__(self, schedule: Schedule, now_us: int) -> None:
        self.schedule = schedule
        self.state = rules.created(schedule, now_us)
        self.rows: dict[int, Fire] = {}

    @property
    def live(self) -> list[Fire]:
        return [row for row in self.rows.values() if row.live]

    def take(self, step: rules.Step) -> None:
        assert step.state.version == self.state.version + 1
        if step.drop_waiting:
            self.rows |= {
                row.fire_us: rules.dropped(row, Reason.OVERLAP, row.decided_us)
                for row in self.rows.values()
                if row.state is FireState.WAITING
            }
        for row in step.fires:
            assert row.fire_us not in self.rows
            self.rows[row.fire_us] = row
        self.state = step.state
        waiting = [row for row in self.rows.values() if row.state is FireState.WAITING]
        assert len(waiting) == self.state.queued

    def catch_up(self, now_us: int, limit: int = rules.STEP_ROWS) -> None:
        while (step := rules.decide(self.schedule, self.state, now_us, live=bool(self.live), limit=limit)) is not None:
            assert 0 < len(step.fires) <= limit
            assert step.more == (step.state.next_us is not None and step.state.next_us <= now_us)
            self.take(step)

    def end_runs(self, now_us: int) -> None:
        for row in self.live:
            self.rows[row.fire_us] = replace(row, outcome="succeeded")
        waiting = min(
            (row for row in self.rows.values() if row.state is FireState.WAITING), default=None, key=lambda r: r.fire_us
        )
        if waiting is not None:
            started, self.state = rules.start_waiting(self.state, waiting, now_us)
            assert started.due_us >= now_us
            self.rows[started.fire_us] = started

    def decided(self) -> dict[int, Fire]:
        """Return the row of each decided time, in their order: a row of many missed times stands for each of them."""
        return {
            fire_us: row
            for _, row in sorted(self.rows.items())
            for fire_us in triggers.fire_times(self.schedule, row.fire_us - 1, row.until_us or row.fire_us)
        }

    def times(self, state: FireState, reason: Reason | None = None) -> list[int]:
        return sorted(row.fire_us for row in self.rows.values() if row.state is state and row.reason is reason)


# ---- each fire time gets exactly one row ----


@settings(max_examples=200, deadline=None)
@given(SCHEDULES, st.lists(st.tuples(st.integers(-HOUR, 12 * HOUR), st.integers(1, 50), st.booleans()), max_size=12))
def test_each_due_time_gets_exactly_one_row_whatever_the_times_of_steps(
    schedule: Schedule, looks: list[tuple[int, int, bool]]
) -> None:
    store, now, latest = Store(schedule, NOON), NOON, NOON
    store.catch_up(NOON)
    for wait, limit, ended in looks:
        now += wait
        latest = max(now, latest)
        store.catch_up(now, limit)
        if ended:
            store.end_runs(now)
        assert list(store.decided()) == list(triggers.fire_times(schedule, NOON - 1, latest))
    for row in store.rows.values():
        assert (row.state is FireState.SKIPPED) == (row.reason is not None)
        assert row.reason is not Reason.EXCLUDED or triggers.excluded(schedule, row.fire_us)
        assert row.state is FireState.SKIPPED or row.due_us >= row.fire_us
        assert row.fire_us <= latest
    assert store.state.next_us is None or store.state.next_us > latest


@settings(deadline=None)
@given(SCHEDULES, st.integers(0, 5 * DAY), st.integers(1, 100))
def test_small_steps_decide_the_same_as_one_large_step(schedule: Schedule, gap: int, limit: int) -> None:
    schedule = replace(schedule, overlap=Overlap.ALLOW)
    small, large = Store(schedule, NOON), Store(schedule, NOON)
    small.catch_up(NOON + gap, limit)
    large.catch_up(NOON + gap, 10**9)
    assert small.rows == large.rows
    assert replace(small.state, version=0) == replace(large.state, version=0)


def test_nothing_is_due_before_its_time() -> None:
    state = rules.created(HOURLY, NOON + 1)
    assert state.next_us == NOON + HOUR
    assert rules.decide(HOURLY, state, NOON + HOUR - 1, live=False) is None
    step = rules.decide(HOURLY, state, NOON + HOUR, live=False)
    assert step is not None
    assert [(row.fire_us, row.state, row.due_us, row.decided_us) for row in step.fires] == [
        (NOON + HOUR, FireState.FIRED, NOON + HOUR, NOON + HOUR)
    ]
    assert (step.state.next_us, step.state.last_us, step.state.fired_us) == (NOON + 2 * HOUR, NOON + HOUR, NOON + HOUR)
    assert not step.more


def test_jitter_moves_the_job_and_not_the_fire_time() -> None:
    schedule = replace(HOURLY, jitter=600.0)
    state = rules.created(schedule, NOON)
    step = rules.decide(schedule, state, NOON, live=False)
    second = rules.decide(schedule, state, NOON + SECOND, live=False)
    assert step is not None
    assert second is not None
    assert step.fires[0].fire_us == NOON
    assert step.fires[0].due_us == second.fires[0].due_us == NOON + triggers.jitter_us(schedule, NOON) > NOON


@pytest.mark.parametrize("trigger", [Every(SECOND), Cron("* * * * * *")], ids=["every", "cron"])
@pytest.mark.parametrize("misfire", ["skip", "once", "all", 1000])
@pytest.mark.parametrize("kept_back", ["", "excluded", "paused", "was paused"])
def test_a_year_of_seconds_is_decided_in_bounded_steps(trigger: Cron | Every, misfire: Misfire, kept_back: str) -> None:
    """An unbounded step would process 31 million fire times, for many minutes, and write as many rows."""
    exclude = (
        tuple(f"2030-{day // 28 + 1:02}-{day % 28 + 1:02}" for day in range(336)) if kept_back == "excluded" else ()
    )
    schedule = replace(SECONDLY, trigger=trigger, misfire=misfire, exclude=exclude)
    store, now_us = Store(schedule, NOON), NOON + 365 * DAY
    if "paused" in kept_back:
        store.state = rules.paused(store.state, NOON)
    if kept_back == "was paused":
        store.state = rules.resumed(store.state, NOON + 364 * DAY)
    step = rules.decide(schedule, store.state, now_us, live=False)
    assert step is not None
    if misfire == "all" and "paused" not in kept_back:
        assert [row.fire_us for row in step.fires] == [NOON + number * SECOND for number in range(1000)]
        assert step.more
        assert step.state.next_us == NOON + 1000 * SECOND
        return
    (row,) = step.fires
    assert (row.fire_us, row.state) == (NOON, FireState.SKIPPED)
    assert row.until_us > NOON + 363 * DAY
    if kept_back == "was paused":
        assert (row.until_us, row.reason) == (NOON + 364 * DAY - SECOND, Reason.PAUSED)
    if kept_back == "paused":
        assert (row.until_us, row.reason, step.more) == (now_us, Reason.PAUSED, False)
    elif misfire != "all":
        store.catch_up(now_us)
        assert len(store.rows) < 1010
        running = {"skip": 2, "once": 2}.get(str(misfire), 1000)  # two are in time
        assert store.times(FireState.FIRED) == [now_us - number * SECOND for number in range(running)][::-1]


@settings(deadline=None)
@given(
    SCHEDULES,
    st.integers(0, 5 * DAY),
    st.integers(1, 100),
    st.none() | st.tuples(st.integers(0, DAY), st.integers(0, DAY)),
)
def test_a_range_has_the_times_that_have_rows_without_it(
    schedule: Schedule, gap: int, limit: int, pause: tuple[int, int] | None
) -> None:
    schedule = replace(schedule, overlap=Overlap.ALLOW)
    ranges, single = Store(schedule, NOON), Store(schedule, NOON)
    if pause is not None:
        ranges.state = single.state = rules.paused(ranges.state, NOON + pause[0])
        ranges.state = single.state = rules.resumed(ranges.state, NOON + sum(pause))
    now_us = NOON + gap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "MOST_ROWS", 3)
        ranges.catch_up(now_us, limit)
    while (step := rules.decide(schedule, single.state, now_us, live=False, limit=limit, ranges=False)) is not None:
        single.take(step)
    assert replace(ranges.state, version=0) == replace(single.state, version=0)
    expanded = {time_us: row.reason for time_us, row in ranges.decided().items()}
    for row in ranges.rows.values():
        assert not row.until_us or len(list(triggers.fire_times(schedule, row.fire_us, row.until_us))) >= 3
    assert expanded.keys() == single.rows.keys()
    for time_us, row in single.rows.items():
        assert expanded[time_us] == row.reason or (row.reason, expanded[time_us]) == (Reason.EXCLUDED, Reason.MISFIRE)


# ---- missed fire times ----


@settings(deadline=None)
@given(SCHEDULES, st.integers(0, 5 * DAY), st.integers(1, 100))
def test_misfire_counts(schedule: Schedule, gap: int, limit: int) -> None:
    """Check the policies as users read them, not as they are computed."""
    schedule = replace(schedule, overlap=Overlap.ALLOW)
    store, now = Store(schedule, NOON), NOON + gap
    store.catch_up(now, limit)
    due = [one for one in triggers.fire_times(schedule, NOON - 1, now) if not triggers.excluded(schedule, one)]
    in_time = [one for one in due if now - one <= schedule.misfire_after * SECOND]
    most = {"skip": 0, "once": 1, "all": len(due)}.get(str(schedule.misfire), schedule.misfire)
    assert isinstance(most, int)
    number = max(len(in_time), min(most, len(due)))
    assert store.times(FireState.FIRED) == due[len(due) - number :]
    missed = [one for one, row in store.decided().items() if row.reason is Reason.MISFIRE]
    # A row of many missed times has those on excluded days, too.
    assert [one for one in missed if not triggers.excluded(schedule, one)] == due[: len(due) - number]


@pytest.mark.parametrize(
    ("misfire", "fired"),
    [("skip", []), ("once", [5]), ("all", [1, 2, 3, 4, 5]), (2, [4, 5]), (0, []), (9, [1, 2, 3, 4, 5])],
)
def test_after_five_hours_without_a_node(misfire: Misfire, fired: list[int]) -> None:
    store = Store(replace(HOURLY, misfire=misfire), NOON + 1)
    store.catch_up(NOON + 5 * HOUR + 30 * MINUTE)
    assert store.times(FireState.FIRED) == [NOON + hour * HOUR for hour in fired]
    assert len(store.rows) == 5


def test_once_is_one_run_even_if_the_newest_is_in_time() -> None:
    store = Store(HOURLY, NOON + 1)
    store.catch_up(NOON + 5 * HOUR + 1)
    assert store.times(FireState.FIRED) == [NOON + 5 * HOUR]


@pytest.mark.parametrize(("late", "state"), [(SECOND, FireState.FIRED), (SECOND + 1, FireState.SKIPPED)])
def test_late_is_more_than_a_second(late: int, state: FireState) -> None:
    store = Store(replace(HOURLY, misfire="skip"), NOON)
    store.catch_up(NOON + late)
    assert store.rows[NOON].state is state


def test_a_one_off_time_in_the_past_is_a_misfire() -> None:
    for misfire, state in (("once", FireState.FIRED), ("skip", FireState.SKIPPED)):
        store = Store(Schedule(name="s", function=b"f", trigger=At(NOON - DAY), misfire=misfire), NOON)  # type: ignore[arg-type]
        store.catch_up(NOON)
        assert store.rows[NOON - DAY].state is state
        assert store.state.next_us is None


def test_excluded_times_do_not_count_as_the_newest() -> None:
    store = Store(replace(HOURLY, exclude=("2030-01-02",)), NOON)
    store.catch_up(at("2030-01-02T18:30"), limit=5)
    assert store.times(FireState.FIRED) == [at("2030-01-01T23:00")]
    assert len(store.times(FireState.SKIPPED, Reason.EXCLUDED)) == 19


# ---- pauses ----


OPERATIONS = st.lists(st.tuples(st.sampled_from(["look", "pause", "resume"]), st.integers(0, 3 * HOUR)), max_size=15)


@settings(deadline=None)
@given(OPERATIONS, st.integers(1, 20))
def test_fire_times_of_a_pause_are_skipped_whenever_they_are_decided(
    operations: Sequence[tuple[str, int]], limit: int
) -> None:
    store, now = Store(replace(HOURLY, trigger=Every(10 * MINUTE), misfire="all"), NOON), NOON
    pauses: list[tuple[int, int]] = []
    looked = 0
    for operation, wait in operations:
        now += wait
        if operation == "look":
            store.catch_up(now, limit)
            looked = now
        elif operation == "pause" and not store.state.paused:
            now = max(now, looked + 1)  # the times of the look are decided
            store.catch_up(now - 1, limit)  # so that the fire times of the last pause are decided
            store.state = rules.paused(store.state, now)
            pauses.append((now, 2**60))
        elif operation == "resume" and store.state.paused:
            now = max(now, pauses[-1][0] + 1)  # else a look at this moment may be before or after it
            store.state = rules.resumed(store.state, now)
            pauses[-1] = (pauses[-1][0], now)
    store.catch_up(now, limit)
    for row in store.rows.values():
        in_pause = any(since <= row.fire_us < until for since, until in pauses)
        assert row.state is (FireState.SKIPPED if in_pause else FireState.FIRED)
        assert row.reason is (Reason.PAUSED if in_pause else None)


def test_pausing_twice_and_resuming_without_a_pause_change_nothing() -> None:
    state = rules.created(HOURLY, NOON)
    assert rules.resumed(state, NOON) is state
    paused = rules.paused(state, NOON)
    assert paused.paused
    assert rules.paused(paused, NOON + 1) is paused
    assert not rules.resumed(paused, NOON + 1).paused


def test_a_pause_after_one_with_undecided_times_continues_it() -> None:
    store = Store(replace(HOURLY, misfire="all"), NOON + 1)
    store.state = rules.paused(store.state, NOON + 1)
    store.state = rules.resumed(store.state, NOON + 90 * MINUTE)
    store.state = rules.paused(store.state, NOON + 150 * MINUTE)
    store.catch_up(NOON + 3 * HOUR)
    assert store.times(FireState.SKIPPED, Reason.PAUSED) == [NOON + hour * HOUR for hour in (1, 2, 3)]


def test_times_before_a_pause_are_missed_and_not_paused() -> None:
    store = Store(replace(HOURLY, misfire="all"), NOON + 1)
    store.state = rules.paused(store.state, NOON + 90 * MINUTE)
    store.catch_up(NOON + 3 * HOUR)
    assert store.times(FireState.FIRED) == [NOON + HOUR]


# ---- overlap ----


def overlapping(overlap: Overlap, misfire: Misfire = "all") -> Store:
    """Return a store in which the run of noon is under way."""
    store = Store(replace(HOURLY, overlap=overlap, misfire=misfire), NOON)
    store.catch_up(NOON)
    assert store.times(FireState.FIRED) == [NOON]
    return store


def test_allow_runs_beside() -> None:
    store = overlapping(Overlap.ALLOW)
    store.catch_up(NOON + HOUR)
    assert store.times(FireState.FIRED) == [NOON, NOON + HOUR]


def test_forbid_skips_until_the_run_has_ended() -> None:
    store = overlapping(Overlap.FORBID)
    store.catch_up(NOON + HOUR)
    assert store.times(FireState.SKIPPED, Reason.OVERLAP) == [NOON + HOUR]
    store.end_runs(NOON + HOUR + 1)
    store.catch_up(NOON + 2 * HOUR)
    assert store.times(FireState.FIRED) == [NOON, NOON + 2 * HOUR]


def test_queue_runs_all_of_them_one_after_the_other() -> None:
    store = overlapping(Overlap.QUEUE)
    store.catch_up(NOON + 2 * HOUR)
    assert store.times(FireState.WAITING) == [NOON + HOUR, NOON + 2 * HOUR]
    for hour in (1, 2):
        store.end_runs(NOON + 2 * HOUR + hour)
        assert [row.fire_us for row in store.live] == [NOON + hour * HOUR]
        assert store.live[0].due_us == NOON + 2 * HOUR + hour
    assert store.state.queued == 0


def test_queue_keeps_the_order_between_two_runs() -> None:
    """A new run does not overtake between the end of a run and the start of the next."""
    store = overlapping(Overlap.QUEUE)
    store.catch_up(NOON + HOUR)
    step = rules.decide(store.schedule, store.state, NOON + 2 * HOUR, live=False)
    assert step is not None
    assert [row.state for row in step.fires] == [FireState.WAITING]


def test_a_queue_is_bounded() -> None:
    store = Store(replace(SECONDLY, overlap=Overlap.QUEUE, misfire="all"), NOON)
    store.catch_up(NOON + (rules.MAX_QUEUED + 10) * SECOND, limit=300)
    assert len(store.times(FireState.WAITING)) == store.state.queued == rules.MAX_QUEUED
    assert len(store.times(FireState.SKIPPED, Reason.OVERLAP)) == 10


def test_replace_cancels_and_waits_for_the_end() -> None:
    store = overlapping(Overlap.REPLACE)
    step = rules.decide(store.schedule, store.state, NOON + HOUR, live=True)
    assert step is not None
    assert step.cancel
    assert not step.drop_waiting
    store.take(step)
    assert store.times(FireState.WAITING) == [NOON + HOUR]
    store.catch_up(NOON + 2 * HOUR)
    assert store.times(FireState.WAITING) == [NOON + 2 * HOUR]
    assert store.times(FireState.SKIPPED, Reason.OVERLAP) == [NOON + HOUR]
    store.end_runs(NOON + 2 * HOUR)
    assert [row.fire_us for row in store.live] == [NOON + 2 * HOUR]


def test_replace_starts_at_once_without_a_run() -> None:
    store = Store(replace(HOURLY, overlap=Overlap.REPLACE), NOON)
    step = rules.decide(store.schedule, store.state, NOON, live=False)
    assert step is not None
    assert not step.cancel
    assert [row.state for row in step.fires] == [FireState.FIRED]


def test_replace_runs_the_newest_of_several_late_times() -> None:
    store = Store(replace(HOURLY, overlap=Overlap.REPLACE, misfire="all"), NOON)
    store.catch_up(NOON + 3 * HOUR)
    assert store.times(FireState.FIRED) == [NOON + 3 * HOUR]
    assert len(store.times(FireState.SKIPPED, Reason.OVERLAP)) == 3


def test_forbid_runs_the_oldest_of_several_late_times() -> None:
    store = Store(replace(HOURLY, overlap=Overlap.FORBID, misfire="all"), NOON)
    store.catch_up(NOON + 3 * HOUR, limit=2)
    assert store.times(FireState.FIRED) == [NOON]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([Overlap.FORBID, Overlap.QUEUE, Overlap.REPLACE]),
    st.lists(st.tuples(st.integers(0, 3 * HOUR), st.sampled_from(["look", "end", "trigger"])), max_size=20),
)
def test_except_for_allow_there_is_never_more_than_one_run(overlap: Overlap, steps: list[tuple[int, str]]) -> None:
    store, now = Store(replace(HOURLY, overlap=overlap, misfire="all"), NOON), NOON
    started: list[int] = []
    for wait, what in steps:
        now += wait
        if what == "look":
            store.catch_up(now, 2)
        elif what == "end":
            store.end_runs(now)
        else:
            store.take(rules.trigger_now(store.schedule, store.state, now, live=bool(store.live)))
        assert len(store.live) <= 1
        started += [row.fire_us for row in store.live if row.fire_us not in started]
    if overlap is Overlap.QUEUE and not any(what == "trigger" for _, what in steps):
        assert all(one < other for one, other in pairwise(started))
        assert not store.times(FireState.SKIPPED, Reason.OVERLAP)


# ---- by hand ----


def test_a_run_by_hand_ignores_pauses_and_excluded_days() -> None:
    store = Store(replace(HOURLY, exclude=("2030-01-01",)), NOON)
    store.state = rules.paused(store.state, NOON)
    store.take(rules.trigger_now(store.schedule, store.state, NOON + 5, live=False))
    (row,) = store.rows.values()
    assert (row.fire_us, row.due_us, row.state, row.cause, row.root) == (
        NOON + 5,
        NOON + 5,
        FireState.FIRED,
        Cause.MANUAL,
        "s",
    )
    assert store.state.next_us == NOON


def test_runs_by_hand_have_their_own_fire_times() -> None:
    store = Store(HOURLY, NOON)
    for _ in range(3):
        store.take(rules.trigger_now(store.schedule, store.state, NOON, live=False))
    store.catch_up(NOON)
    assert sorted(store.rows) == [NOON, NOON + 1, NOON + 2, NOON + 3]
    assert store.rows[NOON].cause is Cause.TRIGGER


@pytest.mark.parametrize("overlap", Overlap)
def test_overlap_applies_to_runs_by_hand(overlap: Overlap) -> None:
    schedule = replace(HOURLY, overlap=overlap)
    step = rules.trigger_now(schedule, rules.created(schedule, NOON), NOON + 1, live=True)
    assert (
        step.fires[0].state
        is {
            Overlap.ALLOW: FireState.FIRED,
            Overlap.FORBID: FireState.SKIPPED,
            Overlap.QUEUE: FireState.WAITING,
            Overlap.REPLACE: FireState.WAITING,
        }[overlap]
    )
    assert step.cancel is (overlap is Overlap.REPLACE)


# ---- children ----

CHILD = Schedule(name="child", function=b"f", parents=("s",), exclude=("2030-01-02",))
PARENT = Fire(schedule="s", fire_us=NOON, state=FireState.FIRED, outcome="succeeded")


def test_a_child_runs_for_the_occasion_of_its_parent() -> None:
    state = rules.created(CHILD, NOON)
    assert state.next_us is None
    step = rules.decide_child(CHILD, state, PARENT, NOON + HOUR, live=False)
    (row,) = step.fires
    assert (row.schedule, row.fire_us, row.state, row.cause, row.parent) == (
        "child",
        NOON,
        FireState.FIRED,
        Cause.PARENT,
        "s",
    )
    assert (step.state.next_us, step.state.last_us, step.state.version) == (None, NOON, state.version + 1)


def test_a_child_may_be_skipped() -> None:
    state = rules.created(CHILD, NOON)
    holiday = replace(PARENT, fire_us=NOON + DAY)

    def decided(state: ScheduleState, parent: Fire, overlap: Overlap = Overlap.ALLOW, *, live: bool = False) -> Fire:
        return rules.decide_child(replace(CHILD, overlap=overlap), state, parent, NOON + 1, live=live).fires[0]

    assert decided(rules.paused(state, NOON), PARENT).reason is Reason.PAUSED
    assert decided(state, holiday).reason is Reason.EXCLUDED
    assert decided(state, replace(holiday, root="s")).state is FireState.FIRED
    assert decided(state, PARENT, Overlap.FORBID, live=True).reason is Reason.OVERLAP
    assert decided(state, PARENT, Overlap.QUEUE, live=True).state is FireState.WAITING


# ---- new specifications ----


def test_a_change_of_other_fields_keeps_due_times() -> None:
    state = rules.created(HOURLY, NOON)
    after = rules.changed(HOURLY, replace(HOURLY, jitter=5.0, misfire="all"), state, NOON + 5 * HOUR)
    assert (after.next_us, after.version) == (NOON, state.version + 1)


def test_new_times_apply_from_now_on() -> None:
    store = Store(HOURLY, NOON)
    store.catch_up(NOON + HOUR)
    state = rules.changed(HOURLY, replace(HOURLY, trigger=Cron("*/5 * * * *")), store.state, NOON + HOUR)
    assert state.next_us == NOON + HOUR + 5 * MINUTE
    assert rules.changed(HOURLY, replace(HOURLY, end_us=NOON), store.state, NOON + HOUR).next_us is None


def test_a_one_off_time_is_not_repeated_by_a_change() -> None:
    once = Schedule(name="s", function=b"f", trigger=At(NOON))
    store = Store(once, NOON - 1)
    store.catch_up(NOON)
    moved = replace(once, timezone="Asia/Tokyo")
    assert rules.changed(once, moved, store.state, NOON + HOUR).next_us is None
    later = replace(once, trigger=At(NOON + HOUR))
    assert rules.changed(once, later, store.state, NOON + 1).next_us == NOON + HOUR


def test_a_new_state_has_its_origin() -> None:
    state = rules.created(HOURLY, NOON, origin=Origin.CLI, app="shop", declared=b"d")
    assert (state.version, state.origin, state.app, state.declared) == (1, Origin.CLI, "shop", b"d")


# ---- a clock that was wrong ----


def test_a_clock_that_was_behind_makes_no_past_times_due() -> None:
    """It was right before: the times between the wrong and the right time are not made up for."""
    state = rules.created(HOURLY, NOON + 1)
    behind = rules.rewound(HOURLY, state, NOON - 3650 * DAY, NOON + 1)
    assert behind.next_us is not None
    step = rules.decide(HOURLY, behind, behind.next_us, live=False)
    assert step is not None
    assert [row.fire_us for row in step.fires] == [behind.next_us]
    step = rules.decide(HOURLY, step.state, NOON + 2, live=False)
    assert step is not None
    assert (step.fires, step.state.next_us) == ([], NOON + HOUR)
    step = rules.decide(HOURLY, step.state, NOON + HOUR, live=False)
    assert step is not None
    assert [row.fire_us for row in step.fires] == [NOON + HOUR]


def test_a_state_that_is_right_is_not_rewound() -> None:
    for trigger in (Every(SECOND), At(NOON - 1), At(NOON + HOUR), Cron("@yearly")):
        schedule = replace(SECONDLY, trigger=trigger)
        state = rules.created(schedule, NOON)
        assert rules.rewound(schedule, state, NOON) is state
        fired = rules.decide(schedule, state, NOON, live=False)
        if fired is not None:
            assert rules.rewound(schedule, fired.state, NOON) is fired.state
