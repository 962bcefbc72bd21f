"""The port of series: what engines that keep them do (``storage.engine.Engine.series``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.series.model import Row
from mainspring.storage.engine import Operation, PageQuery, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class SaveSeries(Operation):
    """Write buckets, each in place of an earlier one of the same function, step, time and term; and delete old ones.

    ``oldest`` has the begin of the oldest bucket to keep, by step. At most as many buckets are deleted as `SWEEP_ROWS`.
    Outcome: None. It touches no row of a job.
    """

    __slots__ = ("oldest", "series")

    phase = Phase.SERIES

    def __init__(self, series: Sequence[Row], oldest: Mapping[int, int]) -> None:
        super().__init__()
        self.series = series
        self.oldest = oldest
        self.rows = len(series)
        self.size = 64 + 300 * len(series)
        self.urgent = False


SWEEP_ROWS = 2000
"""Buckets that one operation deletes. A node writes fewer in a minute."""


class ReadSeries(PageQuery[Row], frozen=True, kw_only=True):
    """Read the buckets of a function from a time on, in the order of their times. A page continues after a time and a term."""

    namespace: str
    function: bytes
    step: int
    since: int


class ReadNamespaceSeries(PageQuery[Row], frozen=True, kw_only=True):
    """Read the buckets of all functions of a namespace from a time on, in the order of their times.

    A page continues after a time, a function and a term. It reads an index of times, so only for the last few buckets.
    """

    namespace: str
    step: int
    since: int
