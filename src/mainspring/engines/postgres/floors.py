"""Where to begin a scan of an index whose first entries may be dead, and cannot be removed yet.

A queue is taken from its front, so that its index begins with entries of what is gone. They are removed by and by, unless an old
snapshot somewhere (a long report, an idle transaction, a standby) could still see them: then every claim would pass all of them
again, more each time. So a node remembers the floor below which it has found nothing, and begins there.

What is put below the floor later (by groups that were under way, by other nodes that give jobs back) is found by a whole scan.
Those may take a twentieth of the time: after one, there is none for twenty times as long as it took. As long as whole scans
are quick, there are no others.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LOWEST: Final = -(2**63)
SLOW: Final = 0.005
"""A scan that took fewer seconds was quick."""
SHARE: Final = 20
"""Whole scans take at most one part in so many of a node's time."""
SETTLES: Final = 0.5
"""Seconds after which a group that took its number is taken for committed. One that is later is found by a whole scan."""


class Scans:
    """Whether the next scan is a whole one. Times are seconds of a monotonic clock."""

    __slots__ = ("_at", "_cost")

    def __init__(self) -> None:
        self._cost = self._at = 0.0

    @property
    def slow(self) -> bool:
        """Whether whole scans are too slow to make each time."""
        return self._cost > 0

    def whole(self, now: float) -> bool:
        """Return whether it is time for a whole scan."""
        return now - self._at >= SHARE * self._cost

    def took(self, now: float, seconds: float) -> None:
        """Note how long a whole scan took."""
        self._at = now
        self._cost = seconds if seconds >= SLOW else 0.0


class Floor:
    """The floors of one index, or of one function's part of it: one for each priority, or a single one."""

    __slots__ = ("places", "scans")

    def __init__(self, levels: int = 1) -> None:
        self.scans = Scans()
        self.places = [LOWEST] * levels

    def begin(self, now: float) -> tuple[bool, list[int]]:
        """Return whether the next scan is a whole one, and where it begins in each level."""
        if self.scans.whole(now):
            return True, [LOWEST] * len(self.places)
        return False, self.places[:]

    def lower(self, place: int, level: int = 0) -> None:
        """Something was put at a place."""
        self.places[level] = min(self.places[level], place)

    @property
    def place(self) -> int:
        """Where a scan begins that takes nothing, of an index with one level."""
        return self.places[0] if self.scans.slow else LOWEST

    def rise(self, place: int) -> None:
        """Nothing is left below a place, of an index with one level."""
        self.places[0] = max(self.places[0], place)

    def forget(self) -> None:
        """Nothing is known any more: the group that had found it out was rolled back."""
        self.places = [LOWEST] * len(self.places)
        self.scans = Scans()


class Floors:
    """What one engine remembers of its scans."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.functions: dict[int, Floor] = {}
        self.due = Floor()
        self.expiring = Floor()
        self.inbox = Floor()
        self._tops: list[tuple[float, int]] = []

    def of(self, function: int) -> Floor:
        """Return the floors of a function's pending jobs."""
        floor = self.functions.get(function)
        if floor is None:
            floor = self.functions[function] = Floor(3)
        return floor

    def back(self, function: int, priority: int, place: int) -> None:
        """A job is pending again, at its old place."""
        floor = self.functions.get(function)
        if floor is not None:
            floor.lower(place, priority)

    # ---- the newest place that nobody can put anything below any more ----

    def wants_top(self, now: float) -> bool:
        """Return whether it is time to look up the newest place again."""
        return not self._tops or now - self._tops[-1][0] >= SETTLES

    def top(self, now: float, place: int) -> None:
        """Note the newest place that was given out by now."""
        self._tops = [*self._tops[-2:], (now, place)]

    def settled(self, now: float) -> int:
        """Return the newest place below which all groups are taken for committed."""
        return max((place for at, place in self._tops if now - at >= SETTLES), default=LOWEST)


def risen(places: Sequence[int], taken: Sequence[tuple[int, int]], settled: int, *, full: bool) -> list[int]:
    """Return the floors of a function after a claim that began at ``places`` and took all that it met.

    ``taken`` are the priorities and places of what it took; ``full`` says that it stopped because it had enough, so that what is
    behind the last one was not looked at. Nothing rises above ``settled``.
    """
    after = list(places)
    reached = max((priority for priority, _ in taken), default=0) if full else len(after)
    for level in range(len(after)):
        if level < reached:
            after[level] = max(after[level], settled)
    if full and taken:
        last = max(place for priority, place in taken if priority == reached)
        after[reached] = max(after[reached], min(last + 1, settled))
    return after
