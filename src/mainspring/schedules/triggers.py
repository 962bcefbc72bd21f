"""The fire times of a schedule, from its trigger, start and end; its excluded days; and the jitter of each fire time.

A cron expression fires at instants in a time zone.
"""

from __future__ import annotations

import re
from collections import deque
from copy import copy
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from mainspring.errors import SettingsError, UsageError
from mainspring.quantities import format_duration, parse_duration
from mainspring.schedules.model import At, Cron, Every

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.schedules.model import Schedule

SHORTCUTS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_OTHERS = {
    "@reboot": "is no time: submit the job where your service starts",
    "@every_minute": "is not a name for a schedule: write '* * * * *'",
    "@every_second": "is not a name for a schedule: write '* * * * * *'",
}
"""Names of other crons."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CRON_SECOND = timedelta(seconds=1)
_MICROSECOND = timedelta(microseconds=1)
_MAX_LENGTH = 500
"""Characters of an expression, at most: enough for sixty numbers and their commas in each field."""


class _Field(NamedTuple):
    name: str
    lowest: int
    highest: int
    example: str
    names: tuple[str, ...] = ()
    """The names of its values, from the lowest on."""


_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIELDS = (
    _Field("second", 0, 59, "*/15 * * * * *"),
    _Field("minute", 0, 59, "*/10 * * * *"),
    _Field("hour", 0, 23, "30 9-17 * * *"),
    _Field("day of the month", 1, 31, "0 6 1,15 * *"),
    _Field("month", 1, 12, "0 6 1 JAN-JUN *", _MONTHS),
    _Field("day of the week", 0, 7, "0 6 * * MON-FRI", _DAYS),
)


class Expression:
    """A valid cron expression. Raises UsageError with the field, the problem and an example."""

    __slots__ = ("_walls", "by_frequency", "every_hour")

    def __init__(self, expression: str) -> None:
        parts = _parts(expression)
        for field, part in zip(_FIELDS, parts, strict=True):
            _check_steps(expression, field, part)
        plain = (_without_steps_of_one(field, part) for field, part in zip(_FIELDS, parts, strict=True))
        try:
            self._walls = CronSim(" ".join(plain), datetime(2000, 1, 1))  # noqa: DTZ001 - a time of the clock has no zone
        except (CronSimError, ValueError):  # ValueError: a number of thousands of digits
            for field, part in zip(_FIELDS, parts, strict=True):
                _check(expression, field, part)
            raise _never(expression) from None  # each field is valid by itself, but no month has the day
        self.every_hour = len(self._walls.hours) == 24
        self.by_frequency = self.every_hour or parts[0].startswith("*") or parts[1].startswith("*")
        if self.after(self._walls.dt) is None:
            raise _never(expression)

    def after(self, wall: datetime) -> datetime | None:
        """Return the first matching time of the clock after a naive one; None if there is none in 50 years."""
        walls = copy(self._walls)
        walls.dt = wall.replace(microsecond=0)
        try:
            return next(walls)
        except (StopIteration, OverflowError, ValueError):  # the calendar ends with the year 9999
            return None


@lru_cache(maxsize=10_000)
def parse(expression: str) -> Expression:
    """Return a checked expression. Raises UsageError as `Expression` does."""
    return Expression(expression)


def next_of_cron(expression: str, zone: ZoneInfo, after_us: int) -> int | None:
    """Return the first instant after ``after_us`` at which the expression fires in a zone; None if there is none."""
    cron = parse(expression)
    try:
        found = _next(cron, zone, _EPOCH + timedelta(microseconds=after_us))
    except OverflowError:
        return None
    return None if found is None else (found - _EPOCH) // _MICROSECOND


def _next(cron: Expression, zone: ZoneInfo, after: datetime) -> datetime | None:
    shown = after.astimezone(zone)
    wall = shown.replace(tzinfo=None, fold=0)
    before, since = _offsets(wall, zone)
    if before > since:  # the clock shows this time twice
        second = wall.replace(microsecond=0)
        change = _change(zone, _instant(second, before), _instant(second, since))
        last, second_last = _clock(change, before) - _CRON_SECOND, _clock(change, since) - _CRON_SECOND
        if shown.fold == 0:
            found = cron.after(wall)
            if found is not None and found <= last:
                return _instant(found, before)
        if cron.by_frequency:
            found = cron.after(wall if shown.fold else second_last)
            if found is not None and found <= last:
                return _instant(found, since)
        wall = max(wall, last)
    while (found := cron.after(wall)) is not None:
        before, since = _offsets(found, zone)
        if before >= since:
            return _instant(found, before)  # of two, the first
        change = _change(zone, _instant(found, since), _instant(found, before))
        if not cron.every_hour:
            return change
        wall = _clock(change, since) - _CRON_SECOND
    return None


# ---- the clock of a zone ----


def _offsets(wall: datetime, zone: ZoneInfo) -> tuple[timedelta, timedelta]:
    """Return the offsets from UTC of a time of the clock before and after the nearest clock change (PEP 495).

    They are equal for a time that the clock shows once. The clock skips the time if the first is smaller, and shows it twice if
    the first is larger.
    """
    local = wall.replace(tzinfo=zone)
    before, since = local.utcoffset(), local.replace(fold=1).utcoffset()
    assert before is not None
    assert since is not None
    return before, since


def _instant(wall: datetime, offset: timedelta) -> datetime:
    return (wall - offset).replace(tzinfo=UTC)


def _clock(instant: datetime, offset: timedelta) -> datetime:
    return (instant + offset).replace(tzinfo=None)


def _change(zone: ZoneInfo, earlier: datetime, later: datetime) -> datetime:
    """Return the first whole second after ``earlier``, at most ``later``, at which the zone's offset differs from then."""
    old = earlier.astimezone(zone).utcoffset()
    low, high = 0, round((later - earlier).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if (earlier + middle * _CRON_SECOND).astimezone(zone).utcoffset() == old:
            low = middle
        else:
            high = middle
    return earlier + high * _CRON_SECOND


# ---- errors in expressions ----


def _parts(expression: str) -> list[str]:
    """Return the six fields of an expression, in upper case."""
    if len(expression) > _MAX_LENGTH:
        raise UsageError(f"a cron expression has at most {_MAX_LENGTH} characters; this one has {len(expression)}")
    text = expression.strip()
    if text.startswith("@"):
        if text.lower() in _OTHERS:
            raise UsageError(f"{expression!r} {_OTHERS[text.lower()]}")
        if text.lower() not in SHORTCUTS:
            raise UsageError(f"{expression!r} is not a name for a schedule: use one of {', '.join(sorted(SHORTCUTS))}")
        text = SHORTCUTS[text.lower()]
    parts = text.upper().split()
    if len(parts) == 5:
        return ["0", *parts]
    if len(parts) != 6:
        if _is_interval(text):
            raise UsageError(
                f"{text!r} is a duration, not a cron expression: for an even interval give it as every={text!r}"
            )
        raise UsageError(
            f"{expression!r} has {len(parts)} {'field' if len(parts) == 1 else 'fields'}: a cron expression has five (minute, "
            "hour, day of the month, month, day of the week), or six with the second first; for example '30 2 * * MON-FRI'"
        )
    return parts


def _is_interval(text: str) -> bool:
    """Return whether a text is a duration, which the user meant as an even interval."""
    try:
        return parse_duration(text) > 0
    except SettingsError:
        return False


def _without_steps_of_one(field: _Field, part: str) -> str:
    """Return a field without the steps in ranges of one value: cronsim would take ``10-10/4`` for ``10-59/4``."""
    if "-" not in part:
        return part
    terms = []
    for term in part.split(","):
        span, _, step = term.partition("/")
        low, _, high = span.partition("-")
        is_one = step.isdecimal() and int(step) > 0 and _number(field, low) == _number(field, high) is not None
        terms.append(low if is_one else term)
    return ",".join(terms)


def _number(field: _Field, text: str) -> int | None:
    """Return the number of a field's value, also of a name; None if it is neither."""
    if text in field.names:
        return field.lowest + field.names.index(text)
    return int(text) if text.isascii() and text.isdecimal() else None


def _check_steps(expression: str, field: _Field, part: str) -> None:
    """Refuse steps that cronsim accepts, but that do not mean what they seem to, or nothing."""
    highest = field.highest - field.lowest + 1
    for term in part.split(","):
        span, _, step = term.partition("/")
        if step and span in {"L", "LW"}:
            raise _faulty(expression, field, f"{term!r} steps through a single day: leave out the step")
        if step.isdecimal() and int(step) > highest:
            fault = f"{term!r} steps by more than {highest}, which fires once in the field's range: use an interval (every=)"
            raise _faulty(expression, field, fault)


def _check(expression: str, field: _Field, part: str) -> None:
    for term in part.split(","):
        fault = _fault(field, term)
        if fault:
            raise _faulty(expression, field, fault)


def _faulty(expression: str, field: _Field, fault: str) -> UsageError:
    return UsageError(f"{expression!r}: {field.name} {fault}; for example {field.example!r}")


def _fault(field: _Field, term: str) -> str:
    """Return the problem of one term in a field's list; empty if it is valid."""
    if not term:
        return "has an empty place in its list"
    span, _, step = term.partition("/")
    if _understood(field, term):
        return ""
    if "?" in term:
        return f"{term!r}: write * instead of ?"
    if "/" in term and (not step.isdecimal() or int(step) == 0):
        return f"{term!r} has no step: a step is a whole number from 1 on"
    numbers = span.split("-")
    if all(number.isdecimal() for number in numbers):
        for number in numbers:
            if not field.lowest <= int(number) <= field.highest:
                return f"{number[:20]} does not lie within {field.lowest}-{field.highest}"
    if len(numbers) == 2 and all(
        number.isalnum() and _understood(field, number) and number != "L" for number in numbers
    ):
        return f"{span!r} runs backwards: write it as two ranges with a comma"
    return f"{term!r} is not understood"


def _understood(field: _Field, term: str) -> bool:
    parts = ["*"] * len(_FIELDS)
    parts[_FIELDS.index(field)] = term
    try:
        CronSim(" ".join(parts), datetime(2000, 1, 1))  # noqa: DTZ001
    except (CronSimError, ValueError):  # ValueError: a number of thousands of digits
        return False
    return True


def _never(expression: str) -> UsageError:
    return UsageError(f"{expression!r} never fires: none of its months has such a day")


_SECOND = 1_000_000
LAST_US = 253_370_764_800_000_000
"""The year 9999: `datetime` ends soon after, and no schedule fires from here on."""


_AREA_NAMES = (
    "Africa America Antarctica Arctic Asia Atlantic Australia Brazil Canada Chile Etc Europe Indian Mexico Pacific US"
)
_OTHER_NAMES = (
    "CET CST6CDT Cuba EET EST EST5EDT Egypt Eire GB GB-Eire GMT GMT+0 GMT-0 GMT0 Greenwich HST Hongkong Iceland Iran Israel "
    "Jamaica Japan Kwajalein Libya MET MST MST7MDT NZ NZ-CHAT Navajo PRC PST8PDT Poland Portugal ROC ROK Singapore Turkey UCT "
    "UTC Universal W-SU WET Zulu"
)
_AREAS = frozenset(_AREA_NAMES.split())
_ZONES_WITHOUT_AREA = frozenset(_OTHER_NAMES.split())
"""The names without an area. IANA adds no further ones: new zones have one of the areas above."""
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*")


@lru_cache(maxsize=1000)
def time_zone(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name. Raises UsageError if this system has none of that name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # also for 'Europe' (a directory) and '../x'
        raise UsageError(
            f"no time zone {name!r} is known here: use a name of IANA's such as 'Europe/Berlin' or 'UTC' (a system without time "
            "zones gets them with `pip install tzdata`)"
        ) from None


def iana_zone(name: str) -> None:
    """Raise UsageError unless a name is one of IANA's for a time zone, and this system has it.

    Other names (``localtime``, ``posix/…``, ``right/…``, a file of one's own) mean another zone on another machine, or none.
    """
    area, _, place = name.partition("/")
    if (area not in _AREAS if place else area not in _ZONES_WITHOUT_AREA) or not _ZONE_NAME.fullmatch(name):
        raise UsageError(
            f"no time zone {name[:100]!r} is known: use a name of IANA's such as 'Europe/Berlin' or 'UTC' (others, such as "
            "'localtime', may mean something else on another machine)"
        )
    time_zone(name)


def next_after(schedule: Schedule, after_us: int) -> int | None:
    """Return the first fire time after an instant, excluded days included; None if there is none, and for a child."""
    trigger = schedule.trigger
    if trigger is None:
        return None
    if schedule.start_us is not None:
        after_us = max(after_us, schedule.start_us - 1)
    if after_us >= LAST_US:
        return None
    match trigger:
        case Cron():
            found = next_of_cron(trigger.expression, time_zone(schedule.timezone), after_us)
        case Every():
            anchor = schedule.start_us or 0
            found = anchor + ((after_us - anchor) // trigger.interval_us + 1) * trigger.interval_us
        case At():
            found = trigger.at_us if trigger.at_us > after_us else None
    if found is None or found >= LAST_US or (schedule.end_us is not None and found > schedule.end_us):
        return None
    return found


def first(schedule: Schedule, now_us: int) -> int | None:
    """Return the first fire time of a schedule that is created now.

    Times before now do not count as missed, even if the schedule's start is earlier, because it did not exist. Only the single
    time of ``At`` does, however long ago it was, because it will not come again: ``misfire`` decides whether it runs.
    """
    if isinstance(schedule.trigger, At):
        return next_after(schedule, schedule.trigger.at_us - 1)
    return next_after(schedule, now_us - 1)


def fire_times(schedule: Schedule, after_us: int, until_us: int) -> Iterator[int]:
    """Yield the fire times after one instant up to and including another."""
    fire_us = next_after(schedule, after_us)
    while fire_us is not None and fire_us <= until_us:
        yield fire_us
        fire_us = next_after(schedule, fire_us)


def running_times(schedule: Schedule, after_us: int, until_us: int) -> Iterator[int]:
    """Yield the same without those on excluded days; each such day costs one step, however often the schedule fires."""
    return (fire_us for fire_us in running_steps(schedule, after_us, until_us) if fire_us is not None)


def running_steps(schedule: Schedule, after_us: int, until_us: int) -> Iterator[int | None]:
    """Yield the same, and None for each excluded day, so that callers can pause in between."""
    fire_us = next_after(schedule, after_us)
    while fire_us is not None and fire_us <= until_us:
        if excluded(schedule, fire_us):
            yield None
            fire_us = next_after(schedule, _end_of_day(schedule, fire_us) - 1)
        else:
            yield fire_us
            fire_us = next_after(schedule, fire_us)


def newest(times: Callable[[int], Iterator[int]], after_us: int, until_us: int, number: int) -> list[int]:
    """Return the newest of the times after an instant up to another, at most ``number``, without a look at each time between.

    ``times`` yields the times after an instant up to ``until_us``, at most ten a second.
    """

    def has_enough(since_us: int) -> bool:
        return next(islice(times(since_us), number - 1, None), None) is not None

    back, low, high = _SECOND, until_us, until_us
    while not has_enough(low):
        if low == after_us:
            return list(times(after_us))
        high, low = low, max(until_us - back, after_us)
        back *= 2
    while high - low > _SECOND:
        middle = (low + high) // 2
        low, high = (middle, high) if has_enough(middle) else (low, middle)
    return list(deque(times(low), maxlen=number))


def fires_at(schedule: Schedule, instant_us: int) -> bool:
    """Return whether an instant is one of the fire times."""
    return next_after(schedule, instant_us - 1) == instant_us


def excluded(schedule: Schedule, fire_us: int) -> bool:
    """Return whether a fire time lies on one of the excluded days, in the schedule's time zone."""
    return bool(schedule.exclude) and _shown(schedule, fire_us).date().isoformat() in schedule.exclude


def jitter_us(schedule: Schedule, fire_us: int) -> int:
    """Return how long after a fire time its job is due: from 0 to ``jitter``, evenly spread.

    It depends only on the schedule's name and the fire time, so all nodes compute the same, and so does a repetition.
    """
    if not schedule.jitter:
        return 0
    number = blake2b(f"{schedule.namespace}\0{schedule.name}\0{fire_us}".encode(), digest_size=8).digest()
    return int.from_bytes(number, "big") % (round(schedule.jitter * 1_000_000) + 1)


def describe(schedule: Schedule) -> str:
    """Return a short description for people of when a schedule fires."""
    match schedule.trigger:
        case Cron(expression):
            return f"cron '{expression}'"
        case Every(interval_us):
            return f"every {format_duration(interval_us / 1e6)}"
        case At(at_us):
            return f"at {isoformat(at_us)}"
        case None:
            return "after " + " and ".join(schedule.parents) if schedule.parents else "unknown"


def isoformat(instant_us: int) -> str:
    """Return an instant as ISO 8601 text in UTC."""
    return utc(instant_us).isoformat()


def utc(instant_us: int) -> datetime:
    """Return an instant as an aware UTC datetime."""
    return _EPOCH + timedelta(microseconds=instant_us)


def _shown(schedule: Schedule, instant_us: int) -> datetime:
    return utc(instant_us).astimezone(time_zone(schedule.timezone))


def _end_of_day(schedule: Schedule, instant_us: int) -> int:
    """Return a later instant before which the schedule's clock stays on the same day: the day's end, or an earlier one.

    A clock that is set back just after midnight shows two parts of each of two days. So a step must not cross such a change, and
    must end on the same day; it is halved until it does, and the caller continues from there.
    """
    shown = _shown(schedule, instant_us)
    midnight = datetime.combine(shown.date() + timedelta(days=1), time.min, shown.tzinfo)
    end = (midnight.astimezone(UTC) - _EPOCH) // _MICROSECOND
    while end > instant_us + 1:
        last = _shown(schedule, end - 1)
        if last.date() == shown.date() and _offset(last) >= _offset(shown):
            return end
        end = instant_us + (end - instant_us) // 2
    return instant_us + 1


def _offset(shown: datetime) -> timedelta:
    offset = shown.utcoffset()
    assert offset is not None
    return offset
