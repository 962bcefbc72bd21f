"""Cron expressions, and the instants at which they fire in a time zone.

Five fields: minute, hour, day of the month, month, day of the week. Six fields: the **second comes first**, as in Quartz, Spring
and cronsim (croniter and some others put it last). Names such as ``@daily`` stand for five fields. Fields have ``*``, lists,
ranges, steps, ``JAN``, ``MON``, ``L`` and ``LW`` (last day, last weekday of the month), ``5L`` (last Friday), ``MON#1`` (first
Monday). If both day fields are restricted, one of them has to match; if one begins with ``*``, both have to (Vixie's rule).

The rules for clock changes (the contract of ``docs/explanation/time.md``):

====================================  ==================================  ===============================
the expression                        times that the clock skips          times that it shows twice
====================================  ==================================  ===============================
every hour (``*/15 * * * *``)         do not fire                         fire both times
some hours, minute or second by star  fire once, at the change            fire both times
(``*/15 2 * * *``)
some hours, minute and second fixed   fire once, at the change            fire the first time
(``30 2 * * *``, ``0 */6 * * *``)
====================================  ==================================  ===============================

So an expression that runs by frequency keeps even intervals of elapsed time, and one with stated times neither loses nor repeats
a day. This is Debian's rule for cron, with two differences. The rule depends on the set of hours, not on the way they are
written: Debian skips or repeats ``0 */6 * * *``, but not ``0 0,6,12,18 * * *``. And ``*/15 2 * * *`` does not lose the day on
which there is no 2 o'clock.

cronsim finds the matching times of the clock, without a time zone. This module maps them to instants, because cronsim applies
Debian's rule only to five fields, and its steps through a change can go back in time or in a circle.
"""

from __future__ import annotations

from copy import copy
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from cronsim import CronSim, CronSimError

from mainspring.errors import SettingsError, UsageError
from mainspring.quantities import parse_duration

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

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
_SECOND = timedelta(seconds=1)
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


def next_after(expression: str, zone: ZoneInfo, after_us: int) -> int | None:
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
        last, second_last = _clock(change, before) - _SECOND, _clock(change, since) - _SECOND
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
        wall = _clock(change, since) - _SECOND
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
        if (earlier + middle * _SECOND).astimezone(zone).utcoffset() == old:
            low = middle
        else:
            high = middle
    return earlier + high * _SECOND


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
