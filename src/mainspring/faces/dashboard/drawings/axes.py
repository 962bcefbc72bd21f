"""Scales and ticks of drawings: from values and times to places."""

from __future__ import annotations

import datetime as dt
import itertools
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NICE: Final = (1, 2, 5, 10)
_STEPS: Final = (1, 5, 15, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
"""Seconds between ticks of time."""
LONG: Final = 60.0
"""Seconds: shorter gaps are never cut short."""
TIMES_LONGER: Final = 10
"""How many times longer than all the rest together each gap is that is cut short: with it, the rest could not be seen."""
BREAK: Final = 0.1
"""The part of the width that such a gap gets, and that all of them get together."""
BREAKS: Final = 0.36
MOST_BREAKS: Final = 12
SHORTEST: Final = 1e-6
"""Seconds."""
LETTER: Final = 7
"""The width of a letter, with some room to spare."""


class Tick(NamedTuple):
    """A mark on an axis."""

    at: float
    """Its place."""
    text: str


class Scale(NamedTuple):
    """A linear scale from values to places."""

    low: float
    high: float
    start: float
    """The place of the lowest value."""
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a value, with one decimal: more are bytes that nobody sees."""
        if self.high <= self.low:
            return self.start
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)


class CompressedScale:
    """A scale of time: width is time, except for long gaps, which are cut short.

    ``times`` are those of all events, sorted. A gap is a time between two of them in which no work was done; ``work`` has the
    begins and ends of all work.
    """

    def __init__(
        self, times: Sequence[float], start: float, end: float, work: Iterable[tuple[float, float]] = ()
    ) -> None:
        span = max(times[-1] - times[0], SHORTEST)
        gaps = _cut(_gaps(times, work), span)
        width = end - start
        kept = span - sum(second - first for first, second in gaps)
        gap_width = width * min(BREAK, BREAKS / max(len(gaps), 1))
        per_second = (width - gap_width * len(gaps)) / kept
        self._times = [times[0]]
        self._places = [start]
        self._rates: list[float] = []
        self.gaps: list[tuple[float, float]] = []
        """Where a break is, and how long it is."""
        for first, second in gaps:
            place = self._places[-1] + (first - self._times[-1]) * per_second
            self._times += [first, second]
            self._places += [place, place + gap_width]
            self._rates += [per_second, gap_width / (second - first)]
            self.gaps.append((place + gap_width / 2, second - first))
        self._rates.append(per_second)
        self._end = end

    def __call__(self, time: float) -> float:
        """Return the place of a time."""
        at = max(bisect_right(self._times, time) - 1, 0)
        return round(min(self._places[at] + max(time - self._times[at], 0.0) * self._rates[at], self._end), 1)


def _gaps(times: Sequence[float], work: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the long times between two events without work, the longest first."""
    busy: list[tuple[float, float]] = []
    """The times of work, without overlaps."""
    for begin, end in sorted(work):
        if busy and begin <= busy[-1][1]:
            busy[-1] = busy[-1][0], max(end, busy[-1][1])
        else:
            busy.append((begin, end))
    ends = [end for _, end in busy]
    found = []
    for first, second in itertools.pairwise(times):
        at = bisect_right(ends, first)  # the first work that ends after the gap has begun
        if second - first >= LONG and (at == len(busy) or busy[at][0] >= second):
            found.append((first, second))
    return sorted(found, key=lambda gap: gap[0] - gap[1])


def _cut(gaps: Sequence[tuple[float, float]], span: float) -> list[tuple[float, float]]:
    """Return the gaps to cut short, in order: each hides the rest. If there is no rest, the gaps are the picture."""
    kept, number = span, 0
    for place, (first, second) in enumerate(gaps[:MOST_BREAKS], start=1):
        kept -= second - first
        if kept >= SHORTEST and second - first >= TIMES_LONGER * kept:
            number = place
    return sorted(gaps[:number])


def rows_of(labels: Sequence[tuple[float, str]]) -> list[int]:
    """Return a row for each text around its place, so that no two texts overlap: the first row with room for it."""
    ends: list[float] = []
    found = []
    for place, text in labels:
        half = len(text) * LETTER / 2
        row = next((row for row, end in enumerate(ends) if end <= place - half), len(ends))
        ends[row:] = [place + half + LETTER, *ends[row + 1 :]]
        found.append(row)
    return found


def apart(places: Iterable[float], least: float) -> list[float]:
    """Return the places in order, without those that are too near to one before them."""
    found: list[float] = []
    for place in sorted(places):
        if not found or place - found[-1] >= least:
            found.append(place)
    return found


def utc(time: float) -> str:
    """Return a time as fields of forms have it."""
    return dt.datetime.fromtimestamp(time, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def nice_ceiling(value: float) -> float:
    """Return a round number that is not below a value: 1, 2 or 5 times a power of ten."""
    if value <= 1:
        return 1
    power = 1.0
    while power * 10 < value:
        power *= 10
    return next(power * one for one in _NICE if power * one >= value)


def time_ticks(scale: Scale, zone: dt.tzinfo, most: int = 8) -> list[Tick]:
    """Return ticks for a scale of seconds since 1970 at round times of a zone, at most so many."""
    span = scale.high - scale.low
    step = next((one for one in _STEPS if span / one <= most), _STEPS[-1] * max(1, round(span / _STEPS[-1] / most)))
    offset = dt.datetime.fromtimestamp(scale.low, zone).utcoffset() or dt.timedelta()
    first = scale.low - (scale.low + offset.total_seconds()) % step
    ticks = []
    time = first if first >= scale.low else first + step
    while time <= scale.high:
        ticks.append(Tick(scale(time), _clock(dt.datetime.fromtimestamp(time, zone), step)))
        time += step
    return ticks


def _clock(time: dt.datetime, step: float) -> str:
    if step >= 86400 or (time.hour, time.minute, time.second) == (0, 0, 0):
        return time.strftime("%d %b")
    return time.strftime("%H:%M:%S" if step < 60 else "%H:%M")
