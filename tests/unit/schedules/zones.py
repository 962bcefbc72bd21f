"""Time zones and the instants of their clock changes, for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import strategies as st

MINUTE = 60_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
SINCE, UNTIL = datetime(1973, 1, 1, tzinfo=UTC), datetime(2045, 1, 1, tzinfo=UTC)
"""Since 1973 all changes are at whole minutes. After 2037 the rules of that year continue."""

# 'localtime', 'posix/…' and 'right/…' (with leap seconds) are not IANA names.
ZONES = sorted(name for name in available_timezones() if name[0].isupper())


@cache
def changes(name: str) -> tuple[datetime, ...]:
    """Return when the offset of a zone changes; two changes within ten days count as one."""
    zone, found = ZoneInfo(name), list[datetime]()
    day = SINCE
    while day < UNTIL:
        following = day + timedelta(days=1)
        if day.astimezone(zone).utcoffset() != following.astimezone(zone).utcoffset():
            low, high = 0, 24 * 60
            while high - low > 1:
                middle = (low + high) // 2
                same = (day + timedelta(minutes=middle)).astimezone(zone).utcoffset() == day.astimezone(
                    zone
                ).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            found.append(day + timedelta(minutes=high))
        day = following
    return tuple(found)


# Half an hour, two hours, whole days, at midnight, just after midnight, without a rule, before midnight.
PECULIAR = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Pacific/Apia",
    "America/Havana",
    "America/St_Johns",
    "Africa/Casablanca",
    "America/Nuuk",
    "Africa/Cairo",
    "Asia/Beirut",
    "Pacific/Kwajalein",
    "America/Sao_Paulo",
]
NAMES = st.one_of(st.sampled_from(PECULIAR), st.sampled_from(ZONES))
CHANGES = NAMES.flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(changes(name) or (SINCE,))))
"""A zone and an instant at which its clock changes; any instant if it never does."""


def us(instant: datetime) -> int:
    """Return an instant as microseconds since 1970."""
    return round((instant - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    """Return the instant at which a zone's clock shows an ISO time."""
    return us(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold))


def show(instant_us: int, zone: str = "UTC") -> str:
    """Return the time on a zone's clock, with its offset."""
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant_us)
    return instant.astimezone(ZoneInfo(zone)).isoformat(sep=" ")
