"""Previews of schedules: notes about clock changes, and conflicts with other schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from mainspring.schedules import (
    catalogue,
    triggers,
)
from mainspring.schedules.model import Cron, Every, Origin, Schedule, ScheduleState
from mainspring.schedules.reconcile import Stored

if TYPE_CHECKING:
    from mainspring.schedules.model import ClockNote

SPRING = datetime(2024, 3, 30, 12, tzinfo=UTC)
AUTUMN = datetime(2024, 10, 26, 12, tzinfo=UTC)


def us(time: datetime) -> int:
    return round(time.timestamp() * 1_000_000)


def notes(expression: str, since: datetime, count: int) -> list[tuple[str, ClockNote | None]]:
    schedule = Schedule(name="a", function=b"f", trigger=Cron(expression), timezone="Europe/Berlin")
    times = triggers.fire_times(schedule, us(since), triggers.LAST_US)
    found = [next(times) for _ in range(count)]
    return [(catalogue.shown(schedule, at).isoformat(), catalogue.clock_note(schedule, at)) for at in found]


def test_a_time_that_the_clock_skips_has_a_note() -> None:
    assert notes("30 2 * * *", SPRING, 2) == [
        ("2024-03-31T03:00:00+02:00", "skipped"),
        ("2024-04-01T02:30:00+02:00", None),
    ]


def test_a_time_that_the_clock_shows_twice_has_a_note() -> None:
    assert notes("30 2 * * *", AUTUMN, 2) == [
        ("2024-10-27T02:30:00+02:00", "first_of_two"),
        ("2024-10-28T02:30:00+01:00", None),
    ]
    assert notes("30 1-3 * * *", AUTUMN, 4)[1:] == [
        ("2024-10-27T02:30:00+02:00", "first_of_two"),
        ("2024-10-27T03:30:00+01:00", None),
        ("2024-10-28T01:30:00+01:00", None),
    ]
    assert [note for _, note in notes("*/30 2 * * *", AUTUMN, 4)] == [
        "first_of_two",
        "first_of_two",
        "second_of_two",
        "second_of_two",
    ]


@pytest.mark.parametrize(
    ("since", "at", "before", "after"),
    [
        (SPRING, datetime(2024, 3, 31, 1, tzinfo=UTC), 1, 2),
        (AUTUMN, datetime(2024, 10, 27, 1, tzinfo=UTC), 2, 1),
    ],
)
def test_clock_changes_are_found_to_the_second(since: datetime, at: datetime, before: int, after: int) -> None:
    schedule = Schedule(name="a", function=b"f", trigger=Every(1_000_000), timezone="Europe/Berlin")
    change = catalogue.ClockChange(us(at), timedelta(hours=before), timedelta(hours=after))
    assert list(catalogue.clock_changes(schedule, us(since), us(since + timedelta(days=2)))) == [change]
    assert not list(catalogue.clock_changes(schedule, us(since), us(at) - 1_000_000))


def stored(name: str, **fields: object) -> Stored:
    schedule = Schedule(name=name, **({"function": b"f", "trigger": Every(60_000_000)} | fields))  # type: ignore[arg-type]
    return Stored(schedule, ScheduleState(origin=Origin.CODE, app="shop"))


def test_conflicts_with_other_schedules_are_named() -> None:
    there = {one.schedule.name: one for one in (stored("a"), stored("b", unique=b"u"), stored("c", function=b"g"))}
    new = stored("new", unique=b"u", trigger=Every(60_000_000)).schedule
    assert [(one.kind, one.schedule) for one in catalogue.conflicts(new, there, 0)] == [
        ("same", "a"),
        ("unique", "b"),
        ("same", "b"),
    ]
    changed = stored("c", function=b"g", trigger=Every(1_000_000)).schedule
    assert [one.kind for one in catalogue.conflicts(changed, there, 0)] == ["exists", "code"]
    child = stored("child", trigger=None, parents=("gone",)).schedule
    assert [(one.kind, one.schedule) for one in catalogue.conflicts(child, there, 0)] == [("parents", "child")]
