"""Backoff for functions that crash worker processes.

A worker process that ends by itself is restarted at once. For a while it runs without the functions that were running when
it ended:

- A function caused the crash if it was the only one, or if one of its suspects has recently crashed a process of its own.
  Only such functions are then left out, for longer after each crash.
- If any of several functions may be the cause, all of them are left out for the shortest time, after every crash, because
  most of them are innocent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

FIRST_DELAY: Final = 0.5
"""Seconds of the first delay; each further one is twice as long."""
LAST_DELAY: Final = 30.0
"""Seconds of the longest delay."""
HEALTHY_AFTER: Final = 30.0
"""Seconds without a crash after which the delays begin again with the first."""
CRASHER_FOR: Final = 300.0
"""Seconds for which a function counts as the cause of crashes, after one of its suspects has crashed a process of its own."""


class Delay:
    """A delay that doubles with each crash, and is reset after a time without crashes. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._until = 0.0

    def next(self, now: float) -> float:
        """Return the delay after a crash at this time."""
        if now - self._until > HEALTHY_AFTER:
            self._seconds = 0.0
        self._seconds = min(self._seconds * 2, LAST_DELAY) or FIRST_DELAY
        self._until = now + self._seconds
        return self._seconds


class Backoff:
    """The functions that one supervisor's workers leave out."""

    def __init__(self) -> None:
        self._delays: dict[str, Delay] = {}
        self._until: dict[str, float] = {}
        self._crashers: dict[str, float] = {}

    def crashed(self, running: Collection[str], crashers: Collection[str], now: float) -> dict[str, float]:
        """Return for how many seconds each function is left out after the crash of a process that was running these.

        ``crashers``: functions whose suspects have crashed processes of their own in a current worker process.
        """
        for name in crashers:
            self._crashers[name] = now
        causes = [name for name in running if now - self._crashers.get(name, -CRASHER_FOR) < CRASHER_FOR]
        if not causes and len(running) == 1:
            causes = list(running)
        if causes:
            delays = {name: self._delays.setdefault(name, Delay()).next(now) for name in causes}
        else:
            delays = dict.fromkeys(running, FIRST_DELAY)
        for name, delay in delays.items():
            self._until[name] = max(now + delay, self._until.get(name, 0.0))
        return delays

    def left_out(self, now: float) -> dict[str, float]:
        """Return the functions that a process started now leaves out, each with the time until which it does."""
        self._until = {name: until for name, until in self._until.items() if until > now}
        return dict(self._until)
