"""Drawings of a function's work: its jobs over time, their durations, and its last hour in one cell.

Over time, jobs that have ended well are above the axis, failed ones below it, submitted ones a line, waiting ones an area.
Durations are rows of a table with bars: how long jobs waited and attempts ran. The cell has a line of submitted jobs, and
below it bars of attempts that did not succeed.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.faces.dashboard.drawings.axes import LETTER, Scale, Tick, nice_ceiling, rows_of, time_ticks, utc
from mainspring.faces.dashboard.words import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.api.access import MarkInfo
    from mainspring.api.functions import BucketInfo, DurationNumbers, Series
    from mainspring.api.namespaces import TroubledFunction

WIDTH: Final = 720
LEFT: Final = 44
TOP: Final = 32
HEIGHT: Final = 120
"""Of the part above the axis."""
DEPTH: Final = 48
"""Of the part below the axis."""
GAP: Final = 1
LABEL: Final = 24
"""The letters of a label that the drawing has."""


class Column(NamedTuple):
    """A bucket in which something happened."""

    x: float
    width: float
    good: float
    """Height above the axis."""
    bad: float
    """Depth below it."""
    bucket: BucketInfo
    since: str
    """Its begin and its end, for the address of the jobs that were submitted in it."""
    until: str


class Flag(NamedTuple):
    """A mark."""

    x: float
    label: str
    at: str
    has_room: bool
    """Whether the label overlaps no other one."""


class Throughput(NamedTuple):
    """The drawing of a series."""

    columns: list[Column]
    line: str
    """The points of the line of submitted jobs."""
    area: str
    """The points of the area of waiting jobs, with a scale of its own; empty if their numbers are unknown."""
    flags: list[Flag]
    ticks: list[Tick]
    most: float
    """The number of jobs at the top."""
    most_waiting: float
    """That of waiting jobs."""
    minutes: float
    """Of a bucket."""
    submitted: int
    good: int
    bad: int
    waiting: int
    """At the end."""

    @property
    def height(self) -> int:
        """The height of all."""
        return TOP + HEIGHT + DEPTH + 20

    @property
    def axis(self) -> int:
        """The place of the axis."""
        return TOP + HEIGHT


def failures(bucket: BucketInfo) -> int:
    """Return how many attempts did not succeed."""
    return bucket.failed + bucket.retried + bucket.timed_out + bucket.lost


def throughput(series: Series, marks: Sequence[MarkInfo], zone: dt.tzinfo) -> Throughput | None:
    """Return the drawing; None if nothing happened."""
    buckets = series.buckets
    submitted, good, bad = (
        sum(numbers)
        for numbers in ([one.submitted for one in buckets], [one.succeeded for one in buckets], map(failures, buckets))
    )
    queued = max((one.waiting or 0 for one in buckets), default=0)
    if not submitted + good + bad + queued:
        return None
    begin = _seconds(buckets[0].at)
    time = Scale(begin, _seconds(buckets[-1].at) + series.step, LEFT, WIDTH)
    most = nice_ceiling(max(max(one.submitted, one.succeeded, failures(one)) for one in buckets))
    up, down = Scale(0, most, 0, HEIGHT), Scale(0, most, 0, DEPTH)
    width = round((WIDTH - LEFT) / len(buckets) - GAP, 1)
    columns: list[Column] = []
    waited: int | None = None
    for one in buckets:
        if one.submitted or one.succeeded or failures(one) or one.waiting != waited:
            start = _seconds(one.at)
            span = utc(start), utc(start + series.step)
            columns.append(Column(time(start), width, up(one.succeeded), down(failures(one)), one, *span))
        waited = one.waiting
    middle = series.step / 2
    line = " ".join(
        f"{time(_seconds(one.at) + middle)},{round(TOP + HEIGHT - up(one.submitted), 1)}" for one in buckets
    )
    shown = sorted(
        (time(_seconds(one.at)), one.label, one.at)
        for one in marks
        if one.at and begin <= _seconds(one.at) <= time.high
    )
    rows = rows_of([(x + len(label[:LABEL]) * LETTER / 2, label[:LABEL]) for x, label, _ in shown])
    flags = [Flag(*one, row == 0) for one, row in zip(shown, rows, strict=True)]
    most_waiting = nice_ceiling(queued)
    return Throughput(
        columns,
        line,
        _area(buckets, series.step, time, Scale(0, most_waiting, 0, HEIGHT)),
        flags,
        time_ticks(time, zone),
        most,
        most_waiting,
        series.step / 60,
        submitted,
        good,
        bad,
        buckets[-1].waiting or 0,
    )


def _area(buckets: Sequence[BucketInfo], step: float, time: Scale, up: Scale) -> str:
    """Return the points of the area of waiting jobs: a bucket is as high as their number at its end."""
    corners: list[tuple[float, float]] = []
    for one in buckets:
        if one.waiting is not None:
            y = round(TOP + HEIGHT - up(one.waiting), 1)
            corners += [(time(_seconds(one.at)), y), (time(_seconds(one.at) + step), y)]
    if not corners:
        return ""
    axis = float(TOP + HEIGHT)
    # A corner between two others of the same height says nothing.
    kept = [
        corner
        for at, corner in enumerate(corners)
        if not 0 < at < len(corners) - 1 or not corners[at - 1][1] == corner[1] == corners[at + 1][1]
    ]
    return " ".join(f"{x},{y}" for x, y in [(corners[0][0], axis), *kept, (corners[-1][0], axis)])


def _seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


class Row(NamedTuple):
    """The numbers of one range of durations."""

    text: str
    waited: int
    ran: int


class Histogram(NamedTuple):
    """The ranges from the shortest duration to the longest."""

    rows: list[Row]
    waited: int
    """All jobs, and all attempts."""
    ran: int
    most_waited: int
    """The largest numbers: whole bars."""
    most_ran: int


def histogram(series: Series) -> Histogram | None:
    """Return the histogram of all buckets of a series; None if it has no durations."""
    bounds = series.bounds
    waited = _sums((one.wait for one in series.buckets), len(bounds) + 1)
    ran = _sums((one.run for one in series.buckets), len(bounds) + 1)
    filled = [place for place in range(len(waited)) if waited[place] or ran[place]]
    if not filled or not bounds:
        return None
    texts = [f"up to {duration(bound)}" for bound in bounds] + [f"over {duration(bounds[-1])}"]
    rows = [Row(*row) for row in zip(texts, waited, ran, strict=True)][filled[0] : filled[-1] + 1]
    return Histogram(rows, sum(waited), sum(ran), max(waited), max(ran))


def _sums(durations: Iterable[DurationNumbers | None], length: int) -> list[int]:
    sums = [0] * length
    for one in durations:
        for place, number in enumerate([] if one is None else one.counts[:length]):
            sums[place] += number
    return sums


SPARK_WIDTH: Final = 120
MIDDLE: Final = 20
"""Where the line has its zero, and the bars begin."""
SPARK_HEIGHT: Final = 30
RATE_MINUTES: Final = 5
"""The whole minutes over which a rate is averaged."""


class Spark(NamedTuple):
    """The drawing, and its numbers."""

    line: str
    """The points of a line."""
    bars: str
    """A path; empty if everything has succeeded."""
    marks: list[float]
    """Where marks such as deployments are."""
    text: str
    """The same in words."""


def spark(function: TroubledFunction, marks: Sequence[MarkInfo], now: float) -> Spark | None:
    """Return the drawing; None if the store keeps no series."""
    submitted, bad = function.submitted, function.not_succeeded
    if submitted is None or bad is None:
        return None
    step = SPARK_WIDTH / max(len(submitted), 1)
    top = max(*submitted, *bad, 1)  # one scale: a few failures among many jobs are a short bar
    line = " ".join(
        f"{(place + 0.5) * step:.0f},{MIDDLE - number / top * (MIDDLE - 2):.1f}"
        for place, number in enumerate(submitted)
    )
    bars = "".join(
        f"M{(place + 0.5) * step:.0f} {MIDDLE}v{max(number / top * (SPARK_HEIGHT - MIDDLE), 1.5):.1f}"
        for place, number in enumerate(bad)
        if number
    )
    begin = (now // 60 - len(submitted) + 1) * 60
    places = ((dt.datetime.fromisoformat(mark.at).timestamp() - begin) / 60 * step for mark in marks if mark.at)
    text = f"{sum(submitted)} submitted and {sum(bad)} not succeeded in the last hour"
    return Spark(line, bars, [round(place, 1) for place in places if 0 <= place <= SPARK_WIDTH], text)


def rate(numbers: Sequence[int] | None) -> float | None:
    """Return how many there are in a minute, by the last whole minutes; None if that is not kept."""
    return None if numbers is None else sum(numbers[-RATE_MINUTES - 1 : -1]) / RATE_MINUTES
