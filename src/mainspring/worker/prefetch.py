"""The number of jobs that a worker requests: one for each place, and more while jobs are brief.

Prefetched jobs hide the round trip to the server. While jobs are long, prefetching would only keep them from idle workers.
Therefore the surplus is the number of jobs that the places can run within the horizon, by the recent run times of jobs.
"""

from __future__ import annotations

from typing import Final

HORIZON: Final = 0.02
"""Seconds of work that are prefetched."""

BRIEF_JOB: Final = 0.0005
"""Seconds below which a job is brief; the hand-over to a thread takes as long."""

WEIGHT: Final = 0.1
"""The weight of the newest job in the moving average of run times."""

SURPLUS_PER_PLACE: Final = 2
SURPLUS: Final = 256
"""Prefetched jobs, at most: this number, and ``SURPLUS_PER_PLACE`` for each place."""


class PrefetchController:
    """Computes from the run times of ended jobs how many jobs to hold."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._typical: float | None = None

    def observe(self, seconds: float) -> None:
        """Record the run time of a job."""
        self._typical = seconds if self._typical is None else self._typical + WEIGHT * (seconds - self._typical)

    def suspend(self) -> None:
        """Prefetch no more until recent jobs are brief again; called when prefetched jobs had to wait."""
        self._typical = 1.0

    @property
    def brief(self) -> bool:
        """Whether recent jobs are brief."""
        return self._typical is not None and self._typical < BRIEF_JOB

    def target(self) -> int:
        """Return how many jobs to hold, including running ones."""
        if self._typical is None:
            return self._places
        surplus = int(HORIZON * self._places / max(self._typical, 1e-6))
        return self._places + min(surplus, SURPLUS_PER_PLACE * self._places + SURPLUS)
