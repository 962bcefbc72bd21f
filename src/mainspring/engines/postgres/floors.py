"""Start places for scans of an index whose head holds dead tuples that are not yet vacuumed.

Jobs leave a queue at its front, so the head of its index fills with dead tuples. Vacuum removes them, unless an old snapshot (a
long report, an idle transaction, a standby) could still see them: then every claim would pass all of them again, more each
time. So a node remembers the floor below which it has found nothing, and begins its scans there.

A full scan finds the rows that appear below the floor later: from groups that were under way, and from other nodes that
release jobs. Full scans may take a twentieth of the time: after one, there is none for twenty times its duration. While full
scans are quick, every scan is a full one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LOWEST: Final = -(2**63)
SLOW_SCAN: Final = 0.005
"""Seconds below which a scan counts as quick."""
SCAN_SHARE: Final = 20
"""The reciprocal of the largest part of a node's time for full scans."""
COMMITTED_AFTER: Final = 0.5
"""Seconds after which a group that has taken its number counts as committed. A full scan finds the later ones."""


class Scans:
    """Decides whether the next scan is a full one. Times are seconds of a monotonic clock."""

    __slots__ = ("_at", "_cost")

    def __init__(self) -> None:
        self._cost = self._at = 0.0

    @property
    def slow(self) -> bool:
        """Whether full scans are too slow for every time."""
        return self._cost > 0

    def whole(self, now: float) -> bool:
        """Return whether a full scan is due."""
        return now - self._at >= SCAN_SHARE * self._cost

    def note_cost(self, now: float, seconds: float) -> None:
        """Note the duration of a full scan."""
        self._at = now
        self._cost = seconds if seconds >= SLOW_SCAN else 0.0


class Floor:
    """The floors of one index, or of one function's part of it: one per priority, or a single one."""

    __slots__ = ("places", "scans")

    def __init__(self, levels: int = 1) -> None:
        self.scans = Scans()
        self.places = [LOWEST] * levels

    def begin(self, now: float) -> tuple[bool, list[int]]:
        """Return whether the next scan is a full one, and its first place in each level."""
        if self.scans.whole(now):
            return True, [LOWEST] * len(self.places)
        return False, self.places[:]

    def lower(self, place: int, level: int = 0) -> None:
        """Lower a floor: a row appeared at a place."""
        self.places[level] = min(self.places[level], place)

    @property
    def place(self) -> int:
        """The first place for a scan that takes nothing, of an index with one level."""
        return self.places[0] if self.scans.slow else LOWEST

    def rise(self, place: int) -> None:
        """Raise the floor of an index with one level: no row is left below a place."""
        self.places[0] = max(self.places[0], place)

    def forget(self) -> None:
        """Forget the floors: the group that raised them was rolled back."""
        self.places = [LOWEST] * len(self.places)
        self.scans = Scans()


class Floors:
    """The floors of one engine's scans."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.functions: dict[int, Floor] = {}
        self.due = Floor()
        self.expiring = Floor()
        self.inbox = Floor()
        self.look_for_refused_at = 0.0
        """When the refused rows of the inbox are counted again."""
        self._tops: list[tuple[float, int]] = []

    def of(self, function: int) -> Floor:
        """Return the floors of a function's pending jobs."""
        floor = self.functions.get(function)
        if floor is None:
            floor = self.functions[function] = Floor(3)
        return floor

    def note_returned(self, function: int, priority: int, place: int) -> None:
        """Lower a floor: a job is pending again, at its old place."""
        floor = self.functions.get(function)
        if floor is not None:
            floor.lower(place, priority)

    # ---- the newest place: no group can still insert below it ----

    def needs_top(self, now: float) -> bool:
        """Return whether the newest place must be read again."""
        return not self._tops or now - self._tops[-1][0] >= COMMITTED_AFTER

    def note_top(self, now: float, place: int) -> None:
        """Note the newest place that was allocated by now."""
        self._tops = [*self._tops[-2:], (now, place)]

    def committed_place(self, now: float) -> int:
        """Return the newest place below which all groups count as committed."""
        return max((place for at, place in self._tops if now - at >= COMMITTED_AFTER), default=LOWEST)


def risen(places: Sequence[int], taken: Sequence[tuple[int, int]], committed_place: int, *, full: bool) -> list[int]:
    """Return the floors of a function after a claim that began at ``places`` and took every job it met.

    ``taken`` are the priorities and places of these jobs. ``full``: the claim stopped at its limit, so the places behind its last
    job were not read. No floor rises above ``committed_place``.
    """
    after = list(places)
    reached = max((priority for priority, _ in taken), default=0) if full else len(after)
    for level in range(len(after)):
        if level < reached:
            after[level] = max(after[level], committed_place)
    if full and taken:
        last = max(place for priority, place in taken if priority == reached)
        after[reached] = max(after[reached], min(last + 1, committed_place))
    return after
