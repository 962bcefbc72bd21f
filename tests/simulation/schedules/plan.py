"""The schedules of a run and their fire times, computed a second time by a slow method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.jobs.model import Retry
from mainspring.schedules.model import At, Cron, Every, Overlap, Schedule
from tests.simulation.actors import FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from random import Random

    from mainspring.schedules.model import Trigger

SECOND = 1_000_000
MIDNIGHT = 1_700_006_400
"""Midnight before 15 November 2023, UTC."""
BEGIN = MIDNIGHT - 40
"""The begin of a run, shortly before the end of its first day."""
DAYS = ("2023-11-14", "2023-11-15")
DAY_US = 86_400 * SECOND

CRONS: dict[str, Collection[int]] = {
    "*/2 * * * * *": range(0, 60, 2),
    "*/5 * * * * *": range(0, 60, 5),
    "*/10 * * * * *": range(0, 60, 10),
    "1-59/7 * * * * *": range(1, 60, 7),
    "3,4,5,33 * * * * *": (3, 4, 5, 33),
}
"""Cron expressions, and the seconds of each minute at which they fire."""
INTERVALS = (0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
UNIQUES = (b"", b"", b"", b"u", b"v")


# ---- fire times ----


def times(schedule: Schedule, from_us: int, until_us: int) -> list[int]:
    """Return the fire times from one instant until another, both included."""
    from_us = max(from_us, schedule.start_us or 0)
    until_us = until_us if schedule.end_us is None else min(until_us, schedule.end_us)
    trigger = schedule.trigger
    match trigger:
        case None:
            return []
        case At(at_us):
            return [at_us] if from_us <= at_us <= until_us else []
        case Every(interval_us):
            anchor = schedule.start_us or 0
            first = from_us + (anchor - from_us) % interval_us
            return list(range(first, until_us + 1, interval_us))
        case Cron(expression):
            seconds = range(-(-from_us // SECOND), until_us // SECOND + 1)
            return [second * SECOND for second in seconds if second % 60 in CRONS[expression]]


def excluded(schedule: Schedule, fire_us: int) -> bool:
    """Return whether a schedule excludes the day of a fire time."""
    return DAYS[fire_us >= MIDNIGHT * SECOND] in schedule.exclude


def takes_part(name: str, root: str, fire_us: int, schedules: Mapping[str, Schedule]) -> bool:
    """Return whether a schedule runs in the occasion of a fire time, or in the one that was triggered at ``root``."""
    if name not in schedules:
        return False
    schedule = schedules[name]
    if name == root:
        return True
    if not schedule.parents:
        return not root and times(schedule, fire_us, fire_us) == [fire_us]
    return all(takes_part(parent, root, fire_us, schedules) for parent in schedule.parents)


# ---- schedules ----


def family(chance: Random) -> list[Schedule]:
    """Return schedules that run after each other; their parents and the triggers of their roots never change."""
    trigger = _trigger(chance, 0)
    found = [
        _schedule(chance, "root", trigger=trigger, wait_for_children=chance.random() < 0.6),
        _schedule(chance, "left", parents=("root",), wait_for_children=chance.random() < 0.3),
        _schedule(chance, "right", parents=("root",)),
        _schedule(chance, "both", parents=("left", "right")),
    ]
    if chance.random() < 0.5:
        found.append(_schedule(chance, "other", trigger=chance.choice((trigger, Every(SECOND), Every(3 * SECOND)))))
        if _meet(found[0], found[-1]):
            found.append(_schedule(chance, "late", parents=("root", "other")))
    return found


def _meet(one: Schedule, other: Schedule) -> bool:
    span = BEGIN * SECOND, (BEGIN + 600) * SECOND
    return len(set(times(one, *span)) & set(times(other, *span))) > 3


def loners(chance: Random, now_us: int) -> list[Schedule]:
    """Return schedules without relatives, which may be changed in every way."""
    return [loner(chance, f"s{number}", now_us) for number in range(chance.randint(2, 4))]


def loner(chance: Random, name: str, now_us: int) -> Schedule:
    """Return one schedule without relatives."""
    return _schedule(chance, name, trigger=_trigger(chance, now_us))


def edited(chance: Random, schedule: Schedule, now_us: int) -> Schedule:
    """Return a schedule with one change; its overlap does not change, because runs may be in progress."""
    fields: dict[str, Any] = {
        "args": schedule.args,
        "jitter": chance.choice((0.0, 0.5)),
        "priority": chance.randint(0, 2),
    }
    if schedule.trigger is not None:
        fields["misfire"] = _misfire(chance)
        fields["exclude"] = _exclude(chance)
    if schedule.name.startswith("s"):
        if chance.random() < 0.7:
            fields["trigger"] = _trigger(chance, now_us)
            fields["start_us"] = chance.choice((None, None, now_us + chance.randint(-5, 5) * SECOND))
            fields["end_us"] = chance.choice((None, None, None, now_us + chance.randint(6, 60) * SECOND))
        if isinstance(fields.get("trigger", schedule.trigger), At):
            fields["start_us"] = fields["end_us"] = None
    return replace(schedule, **fields)


def _trigger(chance: Random, now_us: int) -> Trigger:
    number = chance.random()
    if number < 0.5:
        return Every(round(chance.choice(INTERVALS) * SECOND))
    if number < 0.85 or not now_us:
        return Cron(chance.choice(list(CRONS)))
    return At(now_us + chance.randint(-3, 20) * SECOND)


def _schedule(chance: Random, name: str, **fields: Any) -> Schedule:
    if fields.get("trigger") is not None:
        fields["misfire"] = _misfire(chance)
        fields["exclude"] = _exclude(chance)
    return Schedule(
        name=name,
        function=chance.choice(FUNCTIONS),
        args=b"0.0",
        overlap=chance.choice(list(Overlap)),
        unique=chance.choice(UNIQUES),
        misfire_after=chance.choice((1.0, 1.0, 0.5, 4.0)),
        jitter=chance.choice((0.0, 0.0, 1.0)),
        retry=chance.choice((None, None, Retry(max_attempts=2, initial=0.5))),
        timeout=chance.choice((None, None, None, 2.0)),
        expires=chance.choice((None, None, None, 3.0)),
        **fields,
    )


def _misfire(chance: Random) -> Any:
    return chance.choice(("once", "once", "skip", "all", 2))


def _exclude(chance: Random) -> tuple[str, ...]:
    return chance.choice(((), (), (), (), (), (), DAYS[:1], DAYS[1:]))
