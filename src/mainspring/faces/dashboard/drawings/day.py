"""A day of schedules: a row for each, a cell for each part of the day in which one fires, and their sum on top."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.api.fires import TimelineBucket
from mainspring.faces.dashboard.drawings.axes import Scale, Tick, time_ticks, utc
from mainspring.faces.dashboard.words import duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.api.fires import Timeline

WIDTH: Final = 960
LEFT: Final = 180
ROW: Final = 22
HEAT: Final = 40
"""The height of the sum on top."""
MOST_CELLS: Final = 250
"""With the texts, lines and bars, a drawing has at most 500 shapes, and the page of 1,000 schedules at most 100 KB."""
QUARTER: Final = 900
"""Seconds."""
ROOM: Final = 1500
"""Seconds of the day that are as wide as a shape: shapes that are nearer to each other overlap."""
STEPS: Final = (900, 1800, 3600, 7200, 14400, 21600)
"""Seconds of a cell. With the longest one, 50 schedules that fire all the time fit into the longest day."""


KINDS: Final = ("failed", "skipped", "running", "succeeded", "scheduled")
"""The states of a part of the day: the first one that it has stands for it, but failures only if they are most of its ends."""
SHORTEST: Final = 3.0
"""The length of a mark for failures."""


class Cell(NamedTuple):
    """A part of the day of one schedule."""

    x: float
    kind: str
    """The state that its look is of."""
    failed: float
    """The part of its ended fires that failed, if another state stands for it; else 0."""
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
    often: list[str]
    """Schedules with more fire times than the timeline counts: the cells have those that are nearest to now."""

    @property
    def kinds(self) -> list[str]:
        """The states that it has, in the order in which they stand for a part of the day."""
        found = {cell.kind for line in self.lines for cell in line.cells}
        return [kind for kind in KINDS if kind in found]

    @property
    def failures(self) -> str:
        """A path with a mark below each cell with failed fires. Its length is the failed share of the cell."""
        marks = []
        for line in self.lines:
            for cell in line.cells:
                if cell.failed:
                    length = round(max(cell.failed * self.cell, SHORTEST))
                    marks.append(f"M{round(cell.x + (self.cell - length) / 2)} {line.y + ROW - 2}h{length}")
        return "".join(marks)

    @property
    def height(self) -> int:
        """The height of all."""
        return HEAT + ROW * len(self.lines) + 24


def step_of(lines: Iterable[Iterable[float]]) -> int:
    """Return the fewest seconds of a cell with which a day has not too many cells, and room for the shape of each.

    The lines have seconds of the day.
    """
    lines = [list(line) for line in lines]
    for step in STEPS:
        cells = [sorted({seconds // step for seconds in line}) for line in lines]
        has_room = all((after - before) * step >= ROOM for line in cells for before, after in itertools.pairwise(line))
        if has_room and sum(map(len, cells)) <= MOST_CELLS:
            return step
    return STEPS[-1]


def kind_of(bucket: TimelineBucket) -> str:
    """Return the state that stands for a part of the day: failures first, if they are not fewer than successes."""
    if bucket.failed and bucket.failed >= bucket.succeeded:
        return "failed"
    if bucket.skipped:
        return "skipped"
    if bucket.fired > bucket.succeeded + bucket.failed:
        return "running"
    if bucket.succeeded:
        return "succeeded"
    return "scheduled"


def day(timeline: Timeline, now: float, zone: dt.tzinfo) -> Day | None:
    """Return the drawing of a timeline; None if nothing fires in it."""
    begin, end = _seconds(timeline.since), _seconds(timeline.until)
    time = Scale(begin, end, LEFT, WIDTH)
    timed = [[(_seconds(bucket.at) - begin, bucket) for bucket in one.buckets] for one in timeline.schedules]
    step = step_of([seconds for seconds, _ in buckets] for buckets in timed)
    sums: dict[float, int] = {}
    lines = []
    for number, (one, buckets) in enumerate(zip(timeline.schedules, timed, strict=True)):
        cells = []
        for place, bucket in _merged(buckets, step).items():
            start = begin + place * step
            x = time(start)
            count = bucket.fired + bucket.skipped + bucket.due
            sums[x] = sums.get(x, 0) + count
            span = (_minute(start), _minute(min(start + step, end))) if bucket.fired + bucket.skipped else None
            clock = dt.datetime.fromtimestamp(start, zone).strftime("%H:%M")
            kind, ended = kind_of(bucket), bucket.succeeded + bucket.failed
            failed = bucket.failed / ended if bucket.failed and kind != "failed" else 0.0
            cells.append(Cell(x, kind, failed, clock, _words(bucket), span))
        lines.append(Line(HEAT + ROW * number, one.schedule, cells))
    if not sums:
        return None
    most = max(sums.values())
    up = Scale(0, most, 0, HEAT - 14)
    heats = [Heat(x, up(count)) for x, count in sums.items()]
    width = round((WIDTH - LEFT) * step / (end - begin), 2)
    shown_now = time(now) if begin <= now < end else None
    return Day(
        lines,
        heats,
        most,
        time_ticks(time, zone, 12),
        shown_now,
        _jump(begin, end, time, zone),
        width,
        step // 60,
        sum(sums.values()),
        [one.schedule for one in timeline.schedules if not one.complete],
    )


def _merged(buckets: Iterable[tuple[float, TimelineBucket]], step: int) -> dict[int, TimelineBucket]:
    """Return the sums of buckets, which have their seconds of the day, by the numbers of cells."""
    found: dict[int, TimelineBucket] = {}
    for seconds, one in buckets:
        whole = found.setdefault(int(seconds // step), TimelineBucket(one.at, 0, 0, 0, 0, 0))
        whole.fired += one.fired
        whole.succeeded += one.succeeded
        whole.failed += one.failed
        whole.skipped += one.skipped
        whole.due += one.due
    return found


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


def _minute(time: float) -> str:
    return utc(time)[:-3]


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
