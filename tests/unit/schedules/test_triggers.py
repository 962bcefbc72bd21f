from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.schedules import triggers
from mainspring.schedules.model import At, Cron, Every, Schedule

from .zones import CHANGES, DAY, HOUR, MINUTE, at, us

SECOND = 1_000_000
NOON = at("2030-01-01T12:00")
INSTANTS = st.integers(0, at("2100-01-01"))


def schedule(trigger: At | Cron | Every | None, **options: object) -> Schedule:
    return Schedule(name="s", function=b"f", trigger=trigger, **options)  # type: ignore[arg-type]


# ---- intervals ----


@settings(deadline=None)
@given(st.integers(1, 400 * DAY), st.none() | INSTANTS, INSTANTS)
def test_an_interval_is_aligned_and_complete(interval_us: int, start_us: int | None, after_us: int) -> None:
    every = schedule(Every(interval_us), start_us=start_us)
    found = triggers.next_after(every, after_us)
    assert found is not None
    assert (found - (start_us or 0)) % interval_us == 0
    assert found > after_us
    if start_us is None or start_us <= after_us:
        assert found - after_us <= interval_us
    else:
        assert found == start_us
    assert triggers.next_after(every, found) == found + interval_us


def test_an_interval_has_no_time_zone() -> None:
    daily = schedule(Every(DAY), timezone="Europe/Berlin", start_us=at("2025-03-29T12:00", "Europe/Berlin"))
    assert list(triggers.fire_times(daily, 0, at("2025-03-31T12:00"))) == [
        at("2025-03-29T12:00", "Europe/Berlin"),
        at("2025-03-30T13:00", "Europe/Berlin"),
        at("2025-03-31T13:00", "Europe/Berlin"),
    ]


# ---- one-off times ----


def test_a_one_off_time_fires_once() -> None:
    once = schedule(At(NOON))
    assert triggers.next_after(once, NOON - 1) == NOON
    assert triggers.next_after(once, NOON) is None
    assert list(triggers.fire_times(once, 0, NOON + DAY)) == [NOON]


def test_only_a_past_one_off_time_is_due_at_its_creation() -> None:
    assert triggers.first(schedule(At(NOON - DAY)), NOON) == NOON - DAY
    assert triggers.first(schedule(At(NOON)), NOON) == NOON
    assert triggers.first(schedule(At(NOON), end_us=NOON - 1), NOON) is None
    assert triggers.first(schedule(Every(HOUR), start_us=NOON - DAY), NOON) == NOON
    assert triggers.first(schedule(Every(HOUR), start_us=NOON - DAY), NOON + 1) == NOON + HOUR
    assert triggers.first(schedule(Cron("0 12 * * *")), NOON) == NOON
    assert triggers.first(schedule(Cron("0 12 * * *")), NOON + 1) == NOON + DAY


# ---- start and end ----


def test_start_and_end_are_inclusive() -> None:
    hourly = schedule(Cron("@hourly"), start_us=NOON, end_us=NOON + 2 * HOUR)
    assert list(triggers.fire_times(hourly, 0, NOON + DAY)) == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert triggers.next_after(hourly, NOON + 2 * HOUR) is None


@settings(deadline=None)
@given(INSTANTS, st.sampled_from([Every(HOUR), Cron("*/7 * * * *"), At(NOON)]), INSTANTS, INSTANTS)
def test_no_fire_time_is_outside_start_and_end(after_us: int, trigger: At | Cron | Every, one: int, other: int) -> None:
    start_us, end_us = min(one, other), max(one, other)
    found = triggers.next_after(schedule(trigger, start_us=start_us, end_us=end_us), after_us)
    assert found is None or (start_us <= found <= end_us and found > after_us)


def test_a_child_has_no_fire_times_of_its_own() -> None:
    assert triggers.next_after(schedule(None, parents=("p",)), 0) is None


@settings(deadline=None)
@given(st.sampled_from([Every(7 * DAY), Cron("0 0 29 2 *"), Cron("* * * * * *")]), st.integers(0, 2**62))
def test_the_last_year_ends_the_fire_times(trigger: Cron | Every, after_us: int) -> None:
    found = triggers.next_after(schedule(trigger), after_us)
    assert found is None or after_us < found < triggers.LAST_US


@settings(deadline=None)
@given(st.sampled_from([Every(HOUR), Cron("*/7 * * * *")]), INSTANTS)
def test_fires_at_agrees_with_the_fire_times(trigger: Cron | Every, after_us: int) -> None:
    one = schedule(trigger)
    found = triggers.next_after(one, after_us)
    assert found is not None
    assert triggers.fires_at(one, found)
    assert not triggers.fires_at(one, found - 1)


# ---- holidays ----


