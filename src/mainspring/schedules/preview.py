"""The times of schedules as clients see them in advance: previews, and fire times that were computed before.

A preview has notes about clock changes, and conflicts with other schedules. Fire times depend on the schedule alone, and a
time of a cron expression takes long, so computed ones are kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.errors import UsageError
from mainspring.schedules import triggers
from mainspring.schedules.catalogue import Catalogue
from mainspring.schedules.model import Cron, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
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
    if triggers.parse(schedule.trigger.expression).after(wall - timedelta(seconds=1)) != wall:
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


MOST: Final = 200_000
"""Fire times in memory, of 8 bytes each."""
OVERHEAD: Final = 50
"""Fire times that take as much memory as a span without any."""


class _Span(NamedTuple):
    after_us: int
    times: array[int]


class ComputedTimes:
    """The fire times of schedules before the ends of some days or other spans. The spans that were used last are kept."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._number = 0
        self._spans: dict[tuple[Any, ...], _Span] = {}

    def find(self, schedule: Schedule, after_us: int, until_us: int) -> Sequence[int] | None:
        """Return all fire times after one instant and before another; None if they have to be computed."""
        key = _key(schedule, until_us)
        span = self._spans.get(key)
        if span is None or span.after_us > after_us:
            return None
        self._spans[key] = self._spans.pop(key)  # the dictionary is in the order of the last use
        return span.times[bisect_right(span.times, after_us) :]

    def keep(self, schedule: Schedule, after_us: int, until_us: int, times: Sequence[int]) -> None:
        """Keep all fire times after one instant and before another."""
        key = _key(schedule, until_us)
        self._forget(key)
        self._spans[key] = _Span(after_us, array("q", times))
        self._number += len(times) + OVERHEAD
        while self._number > self._most:
            self._forget(next(iter(self._spans)))

    def _forget(self, key: tuple[Any, ...]) -> None:
        span = self._spans.pop(key, None)
        if span is not None:
            self._number -= len(span.times) + OVERHEAD


def _key(schedule: Schedule, until_us: int) -> tuple[Any, ...]:
    """Return all that the fire times of a schedule before an instant depend on."""
    return (schedule.trigger, schedule.timezone, schedule.start_us, schedule.end_us, schedule.exclude, until_us)
