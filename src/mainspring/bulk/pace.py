"""The pace of an operation on many jobs: the size of its next step, and the pause before it.

A step is part of a group, and every operation of the group waits for it. So a step is small enough to take a few milliseconds,
and pauses leave most of the node's time to other work.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mainspring.bulk.model import LARGEST_STEP

TARGET: Final = 0.008
"""Seconds that a step should take, with the wait for its group."""
SHARE: Final = 0.5
"""The share of the time in which steps run; the rest belongs to other work alone."""
FIRST_SIZE: Final = 50
SMALLEST_SIZE: Final = 10


class Pause(NamedTuple):
    """Seconds after a step."""

    shared: float
    """Without a step of any operation on this node."""
    own: float
    """Without a step of this operation."""


class Pace:
    """Adapts the size of an operation's steps to the time that they take. ``rate`` is the most jobs per second."""

    def __init__(self, rate: float | None = None) -> None:
        self._rate = rate
        self._size = FIRST_SIZE

    @property
    def size(self) -> int:
        """The number of jobs for the next step."""
        return self._size if self._rate is None else max(min(self._size, int(self._rate)), 1)

    def after(self, number: int, seconds: float) -> Pause:
        """Process that a step with a number of jobs has taken some seconds; return the pause."""
        if seconds > TARGET:
            self._size = max(int(min(self._size, number) * max(TARGET / seconds, 0.5)), SMALLEST_SIZE)
        elif number >= self._size:
            self._size = min(self._size + max(self._size // 4, 1), LARGEST_STEP)
        shared = seconds * (1 - SHARE) / SHARE
        own = 0.0 if self._rate is None else max(number / self._rate - seconds, 0.0)
        return Pause(shared, own)
