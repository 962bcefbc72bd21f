"""Counts of jobs by function, state and priority. They are maintained by deltas; no query counts rows."""

from __future__ import annotations

from mainspring.jobs.model import State

_LEASED, _RUNNING = int(State.LEASED), int(State.RUNNING)


def counted_as(state: int) -> int:
    """Return the state under which a job is counted: both held states are LEASED."""
    return _LEASED if state == _RUNNING else state


class Counts(dict[tuple[bytes, int, int], int]):
    """``(function, state, priority)`` to a number. Both held states are counted as LEASED."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: dict[bytes, None] = {}
        """All functions that were ever counted, in the order of their first count."""

    def add(self, function: bytes, state: int, priority: int, number: int = 1) -> None:
        """Add to a count; a negative number subtracts."""
        self.functions[function] = None
        key = (function, counted_as(state), priority)
        self[key] = self.get(key, 0) + number

    def move(self, function: bytes, priority: int, before: int, after: int) -> None:
        """Count one job that has changed its state."""
        self.add(function, before, priority, -1)
        self.add(function, after, priority)