def test_days_are_those_of_the_time_zone() -> None:
    tokyo = schedule(Cron("@hourly"), timezone="Asia/Tokyo", exclude=("2030-01-02",))
    assert not triggers.excluded(tokyo, at("2030-01-01T23:00", "Asia/Tokyo"))
    assert triggers.excluded(tokyo, at("2030-01-02T00:00", "Asia/Tokyo"))
    assert triggers.excluded(tokyo, at("2030-01-02T23:59:59", "Asia/Tokyo"))
    assert not triggers.excluded(tokyo, at("2030-01-03T00:00", "Asia/Tokyo"))


@settings(max_examples=100, deadline=None)
@given(CHANGES, st.sampled_from([Every(10 * MINUTE), Cron("*/20 * * * *"), Cron("30 0 * * *")]), st.data())
def test_skipped_days_neither_lose_nor_add_fire_times(
    change: tuple[str, datetime], trigger: Cron | Every, data: st.DataObject
) -> None:
    name, moment = change
    days = [(moment + timedelta(days=number)).date().isoformat() for number in range(-2, 3)]
    one = schedule(trigger, timezone=name, exclude=tuple(data.draw(st.sets(st.sampled_from(days)))))
    after, until = us(moment) - 2 * DAY, us(moment) + 2 * DAY
    expected = [time for time in triggers.fire_times(one, after, until) if not triggers.excluded(one, time)]
    assert list(triggers.running_times(one, after, until)) == expected


def test_a_day_in_two_parts_is_excluded_in_both() -> None:
    """At one minute past midnight St. John's went back to 23:01, so that the two days alternated."""
    one = schedule(Every(10 * MINUTE), timezone="America/St_Johns", exclude=("1987-10-25",))
    begin = at("1987-10-24T23:50", "America/St_Johns")
    found = list(triggers.running_times(one, begin - 1, begin + HOUR + 30 * MINUTE))
    assert found == [begin, *(begin + 10 * MINUTE * number for number in range(2, 7))]


def test_an_excluded_year_of_seconds_is_skipped_quickly() -> None:
    days = tuple((datetime(2030, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat() for day in range(364))
    seconds = schedule(Cron("* * * * * *"), timezone="Europe/Berlin", exclude=days)
    found = next(triggers.running_times(seconds, at("2030-01-01", "Europe/Berlin"), at("2031-01-02")))
    assert found == at("2030-12-31", "Europe/Berlin")


# ---- jitter ----


@settings(deadline=None)
@given(st.text(min_size=1), INSTANTS, st.floats(0, 1e6))
def test_jitter_is_bounded_and_depends_on_name_and_time(name: str, fire_us: int, jitter: float) -> None:
    one = Schedule(name=name, function=b"f", jitter=jitter)
    found = triggers.jitter_us(one, fire_us)
    assert 0 <= found <= round(jitter * SECOND)
    assert triggers.jitter_us(Schedule(name=name, function=b"other", jitter=jitter), fire_us) == found


def test_jitter_spreads_evenly_over_times_and_names() -> None:
    found = [
        triggers.jitter_us(Schedule(name=name, function=b"f", jitter=60.0), NOON + number * HOUR)
        for name in ("a", "b", "c", "d")
        for number in range(250)
    ]
    tenths = [sum(1 for one in found if one // (6 * SECOND) == tenth) for tenth in range(10)]
    assert min(tenths) > 60
    assert len(set(found)) > 990


def test_without_jitter_a_job_is_due_at_its_fire_time() -> None:
    assert triggers.jitter_us(schedule(Every(HOUR)), NOON) == 0


# ---- for people ----


@pytest.mark.parametrize(
    "name", ["Europe/Nowhere", "Europe", "../etc/passwd", "", "/etc/localtime", "a\0b", "x" * 5000]
)
def test_an_unknown_time_zone_is_refused(name: str) -> None:
    for check in (triggers.time_zone, triggers.iana_zone):
        with pytest.raises(UsageError, match="use a name of IANA's such as 'Europe/Berlin'"):
            check(name)


def test_a_name_that_is_not_of_iana_is_refused() -> None:
    for name in (
        "localtime",
        "posix/Europe/Berlin",
        "right/UTC",
        "posixrules",
        "Factory",
        "Site/Local",
        "utc",
        "SystemV/EST5",
    ):
        with pytest.raises(UsageError, match="may mean something else on another machine"):
            triggers.iana_zone(name)
    for name in ("UTC", "Etc/GMT+5", "America/Argentina/Buenos_Aires", "EST5EDT", "GB-Eire", "Asia/Kolkata"):
        triggers.iana_zone(name)


def test_all_names_of_iana_have_a_known_area() -> None:
    others = {"localtime", "Factory", "posixrules"}
    for name in zoneinfo.available_timezones() - others:
        triggers.iana_zone(name)


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (schedule(Cron("@daily")), "cron '@daily'"),
        (schedule(Every(90 * MINUTE)), "every 1h30m"),
        (schedule(At(NOON)), "at 2030-01-01T12:00:00+00:00"),
        (schedule(None, parents=("a", "b")), "after a and b"),
    ],
)
def test_triggers_in_words(one: Schedule, text: str) -> None:
    assert triggers.describe(one) == text
