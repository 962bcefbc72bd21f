"""The catalogue of schedules: the checks of each one before it is stored, and the rules that concern several.

Each error names the schedule and the wrong value.

The times of schedules as clients see them in advance: previews, and fire times that were computed before.

A preview has notes about clock changes, and conflicts with other schedules. Fire times depend on the schedule alone, and a
time of a cron expression takes long, so computed ones are kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from datetime import date, timedelta
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.errors import UsageError
from mainspring.jobs.model import FUNCTION_LIMIT, OWN_FUNCTION, UNIQUE_LIMIT, check_retry, is_own
from mainspring.namespaces import DEFAULT, name_of, split_text
from mainspring.quantities import format_duration
from mainspring.schedules import triggers
from mainspring.schedules.model import At, Cron, Every, Origin, Overlap
from mainspring.schedules.parents import Graph
from mainspring.schedules.rules import MAX_MISFIRES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from mainspring.schedules.model import ClockNote, ConflictKind, Schedule
    from mainspring.schedules.reconcile import Stored

MIN_INTERVAL_US = 100_000
"""The minimum interval, a tenth of a second: a task that should run more often needs a loop, not a schedule."""

_MAX_NAME_LENGTH = 200
MOST_PARENTS = 1000
"""Parents of one schedule: each row of a list names them."""


def check(schedule: Schedule) -> None:
    """Raise UsageError if a schedule is invalid by itself; ``parents.Graph`` checks it together with the others."""
    # Outside of the default namespace the names are keys, which contain the separator once.
    name = schedule.name if schedule.namespace == DEFAULT else split_text(schedule.name)[1]
    if not name or len(name) > _MAX_NAME_LENGTH or not name.isprintable() or name != name.strip():
        raise UsageError(f"{name!r} is not a name for a schedule: use 1 to {_MAX_NAME_LENGTH} printable characters")
    try:
        _check(schedule)
    except UsageError as error:
        raise UsageError(f"schedule {name!r}: {error}") from None


def _check(schedule: Schedule) -> None:
    triggers.iana_zone(schedule.timezone)
    _check_times(schedule)
    if len(schedule.parents) > MOST_PARENTS:
        raise UsageError(f"it has {len(schedule.parents)} parents: give it at most {MOST_PARENTS}")
    for day in schedule.exclude:
        try:
            right = date.fromisoformat(day).isoformat() == day
        except ValueError:
            right = False
        if not right:
            raise UsageError(f"exclude has {day!r}, which is not a date: write it as 2030-12-24")
    _check_misfire(schedule.misfire)
    if not isinstance(schedule.overlap, Overlap):
        raise UsageError(f"overlap must be one of {', '.join(Overlap)}; it is {schedule.overlap!r}")
    for what, seconds in (
        ("jitter", schedule.jitter),
        ("misfire_after", schedule.misfire_after),
        ("timeout", schedule.timeout),
        ("expires", schedule.expires),
        ("start_within", schedule.start_within),
        ("deadline", schedule.deadline),
    ):
        if seconds is not None and not (isfinite(seconds) and 0 <= seconds <= triggers.LAST_US / 1e6):
            raise UsageError(f"{what} must be a number of seconds, not negative; it is {seconds!r}")
    if not schedule.function:
        raise UsageError(
            "the function's name is empty: name one, or leave it out for a function of the schedule's name"
        )
    for what, text in (("the function's name", schedule.function), ("unique", schedule.unique)):
        if b"\0" in text:  # NUL separates the arguments of a packet
            raise UsageError(f"{what} contains a NUL byte: leave it out")
    function = schedule.function if schedule.namespace == DEFAULT else name_of(schedule.function)
    if is_own(function):
        raise UsageError(OWN_FUNCTION)
    if len(function) > FUNCTION_LIMIT:
        raise UsageError(f"the function's name has {len(function)} bytes: give it at most {FUNCTION_LIMIT}")
    if len(schedule.unique) > UNIQUE_LIMIT:
        raise UsageError(f"unique has {len(schedule.unique)} bytes: give it at most {UNIQUE_LIMIT}")
    if schedule.timeout == 0:
        raise UsageError("timeout is 0, which would end each attempt at once: leave it out for none")
    if schedule.retry is not None:
        check_retry(schedule.retry)


def _check_times(schedule: Schedule) -> None:
    start_us, end_us = schedule.start_us, schedule.end_us
    if schedule.parents:
        if schedule.trigger is not None:
            raise UsageError(
                "it has a trigger and parents: a child runs when its parents have succeeded, and only then"
            )
        if start_us is not None or end_us is not None:
            raise UsageError("start and end belong to the roots: a child has the occasions that its parents have")
        if len(set(schedule.parents)) < len(schedule.parents):
            raise UsageError("it names a parent twice")
        return
    match schedule.trigger:
        case None:
            raise UsageError("it has neither a trigger nor parents: say when it runs (cron, every, at) or after what")
        case Cron(expression):
            triggers.parse(expression)
        case Every(interval_us) if interval_us < MIN_INTERVAL_US:
            raise UsageError(
                f"every must be at least {format_duration(MIN_INTERVAL_US / 1e6)}; it is {format_duration(interval_us / 1e6)}"
            )
        case At(at_us) if not 0 <= at_us < triggers.LAST_US:
            raise UsageError("at does not lie between the years 1970 and 9999")
        case _:
            pass
    for what, time_us in (("start", start_us), ("end", end_us)):
        if time_us is not None and not 0 <= time_us < triggers.LAST_US:
            raise UsageError(f"{what} does not lie between the years 1970 and 9999")
    if start_us is not None and end_us is not None and end_us < start_us:
        raise UsageError(f"it ends ({triggers.isoformat(end_us)}) before it starts ({triggers.isoformat(start_us)})")
    if triggers.next_after(schedule, -1) is None:
        raise UsageError("it never fires between its start and its end")


def _check_misfire(misfire: object) -> None:
    if misfire in ("skip", "once", "all") or (
        isinstance(misfire, int) and not isinstance(misfire, bool) and 0 <= misfire <= MAX_MISFIRES
    ):
        return
    raise UsageError(f"misfire must be 'skip', 'once', 'all' or a number up to {MAX_MISFIRES}; it is {misfire!r}")


class Catalogue:
    """The specifications of all schedules by name, at one moment. Engines cache it until a specification changes."""

    def __init__(self, schedules: Mapping[str, Schedule], unread: Mapping[str, str] | None = None) -> None:
        self.schedules = schedules
        self.unread: Mapping[str, str] = unread or {}
        """The schedules that could not be read whole (``Stored.unread``), by name."""

    def changed(self, changes: Mapping[str, Schedule | None]) -> Catalogue:
        """Return the catalogue after some schedules were replaced or, with None, removed."""
        schedules = {name: one for name, one in {**self.schedules, **changes}.items() if one is not None}
        return Catalogue(schedules, {name: why for name, why in self.unread.items() if name not in changes})

    def differs(self, name: str, schedule: Schedule | None) -> bool:
        """Return whether a specification has to be written: it is another one than the stored one."""
        return name in self.unread or self.schedules.get(name) != schedule

    @cached_property
    def graph(self) -> Graph:
        """The graph of parents and children. It leaves out schedules without either, which are most."""
        children = [one for one in self.schedules.values() if one.parents]
        related = {one.name: one for one in children}
        for child in children:
            related |= {name: self.schedules[name] for name in child.parents if name in self.schedules}
        return Graph(related.values())

    def check(self, changed: Collection[str], now_us: int) -> None:
        """Raise UsageError if the named schedules or their descendants conflict with the others."""
        self.graph.check(now_us, changed)

    def queues(self, name: str) -> bool:
        """Return whether fire times of a schedule may wait for the end of a run."""
        schedule = self.schedules.get(name)
        return schedule is not None and schedule.overlap in {Overlap.QUEUE, Overlap.REPLACE}


def leaders(schedules: Mapping[str, Schedule]) -> dict[str, str]:
    """Return, for each schedule with parents or children, the first name of its family: all schedules linked to it.

    A transaction locks the family's first schedule before the others. So transactions about one family run one after the other,
    and they cannot deadlock, even if they lock the rest in different orders.
    """
    found: dict[str, str] = {}

    def leader(name: str) -> str:
        while (above := found.setdefault(name, name)) != name:
            found[name] = found[above]
            name = above
        return name

    for schedule in schedules.values():
        for parent in schedule.parents:
            if parent in schedules:
                first, second = sorted((leader(schedule.name), leader(parent)))
                found[second] = first
    return {name: leader(name) for name in found}


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
