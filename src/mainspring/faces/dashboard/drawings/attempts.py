"""One job in one lane: how long it waited, its attempts, and the time between them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.faces.dashboard.drawings.axes import CompressedScale, rows_of
from mainspring.faces.dashboard.words import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.api.jobs import Attempt, JobDetails

LEFT: Final = 12
WIDTH: Final = 948
MOST: Final = 55
"""Attempts in the drawing: the newest. Each may have a shape, a wait before it and two marks, all with their texts."""
BRIEF: Final = 5.0
"""Seconds: the begin and the end of a shorter drawing have milliseconds."""
ROOM: Final = 44
"""The width from which on a wait has its length in words below it, as those that are cut short have."""
OPEN: Final = frozenset({"scheduled", "pending", "leased"})
"""States in which a job waits."""
STOP: Final = "asked to stop"
NODE_LOST: Final = "node lost"
DUE: Final = "due"
DELAY: Final = "delay"
"""It is not due, or it waits for its next attempt."""
LOST: Final = "lost"
"""An attempt with the wait before it: its node died with it, and nobody knows when it began."""
_NOTES: Final = {"cancelled": "cancelled", "lost": "worker lost", "timed_out": "time limit"}
_ENDS: Final = frozenset({"cancelled", "expired"})
"""States that a waiting job ends in."""


class Bar(NamedTuple):
    """An attempt."""

    x: float
    width: float
    number: int
    outcome: str
    is_open: bool


class Wait(NamedTuple):
    """A time before an attempt, or after the last one."""

    x: float
    width: float
    text: str
    """Its length; empty if there is no room."""
    kind: str
    """`DUE`, `DELAY` or `LOST`."""
    row: int = 0
    """Of its text: 1 if it would overlap one before it in the first."""


class Mark(NamedTuple):
    """Something that happened, or that will, at a time."""

    x: float
    text: str
    has_room: bool
    """Whether the text overlaps no other one."""


class Lane(NamedTuple):
    """The drawing."""

    bars: list[Bar]
    waits: list[Wait]
    marks: list[Mark]
    breaks: list[float]
    """Places of times that are cut short."""
    begin: str
    """A time of day, as the next one."""
    end: str
    left_out: int
    """Earlier attempts."""

    @property
    def outcomes(self) -> list[str]:
        """Those that it has, in the order of their first attempts."""
        return list(dict.fromkeys(bar.outcome for bar in self.bars))


def waits_of(job: JobDetails, attempts: Sequence[Attempt]) -> list[float | None]:
    """Return the seconds before each attempt: since the job was submitted or since the attempt before; None: not known."""
    found: list[float | None] = []
    before = _seconds(job.created_at)
    for attempt in attempts:
        started = _seconds(attempt.started_at)
        found.append(None if before is None or started is None else max(started - before, 0.0))
        before = _seconds(attempt.ended_at)
    return found


def notes_of(attempts: Sequence[Attempt]) -> list[str]:
    """Return a note for each attempt that has the number of an earlier one: numbers begin again when somebody retries the job.

    A delivery that was lost with its worker need not count. Then the next attempt has the same number.
    """
    found: list[str] = []
    retries = 0
    before: Attempt | None = None
    for attempt in attempts:
        is_repeat = before is not None and before.outcome == "lost" and attempt.number == before.number
        if before is not None and attempt.number <= before.number and not is_repeat:
            retries += 1
        found.append("again, after a loss" if is_repeat else f"after retry {retries}" if retries else "")
        before = attempt
    return found


class _Course:
    """The course of a job, in seconds since 1970."""

    def __init__(self, job: JobDetails, created: float, now: float) -> None:
        self._due = _seconds(job.run_at)
        self._now = now
        self._before = created
        """The end of all that is known so far."""
        self.spans: list[tuple[Attempt, float, float]] = []
        """Attempts with their begins and ends."""
        self.waits: list[tuple[float, float, str]] = []
        """With their kinds."""
        self.happened: list[tuple[float, str]] = []

    def add(self, attempt: Attempt) -> None:
        """Add the next attempt."""
        started, ended = _seconds(attempt.started_at), _seconds(attempt.ended_at)
        if started is None:
            assert ended is not None
            ended = max(ended, self._before)
            self._wait(ended, [(self._before, ended, LOST)])
            self.happened.append((ended, NODE_LOST))
            return
        is_first = not (self.spans or self.waits)
        self._wait(started, self._until(started) if is_first else [(self._before, started, DELAY)])
        self._before = max(started, ended if ended is not None else self._now)
        self.spans.append((attempt, started, self._before))
        if attempt.outcome in _NOTES and (attempt.stop_requested_at is None or attempt.outcome != "cancelled"):
            self.happened.append((self._before, _NOTES[attempt.outcome]))
        if (asked := _seconds(attempt.stop_requested_at)) is not None:
            self.happened.append((asked, STOP))

    def skip(self, attempt: Attempt) -> None:
        """Leave an attempt out: the course begins with its end."""
        self._before = _seconds(attempt.ended_at) or self._before

    def wait_on(self) -> None:
        """The job still waits."""
        self._wait(end := max(self._now, self._due or self._now), self._until(end))

    def end(self, time: float, state: str) -> None:
        """The job has ended while it waited."""
        if time > self._before:
            self._wait(time, self._until(time))
        self.happened.append((time, state))

    def _wait(self, end: float, parts: list[tuple[float, float, str]]) -> None:
        self.waits += parts
        self._before = end

    def _until(self, end: float) -> list[tuple[float, float, str]]:
        """Return the part of a wait before the job is due, and the part after it."""
        begin, due = self._before, self._due
        if due is None or not begin < due <= end:
            return [(begin, end, DUE)]
        return [(begin, due, DELAY), *([(due, end, DUE)] if due < end else [])]


def lane(job: JobDetails, attempts: Sequence[Attempt], now: float, zone: dt.tzinfo) -> Lane | None:
    """Return the drawing of a job; None if the times of its attempts are not known."""
    created = _seconds(job.created_at)
    dropped = _seconds(job.ended_at) if job.state in _ENDS else None
    timed = [one for one in attempts if one.started_at or (one.outcome == "lost" and one.ended_at)]
    if created is None or (not timed and job.state not in OPEN and dropped is None):
        return None
    left_out = max(len(timed) - MOST, 0)
    course = _Course(job, created, now)
    for attempt in timed[:left_out]:
        course.skip(attempt)
    for attempt in timed[left_out:]:
        course.add(attempt)
    if job.state in OPEN:
        course.wait_on()
    elif dropped is not None and (not timed or timed[-1].outcome != "cancelled"):
        course.end(dropped, job.state)
    return _drawn(job, course, created, now, zone, left_out)


def _drawn(job: JobDetails, course: _Course, created: float, now: float, zone: dt.tzinfo, left_out: int) -> Lane:
    spans, is_open = course.spans, job.state in OPEN
    ends: list[tuple[float, str]] = []
    """Times up to which something has to be done."""
    if is_open and (deadline := _seconds(job.expires_at)) is not None:
        ends.append((deadline, "expires"))
    if spans and spans[-1][0].ended_at is None and job.timeout:
        ends.append((spans[-1][1] + job.timeout, "time limit"))
    times = {time for span in spans for time in span[1:]} | {time for wait in course.waits for time in wait[:2]}
    if not left_out:
        times.add(created)
    if is_open and any(begin <= now <= end for begin, end, _ in course.waits):
        times.add(now)
    times |= {time for time, _ in (*ends, *course.happened) if time > created}
    ordered = sorted(times)
    place = CompressedScale(ordered, LEFT, WIDTH, [span[1:] for span in spans])
    bars = [
        Bar(place(begin), max(round(place(end) - place(begin), 1), 3.0), one.number, one.outcome, one.ended_at is None)
        for one, begin, end in spans
    ]
    marked = [(place(time), text) for time, text in sorted((*course.happened, *ends))]
    if is_open:
        marked.append((place(now), "now"))
    marks = [Mark(x, text, row == 0) for (x, text), row in zip(marked, rows_of(marked), strict=True)]
    waits = []
    for begin, end, kind in course.waits:
        width = round(place(end) - place(begin), 1)
        if width > 0:
            x = place(begin)
            has_text = width >= ROOM or any(x <= gap <= x + width for gap, _ in place.gaps)
            waits.append(Wait(x, width, duration(end - begin) if has_text else "", kind))
    labels = [(wait.x + wait.width / 2, wait.text) for wait in waits]
    waits = [wait._replace(row=row % 2) for wait, row in zip(waits, rows_of(labels), strict=True)]
    breaks = [round(x, 1) for x, _ in place.gaps]
    parts = "milliseconds" if ordered[-1] - ordered[0] < BRIEF else "seconds"
    first, last = (_clock(one, zone, parts) for one in (ordered[0], ordered[-1]))
    return Lane(bars, waits, marks, breaks, first, last, left_out)


def _seconds(text: str | None) -> float | None:
    return None if text is None else dt.datetime.fromisoformat(text).timestamp()


def _clock(time: float, zone: dt.tzinfo, parts: str) -> str:
    at = dt.datetime.fromtimestamp(time, zone)
    return f"{at:%d %b} {at.time().isoformat(parts)}"
