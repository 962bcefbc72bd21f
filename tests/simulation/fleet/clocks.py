"""The clock of one machine: its monotonic time runs a little fast or slow, and its wall clock is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.testing import ManualClock


class MachineClock:
    """A clock that advances ``rate`` seconds for each second of ``true``, with a wall time that is ``skew`` seconds wrong."""

    def __init__(self, true: ManualClock, rate: float, skew: float) -> None:
        self._true = true
        self.rate = rate
        self.skew = skew

    def wall(self) -> float:
        return self._true.wall() + self.skew

    def monotonic(self) -> float:
        return self._true.monotonic() * self.rate
