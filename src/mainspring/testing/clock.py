"""A clock that only tests advance."""

from __future__ import annotations

WALL_START = 1_700_000_000.0


class ManualClock:
    """Both kinds of time for tests. Wall time begins at ``start``, monotonic time at 0; only tests change them."""

    def __init__(self, start: float = WALL_START) -> None:
        self._wall = start
        self._monotonic = 0.0

    def wall(self) -> float:
        """Return seconds since 1970-01-01 UTC."""
        return self._wall

    def monotonic(self) -> float:
        """Return seconds since this clock was created."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Advance both kinds of time. Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError("time does not go back; to set the wall clock back, use step()")
        self._wall += seconds
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Step the wall clock forward or back, as an administrator might; monotonic time does not change."""
        self._wall += seconds
