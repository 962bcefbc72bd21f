"""The pace of an operation on many jobs: the size of its next step, and the pause before it.

A step is part of a group, and every operation of the group waits for it. So a step extends its group by a few milliseconds at
most, waits until the group is committed, and leaves the time after it to other work.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mainspring.bulk.model import LARGEST_STEP

SHORTEST: Final = 0.001
LONGEST: Final = 0.008
"""Seconds by which a step may extend its group."""
SHARE: Final = 0.25
"""The share of the rest of the group's time that a step may take, between these limits: on a slow disk, steps are larger."""
PAUSES: Final = 1
"""The pause after a step, as a multiple of the time by which it has extended its group."""
FIRST_SIZE: Final = 25
SMALLEST_SIZE: Final = 25
"""Jobs in the smallest step: a group has fixed costs."""


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

    def after(self, number: int, extension: float, seconds: float) -> Pause:
        """Process a step with a number of jobs, and return the pause.

        It has extended its group by ``extension`` seconds, and its outcome came after ``seconds``.
        """
        target = min(max((seconds - extension) * SHARE, SHORTEST), LONGEST)
        if extension > target:
            self._size = max(int(min(self._size, number) * max(target / extension, 0.5)), SMALLEST_SIZE)
        elif number >= self._size:
            self._size = min(self._size + max(self._size // 4, 1), LARGEST_STEP)
        own = 0.0 if self._rate is None else max(number / self._rate - seconds, 0.0)
        return Pause(extension * PAUSES, own)
