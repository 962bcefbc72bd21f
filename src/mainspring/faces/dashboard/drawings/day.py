"""A day of all schedules: a row for each, a cell for each part of the day in which one fires, and their sum on top."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.faces.dashboard.drawings.axes import Scale, Tick, time_ticks, utc
from mainspring.faces.dashboard.words import duration

if TYPE_CHECKING:
    from mainspring.api.fires import Timeline, TimelineBucket

WIDTH: Final = 960
LEFT: Final = 180
ROW: Final = 22
HEAT: Final = 40
"""The height of the sum on top."""
MOST_CELLS: Final = 250
"""With the texts, lines and bars, a drawing has at most 500 shapes, and the page of 1,000 schedules at most 100 KB."""
QUARTER: Final = 900
"""Seconds."""
STEPS: Final = (900, 1800, 3600, 7200, 14400)
"""Seconds of a cell."""


class Cell(NamedTuple):
    """A part of the day of one schedule."""

    x: float
    kind: str
    """The state that its look is of."""
    clock: str
    """The time of day of its begin, in the zone of the viewer."""
    words: str
    span: tuple[str, str] | None
    """Its begin and its end, if it has fire times of the past: for the address of these."""


class Line(NamedTuple):
    """The row of a schedule."""

    y: float
    schedule: str
    cells: list[Cell]


class Heat(NamedTuple):
    """The sum of a part of the day."""

    x: float
    height: float


class Jump(NamedTuple):
    """A change of the zone's clock."""

    x: float
    at: str
    text: str
    """By how much, such as ``+1 h``."""


class Day(NamedTuple):
    """The drawing."""

    lines: list[Line]
    heats: list[Heat]
    most: int
    """The largest sum."""
    ticks: list[Tick]
    now: float | None
    """The place of the present time, if it is in the day."""
    jump: Jump | None
    cell: float
    """The width of a cell."""
    minutes: int
    """Of a cell."""
    fires: int

    @property
    def height(self) -> int:
        """The height of all."""
        return HEAT + ROW * len(self.lines) + 24


def step_for(schedules: int) -> int:
    """Return the seconds of a cell with which a day of so many schedules has not too many cells."""
    return next((step for step in STEPS if schedules * 86400 // step <= MOST_CELLS), STEPS[-1])


def kind_of(bucket: TimelineBucket) -> str:
    """Return the state that stands for a part of the day: failures first."""
    if bucket.failed:
        return "failed"
    if bucket.skipped:
        return "skipped"
    if bucket.fired > bucket.succeeded:
        return "running"
    if bucket.succeeded:
        return "succeeded"
    return "scheduled"


def day(timeline: Timeline, now: float, zone: dt.tzinfo) -> Day | None:
    """Return the drawing of a timeline; None if nothing fires in it."""
    begin, end = _seconds(timeline.since), _seconds(timeline.until)
    time = Scale(begin, end, LEFT, WIDTH)
    sums: dict[float, int] = {}
    lines = []
    for number, one in enumerate(timeline.schedules):
        cells = []
        for bucket in one.buckets:
            start = _seconds(bucket.at)
            x = time(start)
            count = bucket.fired + bucket.skipped + bucket.due
            sums[x] = sums.get(x, 0) + count
            span = (utc(start), utc(start + timeline.step)) if bucket.fired + bucket.skipped else None
            clock = dt.datetime.fromtimestamp(start, zone).strftime("%H:%M")
            cells.append(Cell(x, kind_of(bucket), clock, _words(bucket), span))
        lines.append(Line(HEAT + ROW * number, one.schedule, cells))
    if not sums:
        return None
    most = max(sums.values())
    up = Scale(0, most, 0, HEAT - 14)
    heats = [Heat(x, up(count)) for x, count in sums.items()]
    width = round((WIDTH - LEFT) * timeline.step / (end - begin), 2)
    shown_now = time(now) if begin <= now < end else None
    return Day(
        lines,
        heats,
        most,
        time_ticks(time, zone, 12),
        shown_now,
        _jump(begin, end, time, zone),
        width,
        round(timeline.step / 60),
        sum(sums.values()),
    )


def _jump(begin: float, end: float, time: Scale, zone: dt.tzinfo) -> Jump | None:
    """Return the first change of a zone's clock in a time: clocks change at full quarters of an hour."""
    offsets = [
        (at, dt.datetime.fromtimestamp(at, zone).utcoffset() or dt.timedelta())
        for at in range(round(begin), round(end) + 1, QUARTER)
    ]
    for (_, before), (at, after) in itertools.pairwise(offsets):
        if before != after:
            change = (after - before).total_seconds()
            text = f"{'+' if change > 0 else '-'}{duration(abs(change))}"
            return Jump(time(at), dt.datetime.fromtimestamp(at, dt.UTC).isoformat(), text)
    return None


def _words(bucket: TimelineBucket) -> str:
    parts = {
        "succeeded": bucket.succeeded,
        "failed": bucket.failed,
        "under way": bucket.fired - bucket.succeeded - bucket.failed,
        "skipped": bucket.skipped,
        "to come": bucket.due,
    }
    return ", ".join(f"{count} {name}" for name, count in parts.items() if count > 0)


def _seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()
