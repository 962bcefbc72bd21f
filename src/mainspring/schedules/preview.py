"""Previews of schedules: notes about clock changes, and conflicts with other schedules."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.errors import UsageError
from mainspring.schedules import cron, triggers
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.model import Cron, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from mainspring.schedules.model import ClockNote, ConflictKind, Schedule
    from mainspring.schedules.reconcile import Stored

DAY_US: Final = 86_400_000_000
MOST_DAYS: Final = 800
"""Days that are searched for clock changes."""
MOST_CONFLICTS: Final = 100


class ClockChange(NamedTuple):
    """A change of a zone's offset from UTC."""

    at_us: int
    before: timedelta
    after: timedelta


class Conflict(NamedTuple):
    """A schedule that the previewed one collides with, and what that means."""

    kind: ConflictKind
    schedule: str
    text: str


def shown(schedule: Schedule, instant_us: int) -> datetime:
    """Return an instant on the clock of the schedule's zone."""
    return triggers.utc(instant_us).astimezone(triggers.time_zone(schedule.timezone))


def clock_note(schedule: Schedule, fire_us: int) -> ClockNote | None:
    """Return how a clock change affects a fire time of a cron expression; None if none does."""
    if not isinstance(schedule.trigger, Cron):
        return None
    clock = shown(schedule, fire_us)
    if clock.replace(fold=0).utcoffset() != clock.replace(fold=1).utcoffset():
        return "second_of_two" if clock.fold else "first_of_two"
    wall = clock.replace(tzinfo=None, fold=0)
    if cron.parse(schedule.trigger.expression).after(wall - timedelta(seconds=1)) != wall:
        return "skipped"
    return None


def clock_changes(schedule: Schedule, from_us: int, to_us: int) -> Iterator[ClockChange]:
    """Yield the clock changes of the schedule's zone after one instant up to another, within `MOST_DAYS`."""
    to_us = min(to_us, from_us + MOST_DAYS * DAY_US)
    before = _offset(schedule, from_us)
    while from_us < to_us:
        until_us = min(from_us + DAY_US, to_us)
        after = _offset(schedule, until_us)
        if after != before:
            low, high = from_us, until_us
            while high - low > 1_000_000:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(schedule, middle) == before else (low, middle)
            yield ClockChange(high // 1_000_000 * 1_000_000, before, after)
        from_us, before = until_us, after


def _offset(schedule: Schedule, instant_us: int) -> timedelta:
    offset = shown(schedule, instant_us).utcoffset()
    assert offset is not None
    return offset


def conflicts(schedule: Schedule, stored: Mapping[str, Stored], now_us: int) -> list[Conflict]:
    """Return the conflicts of a schedule with the stored ones, at most `MOST_CONFLICTS`."""
    found: list[Conflict] = []
    name = schedule.name
    before = stored.get(name)
    if before is not None:
        found.append(Conflict("exists", name, "a schedule of this name exists: saving this one changes it"))
        if before.state.origin is Origin.CODE:
            text = f"the code of the App {before.state.app} declares it: the next change in that code replaces this one"
            found.append(Conflict("code", name, text))
    others = {one.schedule.name: one.schedule for one in stored.values()} | {name: schedule}
    try:
        Catalogue(others).check([name], now_us)
    except UsageError as error:
        found.append(Conflict("parents", name, str(error)))
    for other in others.values():
        if other is schedule or other.function != schedule.function:
            continue
        if len(found) >= MOST_CONFLICTS:
            break
        if schedule.unique and other.unique == schedule.unique:
            text = f"schedule {other.name} has the same function and unique: their live jobs join"
            found.append(Conflict("unique", other.name, text))
        if schedule.trigger is not None and (other.trigger, other.timezone) == (schedule.trigger, schedule.timezone):
            text = f"schedule {other.name} runs the same function at the same times"
            found.append(Conflict("same", other.name, text))
    return found
