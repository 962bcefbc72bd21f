"""A function's last hour in one cell: a line of its submitted jobs, and below it bars of attempts that did not succeed."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.api.audit import MarkInfo
    from mainspring.api.namespaces import TroubledFunction

WIDTH: Final = 120
MIDDLE: Final = 20
"""Where the line has its zero, and the bars begin."""
HEIGHT: Final = 30
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
    step = WIDTH / max(len(submitted), 1)
    top = max(*submitted, *bad, 1)  # one scale: a few failures among many jobs are a short bar
    line = " ".join(
        f"{(place + 0.5) * step:.0f},{MIDDLE - number / top * (MIDDLE - 2):.1f}"
        for place, number in enumerate(submitted)
    )
    bars = "".join(
        f"M{(place + 0.5) * step:.0f} {MIDDLE}v{max(number / top * (HEIGHT - MIDDLE), 1.5):.1f}"
        for place, number in enumerate(bad)
        if number
    )
    begin = (now // 60 - len(submitted) + 1) * 60
    places = ((dt.datetime.fromisoformat(mark.at).timestamp() - begin) / 60 * step for mark in marks if mark.at)
    text = f"{sum(submitted)} submitted and {sum(bad)} not succeeded in the last hour"
    return Spark(line, bars, [round(place, 1) for place in places if 0 <= place <= WIDTH], text)


def rate(numbers: Sequence[int] | None) -> float | None:
    """Return how many there are in a minute, by the last whole minutes; None if that is not kept."""
    return None if numbers is None else sum(numbers[-RATE_MINUTES - 1 : -1]) / RATE_MINUTES
