"""How many jobs a worker asks for: as many as it has places, and while jobs are brief some more.

What is asked for in advance hides the way to the server and back; while jobs are long it would only keep them from idle
workers. So the surplus is what the places can do within the horizon, judged by how long jobs took of late.
"""

from __future__ import annotations

from typing import Final

HORIZON: Final = 0.02
"""Seconds of work that are held in advance."""

BRIEF: Final = 0.0005
"""Jobs that take fewer seconds are brief: to hand one over to a thread costs as much."""

WEIGHT: Final = 0.1
SURPLUS_PER_PLACE: Final = 2
SURPLUS: Final = 256


class PrefetchController:
    """Judges by the jobs that ended how many to hold."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._typical: float | None = None

    def saw(self, seconds: float) -> None:
        """A job took so long."""
        self._typical = seconds if self._typical is None else self._typical + WEIGHT * (seconds - self._typical)

    def held_up(self) -> None:
        """What was held in advance had to wait: take no more of that until jobs are seen to be brief again."""
        self._typical = 1.0

    @property
    def brief(self) -> bool:
        """Whether jobs are brief."""
        return self._typical is not None and self._typical < BRIEF

    def wanted(self) -> int:
        """Return how many jobs to hold in all, those that run included."""
        if self._typical is None:
            return self._places
        surplus = int(HORIZON * self._places / max(self._typical, 1e-6))
        return self._places + min(surplus, SURPLUS_PER_PLACE * self._places + SURPLUS)
