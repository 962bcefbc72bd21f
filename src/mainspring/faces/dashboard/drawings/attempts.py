"""One job in one lane: how long it waited, its attempts, and the time between them."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.faces.dashboard.drawings.axes import CompressedScale, rows_of
from mainspring.faces.dashboard.words import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.api.job_records import Attempt
    from mainspring.api.jobs import JobDetails

LEFT: Final = 12
WIDTH: Final = 948
MOST: Final = 55
"""Attempts in the drawing: the newest. Each may have a shape, a wait before it and two marks, all with their texts."""
ROOM: Final = 44
"""The width from which on a wait has its length in words below it, as those that are cut short have."""
OPEN: Final = frozenset({"scheduled", "pending", "leased"})
"""States in which a job waits."""
STOP: Final = "asked to stop"
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
    is_delay: bool
    """It is not due: a delay, or the time until the next attempt."""


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


def lane(job: JobDetails, attempts: Sequence[Attempt], now: float, zone: dt.tzinfo) -> Lane | None:
    """Return the drawing of a job; None if the times of its attempts are not known."""
    created = _seconds(job.created_at)
    dropped = _seconds(job.ended_at) if job.state in _ENDS else None
    timed = [(one, started) for one in attempts if (started := _seconds(one.started_at)) is not None]
    if created is None or (not timed and job.state not in OPEN and dropped is None):
        return None
    left_out = max(len(timed) - MOST, 0)
    timed = timed[left_out:]
    due, deadline = _seconds(job.run_at), _seconds(job.expires_at)
    spans: list[tuple[Attempt, float, float]] = []
    for attempt, started in timed:
        ended = _seconds(attempt.ended_at)
        spans.append((attempt, started, max(started, ended if ended is not None else now)))
    last = max((span[2] for span in spans), default=created)
    waiting: list[tuple[float, float, bool]] = []  # from, to, whether it is a delay
    before = created
    for number, (_, started, ended) in enumerate(spans):
        if number:
            waiting.append((before, started, True))
        elif not left_out:
            waiting += _split(created, started, due)
        before = ended
    if job.state in OPEN:
        waiting += _split(before, max(now, due or now), due)
        last = max(last, waiting[-1][1])
    elif dropped is not None and dropped > before and (not timed or timed[-1][0].outcome != "cancelled"):
        waiting += _split(before, dropped, due)
        last = max(last, dropped)
    ends: list[tuple[float, str]] = []
    """Times up to which something has to be done."""
    if deadline is not None and job.state in OPEN:
        ends.append((deadline, "expires"))
    if timed and timed[-1][0].ended_at is None and job.timeout:
        ends.append((timed[-1][1] + job.timeout, "time limit"))
    happened = [
        (ended, _NOTES[one.outcome])
        for one, _, ended in spans
        if one.outcome in _NOTES and (one.stop_requested_at is None or one.outcome != "cancelled")
    ]
    happened += [(time, STOP) for one, _, _ in spans if (time := _seconds(one.stop_requested_at)) is not None]
    if dropped is not None and (not timed or timed[-1][0].outcome != "cancelled"):
        happened.append((dropped, job.state))
    times = {spans[0][1] if left_out else created, last}
    times |= {time for span in spans for time in span[1:]} | {time for one in waiting for time in one[:2]}
    if job.state in OPEN and before <= now <= last:
        times.add(now)
    times |= {time for time, _ in (*ends, *happened) if time > created}
    ordered = sorted(times)
    place = CompressedScale(ordered, LEFT, WIDTH)
    bars = [
        Bar(place(begin), max(round(place(end) - place(begin), 1), 3.0), one.number, one.outcome, one.ended_at is None)
        for one, begin, end in spans
    ]
    marked = [(place(time), text) for time, text in sorted((*happened, *ends))]
    if job.state in OPEN:
        marked.append((place(now), "now"))
    marks = [Mark(x, text, row == 0) for (x, text), row in zip(marked, rows_of(marked), strict=True)]
    waits = []
    for begin, end, is_delay in waiting:
        width = round(place(end) - place(begin), 1)
        if width > 0:
            x = place(begin)
            has_text = width >= ROOM or any(x <= gap <= x + width for gap, _ in place.gaps)
            waits.append(Wait(x, width, duration(end - begin) if has_text else "", is_delay))
    return Lane(
        bars,
        waits,
        marks,
        [round(x, 1) for x, _ in place.gaps],
        _clock(ordered[0], zone),
        _clock(ordered[-1], zone),
        left_out,
    )


def _split(begin: float, end: float, due: float | None) -> list[tuple[float, float, bool]]:
    """Return the part of a wait before the job is due, and the part after it."""
    if due is None or not begin < due <= end:
        return [(begin, end, False)]
    return [(begin, due, True), *([(due, end, False)] if due < end else [])]


def _seconds(text: str | None) -> float | None:
    return None if text is None else dt.datetime.fromisoformat(text).timestamp()


def _clock(time: float, zone: dt.tzinfo) -> str:
    return dt.datetime.fromtimestamp(time, zone).strftime("%d %b %H:%M:%S")
