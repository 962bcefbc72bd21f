"""What clients and workers have seen of a server's promises, written down while it is killed again and again."""

from __future__ import annotations

import threading
from collections import Counter


class Ledger:
    """Notes in the order in which the test saw things; ``violations`` are promises broken.

    Ids rise on a node in the order in which jobs are stored, so that of two jobs of one unique the one with the greater id is the
    later one, and the earlier one has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._newest: dict[bytes, int] = {}
        self._uniques: dict[bytes, bytes] = {}
        self.acknowledged: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.violations: list[str] = []
        self.assignments: Counter[bytes] = Counter()
        self.events = 0

    def _event(self) -> None:
        self.events += 1
        self._lock.notify_all()

    def await_events(self, count: int, patience: float) -> None:
        """Wait until so many things have happened, or for so many seconds."""
        with self._lock:
            self._lock.wait_for(lambda: self.events >= count, patience)

    def accept(self, handle: bytes, unique: bytes) -> None:
        """The server has acknowledged a background job."""
        with self._lock:
            self.acknowledged.add(handle)
            self._seen(handle, unique)
            self._event()

    def assign(self, handle: bytes, unique: bytes) -> None:
        """The server has handed a job to a worker."""
        with self._lock:
            self.assignments[handle] += 1
            if handle in self.confirmed:
                self.violations.append(f"{handle!r} ran again after its completion was confirmed")
            if unique and identity(handle) < self._newest.get(unique, 0):
                self.violations.append(f"{handle!r} was alive although {unique!r} had a later job")
            self._seen(handle, unique)
            self._event()

    def confirm(self, handle: bytes) -> None:
        """The server has said that a job's completion is on disk."""
        with self._lock:
            self.confirmed.add(handle)
            self._event()

    def _seen(self, handle: bytes, unique: bytes) -> None:
        known = self._uniques.setdefault(handle, unique)
        if known != unique:
            self.violations.append(f"{handle!r} belongs to {known!r} and to {unique!r}")
        if unique:
            self._newest[unique] = max(self._newest.get(unique, 0), identity(handle))


def identity(handle: bytes) -> int:
    """Return the number in a handle."""
    return int(handle.rpartition(b":")[2])
