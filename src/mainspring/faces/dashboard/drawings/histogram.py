"""How long jobs waited and attempts ran: their numbers by duration, as the rows of a table with bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.faces.dashboard.words import duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.api.series import DurationNumbers, Series


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
