"""Drawings of schedules: a day of all, and the last fires of a family.

A day has a row for each schedule, a cell for each part of the day in which one fires, and their sum on top. A family has a row
for each schedule, and a column for each occasion.
"""

from __future__ import annotations

import datetime as dt
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.api.schedules import TimelineBucket
from mainspring.faces.dashboard.drawings.axes import Scale, Tick, time_ticks, utc
from mainspring.faces.dashboard.words import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mainspring.api.schedules import FireInfo, Timeline

DAY_WIDTH: Final = 960
DAY_LEFT: Final = 180
DAY_ROW: Final = 22
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


class DayCell(NamedTuple):
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
    cells: list[DayCell]


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
                    marks.append(f"M{round(cell.x + (self.cell - length) / 2)} {line.y + DAY_ROW - 2}h{length}")
        return "".join(marks)

    @property
    def height(self) -> int:
        """The height of all."""
        return HEAT + DAY_ROW * len(self.lines) + 24


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


def kind_of_day_cell(bucket: TimelineBucket) -> str:
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
    time = Scale(begin, end, DAY_LEFT, DAY_WIDTH)
    timed = [[(_seconds(bucket.at) - begin, bucket) for bucket in one.buckets] for one in timeline.items]
    step = step_of([seconds for seconds, _ in buckets] for buckets in timed)
    sums: dict[float, int] = {}
    lines = []
    for number, (one, buckets) in enumerate(zip(timeline.items, timed, strict=True)):
        cells = []
        for place, bucket in _merged(buckets, step).items():
            start = begin + place * step
            x = time(start)
            count = bucket.fired + bucket.skipped + bucket.due
            sums[x] = sums.get(x, 0) + count
            span = (_minute(start), _minute(min(start + step, end))) if bucket.fired + bucket.skipped else None
            clock = dt.datetime.fromtimestamp(start, zone).strftime("%H:%M")
            kind, ended = kind_of_day_cell(bucket), bucket.succeeded + bucket.failed
            failed = bucket.failed / ended if bucket.failed and kind != "failed" else 0.0
            cells.append(DayCell(x, kind, failed, clock, _words(bucket), span))
        lines.append(Line(HEAT + DAY_ROW * number, one.schedule, cells))
    if not sums:
        return None
    most = max(sums.values())
    up = Scale(0, most, 0, HEAT - 14)
    heats = [Heat(x, up(count)) for x, count in sums.items()]
    width = round((DAY_WIDTH - DAY_LEFT) * step / (end - begin), 2)
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
        [one.schedule for one in timeline.items if not one.complete],
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


OCCASIONS: Final = 30
CELL: Final = 24
FAMILY_LEFT: Final = 180
FAMILY_ROW: Final = 24
APART: Final = 8
"""Columns from which on there is room for two times below them."""


class FamilyCell(NamedTuple):
    """One schedule at one occasion."""

    x: int
    y: int
    kind: str
    run: FireInfo


class Label(NamedTuple):
    """The time of a column below it, or of two."""

    x: int
    anchor: str
    text: str


class Family(NamedTuple):
    """The drawing."""

    names: list[str]
    occasions: list[str]
    """Fire times, the oldest first."""
    cells: list[FamilyCell]
    labels: list[Label]

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """The same as rows of a table: each occasion, the newest first, with the state of each schedule; empty: no fire."""
        kinds = {(cell.x, cell.y): cell.kind for cell in self.cells}
        found = [
            (time, [kinds.get((FAMILY_LEFT + CELL * column, FAMILY_ROW * row), "") for row in range(len(self.names))])
            for column, time in enumerate(self.occasions)
        ]
        return found[::-1]

    @property
    def kinds(self) -> list[str]:
        """The states that it has."""
        return sorted({cell.kind for cell in self.cells})

    @property
    def height(self) -> int:
        """The height of all."""
        return FAMILY_ROW * len(self.names) + 22

    @property
    def width(self) -> int:
        """The width of all."""
        return FAMILY_LEFT + CELL * OCCASIONS


def kind_of_family_cell(run: FireInfo) -> str:
    """Return the state that stands for a fire time."""
    if run.outcome:
        return run.outcome
    if run.state == "skipped":
        return "skipped"
    return "running" if run.started_at else "pending"


def family(fires: Mapping[str, Sequence[FireInfo]], zone: dt.tzinfo) -> Family | None:
    """Return the drawing of the newest fires of each schedule; None if there are none."""
    times = sorted({run.fire_time for runs in fires.values() for run in runs if run.fire_time})[-OCCASIONS:]
    if not times:
        return None
    columns = {time: FAMILY_LEFT + CELL * number for number, time in enumerate(times)}
    cells = [
        FamilyCell(columns[run.fire_time], FAMILY_ROW * row, kind_of_family_cell(run), run)
        for row, runs in enumerate(fires.values())
        for run in runs
        if run.fire_time in columns
    ]
    return Family(list(fires), times, cells, _labels(times, zone))


def _labels(times: Sequence[str], zone: dt.tzinfo) -> list[Label]:
    """Return the times of the first and the last column."""
    first, last = (dt.datetime.fromisoformat(times[at]).astimezone(zone).strftime("%d %b %H:%M") for at in (0, -1))
    if len(times) < APART:
        return [Label(FAMILY_LEFT, "start", first if len(times) == 1 else f"{first} to {last}")]
    return [Label(FAMILY_LEFT, "start", first), Label(FAMILY_LEFT + CELL * len(times), "end", last)]
