"""The fire times of a schedule, from its trigger, start and end; its excluded days; and the jitter of each fire time.

All of this depends only on the schedule, so every node computes the same fire times, also after a restart.
"""

from __future__ import annotations

import re
from collections import deque
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mainspring.errors import UsageError
from mainspring.quantities import format_duration
from mainspring.schedules import cron
from mainspring.schedules.model import At, Cron, Every

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.schedules.model import Schedule

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
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
            found = cron.next_after(trigger.expression, time_zone(schedule.timezone), after_us)
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
