"""For how long a worker that was started again leaves out the functions that may have ended it.

A process that ends by itself is started again at once. It does without the functions that were running there for a while:

- One that was running alone has ended it, and so has one of which a suspect has ended a process of its own before. It is left
  out for longer each time, and nothing else is.
- Where it may have been any of several, all of them are left out for a moment, however often that happens: most of them
  were only there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

FIRST_DELAY: Final = 0.5
LAST_DELAY: Final = 30.0
HEALTHY_AFTER: Final = 30.0
"""Seconds of life after which another crash is taken for a single mishap."""
DEADLY_FOR: Final = 300.0
"""Seconds for which a function is the cause of what ends where it runs, after a suspect of it has ended a process of its own."""


class Delay:
    """A wait that doubles with each crash, and is short again after a healthy time. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._until = 0.0

    def next(self, now: float) -> float:
        """Return the wait after a crash at this time."""
        if now - self._until > HEALTHY_AFTER:
            self._seconds = 0.0
        self._seconds = min(self._seconds * 2, LAST_DELAY) or FIRST_DELAY
        self._until = now + self._seconds
        return self._seconds


class Backoff:
    """The functions of one supervisor's workers."""

    def __init__(self) -> None:
        self._delays: dict[str, Delay] = {}
        self._until: dict[str, float] = {}
        self._deadly: dict[str, float] = {}

    def crashed(self, running: Collection[str], deadly: Collection[str], now: float) -> dict[str, float]:
        """Return how many seconds each function is left out after a crash of a process in which these were running.

        ``deadly``: those of which a suspect has ended a process of its own lately.
        """
        for name in deadly:
            self._deadly[name] = now
        causes = [name for name in running if now - self._deadly.get(name, -DEADLY_FOR) < DEADLY_FOR]
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
        """Return the functions that a process which starts now leaves out, each with the time until which it does."""
        self._until = {name: until for name, until in self._until.items() if until > now}
        return dict(self._until)
