"""What clients and workers have seen of the servers' promises, written down while those are disturbed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Final

SLACK: Final = 0.1
"""Seconds by which a thread of the test may notice late what a busy machine has told it."""


AWAKE: Final = 0.5
"""Seconds within which a node that was stopped for longer than its lease has noticed it, on a busy machine."""


class Run:
    """One worker's work on one job, from the moment it hears of it to the moment it has no more to do with it."""

    __slots__ = ("began", "ended", "handle", "key")

    def __init__(self, handle: bytes, key: bytes) -> None:
        self.handle = handle
        self.key = key
        """What must not run twice at a time: the function and the unique, or the job alone where it has none."""
        self.began = time.monotonic()
        self.ended = 0.0


class Ledger:
    """Notes in the order in which the test saw things; ``violations`` are promises broken.

    A job may be run by two workers at a time where the first one's node could not tell it in time that the job is lost; for how
    long that was, ``overlaps`` says.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._open: dict[bytes, list[Run]] = {}
        self._uniques: dict[bytes, bytes] = {}
        self.acknowledged: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.violations: list[str] = []
        self.overlaps: list[float] = []
        self.counts: Counter[str] = Counter()
        self.events = 0
        self._woken = float("-inf")
        """When a stopped node was last let go on."""
        self._late: set[bytes] = set()
        """Confirmed jobs that were handed out once more by such a node: it had decided that before it was stopped."""

    def note(self, what: str) -> None:
        """Count something that is worth knowing."""
        with self._lock:
            self.counts[what] += 1
            self.events += 1
            self._lock.notify_all()

    def disturbed(self, what: str) -> None:
        """Something happened that only a node may do which was cut off from its fleet or given up by it."""
        self.note(what)

    def wakes(self) -> None:
        """A node that was stopped is about to go on."""
        with self._lock:
            self._woken = time.monotonic()

    def break_promise(self, what: str) -> None:
        """Note a violation that somebody else has found."""
        with self._lock:
            self.violations.append(what)

    def await_events(self, more: int, patience: float) -> None:
        """Wait until so many more things have happened, or for so many seconds."""
        with self._lock:
            count = self.events + more
            self._lock.wait_for(lambda: self.events >= count, patience)

    def accept(self, handle: bytes, unique: bytes) -> None:
        """A server has acknowledged a background job."""
        with self._lock:
            self.acknowledged.add(handle)
            self.seen(handle, unique)
            self.note("accepted")

    def begin(self, handle: bytes, function: bytes, unique: bytes) -> Run:
        """A server has handed a job to a worker."""
        run = Run(handle, b"%b/%b" % (function, unique) if unique else handle)
        with self._lock:
            if handle in self.confirmed:
                if time.monotonic() - self._woken < AWAKE:
                    # What a node has decided to send and not sent goes out when it goes on, before it can look at its clock.
                    self._late.add(handle)
                else:
                    self.violations.append(f"{handle!r} ran again after its completion was confirmed")
            self.seen(handle, unique)
            self._open.setdefault(run.key, []).append(run)
            self.note("begun")
        return run

    def end(self, run: Run) -> None:
        """The worker has nothing more to do with the job."""
        with self._lock:
            if run.ended:
                return
            run.ended = time.monotonic()
            others = self._open[run.key]
            others.remove(run)
            if not others:
                del self._open[run.key]
            self.overlaps += [run.ended - max(run.began, other.began) for other in others]
            self.note("ended")

    def confirm(self, handle: bytes) -> None:
        """A server has said that a job's completion is on disk."""
        with self._lock:
            if handle in self._late:
                self.violations.append(f"{handle!r} was completed twice")
            self.confirmed.add(handle)
            self.note("confirmed")

    def seen(self, handle: bytes, unique: bytes) -> None:
        """Somebody was told of a job, and of its unique."""
        known = self._uniques.setdefault(handle, unique)
        if known != unique:
            self.violations.append(f"{handle!r} belongs to {known!r} and to {unique!r}")


class LonersLedger(Ledger):
    """That of a server which is alone with its store: nobody can take anything from it, and it knows all that was before.

    Ids rise there in the order in which jobs are stored, so that of two jobs of one unique the one with the greater id is the
    later one, and the earlier one has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[bytes, int] = {}

    def disturbed(self, what: str) -> None:
        self.break_promise(f"{what} by a server that is alone")

    def begin(self, handle: bytes, function: bytes, unique: bytes) -> Run:
        with self._lock:
            if unique and identity(handle) < self._newest.get(unique, 0):
                self.violations.append(f"{handle!r} was alive although {unique!r} had a later job")
            return super().begin(handle, function, unique)

    def seen(self, handle: bytes, unique: bytes) -> None:
        super().seen(handle, unique)
        if unique:
            self._newest[unique] = max(self._newest.get(unique, 0), identity(handle))


def identity(handle: bytes) -> int:
    """Return the number in a handle."""
    return int(handle.rpartition(b":")[2])
