"""The pace of long work, such as an operation on many jobs: the size of its next step, and the pause before it.

A step is part of a group, and every operation of the group waits for it. So a step extends its group by less than a short commit
takes. While the node has other work, steps are rare, so that few groups have one; the work may then use only a part of the
node, but has a rate that it should keep. A node without other work belongs to it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SHORTEST: Final = 0.0003
LONGEST: Final = 0.008
"""Seconds by which a step beside other work may extend its group."""
SHARE: Final = 0.25
"""The share of the rest of the group's time that a step may take, between these limits: on a slow disk, steps are larger."""
WEIGHT: Final = 0.2
"""The weight of the last step in the average of the groups' times."""
OUTLIER: Final = 4
"""The multiple of the average time for one item from which a step counts as held up by other programs of the machine."""
PAUSES: Final = 10
"""The pause after a step beside other work, as a multiple of the time by which it has extended its group."""


class Steps(NamedTuple):
    """The limits of one kind of work. Sizes are numbers of its items: jobs, or fire times."""

    first: int
    smallest: int
    """A step has fixed costs."""
    largest: int
    aim: int
    """Items per second for which steps are larger, and pauses beside other work shorter, but not below the length of a step."""
    shortest: float = SHORTEST
    longest: float = LONGEST
    """Seconds by which a step may extend its group."""


class Pause(NamedTuple):
    """Seconds after a step."""

    shared: float
    """Without a step of any operation on this node."""
    own: float
    """Without a step of this operation."""


class Pace:
    """Adapts the size of steps to the time that they take. ``rate`` is the most items per second."""

    def __init__(self, steps: Steps, rate: float | None = None) -> None:
        self._steps = steps
        self._rate = rate
        self._size = steps.first
        self._began = 0.0
        self._rest = 0.0
        """The average of the rest of the group's time, in seconds: that of a single one varies with the disk."""
        self._turn = 0.0
        """The average of the least time from step to step, in seconds: steps need so many items that they keep the rate."""
        self._cost = 0.0
        """The average of the seconds for one item."""
        self.groups = 0
        """The number of groups that the node had committed with the last step."""
        self._is_alone = False

    @property
    def size(self) -> int:
        """The number of items for the next step."""
        return self._size if self._rate is None else max(min(self._size, int(self._rate)), 1)

    def number(self, left: int) -> int:
        """Return the number of items for the next step, if so many were read and are left.

        Without a rate, the last step of them has at most half as many as others, because it may read the next ones.
        """
        size, half = self.size, self.size // 2
        if self._rate is None and half < left <= size + half:
            return left - half
        return min(size, left)

    def begin(self, now: float, groups: int) -> bool:
        """Process the beginning of a step; return whether the node has committed nothing else since the one before.

        ``now`` is a monotonic time, ``groups`` the number of groups that the node has committed.
        """
        self._began = now
        self._is_alone = groups == self.groups
        return self._is_alone

    def after(self, number: int, extension: float, now: float, groups: int) -> Pause:
        """Process the end of a step with a number of items, which has extended its group by some seconds; return the pause."""
        seconds, steps = now - self._began, self._steps
        self.groups = groups
        self._rest += (seconds - extension - self._rest) * WEIGHT
        target = min(max(self._rest * SHARE, steps.shortest), steps.longest)
        self._turn += (seconds + extension - self._turn) * WEIGHT
        cost = extension / max(number, 1)
        self._cost += (min(cost, self._cost * OUTLIER or cost) - self._cost) * (WEIGHT if self._cost else 1)
        for_aim = min(int(self._turn * steps.aim), int(steps.longest / self._cost) if self._cost else steps.largest)
        smallest = max(steps.smallest, min(for_aim, steps.largest))
        if extension > target:
            self._size = max(int(min(self._size, number) * max(target / extension, 0.5)), smallest)
        elif number >= self._size:
            self._size = min(self._size + max(self._size // 4, 1), steps.largest)
        shared = extension
        if not self._is_alone:
            shared = max(min(extension * PAUSES, number / steps.aim - seconds), extension)
        own = 0.0 if self._rate is None else max(number / self._rate - seconds, 0.0)
        return Pause(shared, own)
