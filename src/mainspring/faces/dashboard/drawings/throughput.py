"""The jobs of a function over time: ended well above the axis, failed below it, submitted as a line, marks as flags."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.faces.dashboard.drawings.axes import Scale, Tick, nice_ceiling, time_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.api.audit import MarkInfo
    from mainspring.api.series import BucketInfo, Series

WIDTH: Final = 720
LEFT: Final = 44
TOP: Final = 16
HEIGHT: Final = 120
"""Of the part above the axis."""
DEPTH: Final = 48
"""Of the part below the axis."""
GAP: Final = 1


class Bar(NamedTuple):
    """The bars of one bucket."""

    x: float
    width: float
    good: float
    """Height above the axis."""
    bad: float
    """Depth below it."""


class Flag(NamedTuple):
    """A mark."""

    x: float
    label: str


class Throughput(NamedTuple):
    """The drawing of a series."""

    bars: list[Bar]
    line: str
    """The points of the line of submitted jobs."""
    flags: list[Flag]
    ticks: list[Tick]
    most: float
    """The number of jobs at the top."""
    minutes: float
    """Of a bucket."""
    submitted: int
    good: int
    bad: int

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
    if not submitted + good + bad:
        return None
    begin = _seconds(buckets[0].at)
    time = Scale(begin, _seconds(buckets[-1].at) + series.step, LEFT, WIDTH)
    most = nice_ceiling(max(max(one.submitted, one.succeeded, failures(one)) for one in buckets))
    up, down = Scale(0, most, 0, HEIGHT), Scale(0, most, 0, DEPTH)
    width = round((WIDTH - LEFT) / len(buckets) - GAP, 1)
    bars = [
        Bar(time(_seconds(one.at)), width, up(one.succeeded), down(failures(one)))
        for one in buckets
        if one.succeeded or failures(one)
    ]
    middle = series.step / 2
    line = " ".join(
        f"{time(_seconds(one.at) + middle)},{round(TOP + HEIGHT - up(one.submitted), 1)}" for one in buckets
    )
    flags = [
        Flag(time(_seconds(one.at)), one.label) for one in marks if one.at and begin <= _seconds(one.at) <= time.high
    ]
    return Throughput(bars, line, flags, time_ticks(time, zone), most, series.step / 60, submitted, good, bad)


def _seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()
