"""Fire times that were computed before: they depend on the schedule alone, and a time of a cron expression takes long."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.schedules.model import Schedule

MOST: Final = 200_000
"""Fire times in memory, of 8 bytes each."""
OVERHEAD: Final = 50
"""Fire times that take as much memory as a span without any."""


class _Span(NamedTuple):
    after_us: int
    times: array[int]


class ComputedTimes:
    """The fire times of schedules before the ends of some days or other spans. The spans that were used last are kept."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._number = 0
        self._spans: dict[tuple[Any, ...], _Span] = {}

    def find(self, schedule: Schedule, after_us: int, until_us: int) -> Sequence[int] | None:
        """Return all fire times after one instant and before another; None if they have to be computed."""
        key = _key(schedule, until_us)
        span = self._spans.get(key)
        if span is None or span.after_us > after_us:
            return None
        self._spans[key] = self._spans.pop(key)  # the dictionary is in the order of the last use
        return span.times[bisect_right(span.times, after_us) :]

    def keep(self, schedule: Schedule, after_us: int, until_us: int, times: Sequence[int]) -> None:
        """Keep all fire times after one instant and before another."""
        key = _key(schedule, until_us)
        self._forget(key)
        self._spans[key] = _Span(after_us, array("q", times))
        self._number += len(times) + OVERHEAD
        while self._number > self._most:
            self._forget(next(iter(self._spans)))

    def _forget(self, key: tuple[Any, ...]) -> None:
        span = self._spans.pop(key, None)
        if span is not None:
            self._number -= len(span.times) + OVERHEAD


def _key(schedule: Schedule, until_us: int) -> tuple[Any, ...]:
    """Return all that the fire times of a schedule before an instant depend on."""
    return (schedule.trigger, schedule.timezone, schedule.start_us, schedule.end_us, schedule.exclude, until_us)
