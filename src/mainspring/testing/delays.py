"""Calls at times of a test's clock, such as the next attempt of a local step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.timers import Timer
    from mainspring.testing.clock import ManualClock


class Delay:
    """A planned call."""

    def __init__(self, timers: Timers, timer: Timer) -> None:
        self._timers = timers
        self._timer = timer

    def cancel(self) -> None:
        """Make no call."""
        self._timers.cancel(self._timer)


class Delays:
    """Planned calls."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._timers = Timers(lambda _: None)

    def later(self, delay: float, function: Callable[[], None]) -> Delay:
        """Plan a call after so many seconds."""
        return Delay(self._timers, self._timers.at(self._clock.monotonic() + delay, function))

    def next(self) -> float | None:
        """Return the monotonic time of the next call."""
        return self._timers.next()

    def run(self) -> None:
        """Make the calls that are due."""
        self._timers.run(self._clock.monotonic())
