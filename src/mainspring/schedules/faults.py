"""Faults of stored schedules: why this node cannot decide the fire times of one, although another node or version could.

A schedule with a fault is set aside: it fires nothing here, it is named wherever schedules are shown, and it is tried again
(``storage.set_aside``). All other schedules go on. The store keeps it as it is until somebody replaces or removes it.
"""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING

from mainspring.errors import UsageError
from mainspring.schedules import cron, triggers
from mainspring.schedules.model import Cron, Every

if TYPE_CHECKING:
    from mainspring.schedules.model import Schedule
    from mainspring.schedules.reconcile import Stored


def fault_of(stored: Stored) -> str:
    """Return why this node cannot decide the fire times of a schedule; empty if it can."""
    if stored.unread:
        return f"this version of Mainspring cannot read it: {stored.unread}"
    return fault(stored.schedule)


def fault(schedule: Schedule) -> str:
    """Return what this node does not know of a schedule: its zone, its expression, a date; empty if it knows all.

    A zone that becomes known later, because it is installed, is found then.
    """
    try:
        match schedule.trigger:
            case Cron(expression):
                triggers.time_zone(schedule.timezone)
                cron.parse(expression)
            case Every(interval_us) if interval_us <= 0:
                return f"its interval is {interval_us} microseconds"
            case _:
                pass
        if schedule.exclude:
            triggers.time_zone(schedule.timezone)
            _check_dates(schedule.exclude)
    except UsageError as error:
        return str(error)
    if not (isfinite(schedule.jitter) and isfinite(schedule.misfire_after)):
        return "its jitter or misfire_after is no finite number"
    return ""


@lru_cache(maxsize=1000)
def _check_dates(days: tuple[str, ...]) -> None:
    for day in days:
        try:
            date.fromisoformat(day)
        except ValueError:
            raise UsageError(f"exclude has {day!r}, which is not a date") from None
