"""A record of the observations of clients and workers, checked against the servers' promises."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .workflow_accounts import Execution

STOP_DELAY: Final = 0.1
"""Seconds by which a test thread may be late to process a server's message on a busy machine."""


WAKE_DELAY: Final = 0.5
"""Seconds within which a node that was frozen for longer than its lease detects that, on a busy machine."""


class Run:
    """One worker's run of one job: from the assignment until the worker no longer works on it."""

    __slots__ = ("began", "ended", "handle", "key")

    def __init__(self, handle: bytes, key: bytes) -> None:
        self.handle = handle
        self.key = key
        """The key that must not run twice at a time: function and unique, or the handle if the job has no unique."""
        self.began = time.monotonic()
        self.ended = 0.0


class Ledger:
    """Observations in the order in which the test made them; ``violations`` are broken promises.

    Two workers may run one job at the same time if the first one's node could not report the loss in time; ``overlaps`` has the
    durations.
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
        self.tasks: dict[bytes, str] = {}
        """The names of the jobs for worker processes."""
        self.results: dict[bytes, dict[str, float]] = {}
        """The results of such jobs, with the monotonic time at which a client first had each."""
        self.events = 0
        self._woken = float("-inf")
        """When a frozen node was last continued."""
        self._wakes: list[float] = []
        """The monotonic times of all continuations."""
        self._reassigned: set[bytes] = set()
        """Confirmed jobs that such a node assigned once more: it had decided that before it was frozen."""

    def note(self, kind: str) -> None:
        """Count an event."""
        with self._lock:
            self.counts[kind] += 1
            self.events += 1
            self._lock.notify_all()

    def disturbed(self, kind: str) -> None:
        """Count an event that is permitted only if a node was cut off from its fleet or fenced."""
        self.note(kind)

    def node_continues(self) -> None:
        """Record that a frozen node is about to be continued."""
        with self._lock:
            self._woken = time.monotonic()
            self._wakes.append(self._woken)

    def woke(self, at: float) -> bool:
        """Return whether a frozen node was continued shortly before a monotonic time: it first does what it had decided."""
        return any(0 <= at - wake < WAKE_DELAY for wake in self._wakes)

    def break_promise(self, description: str) -> None:
        """Add a violation that an actor found."""
        with self._lock:
            self.violations.append(description)

    def await_events(self, more: int, timeout: float) -> None:
        """Wait for a number of further events, or until the time-out in seconds."""
        with self._lock:
            count = self.events + more
            self._lock.wait_for(lambda: self.events >= count, timeout)

    def accept(self, handle: bytes, unique: bytes) -> None:
        """Record that a server acknowledged a background job."""
        with self._lock:
            self.acknowledged.add(handle)
            self.check_unique(handle, unique)
            self.note("accepted")

    def begin(self, handle: bytes, function: bytes, unique: bytes) -> Run:
        """Record that a server assigned a job to a worker."""
        run = Run(handle, b"%b/%b" % (function, unique) if unique else handle)
        with self._lock:
            if handle in self.confirmed:
                if time.monotonic() - self._woken < WAKE_DELAY:
                    # Before the node reads its clock, it sends the packets that it had decided to send.
                    self._reassigned.add(handle)
                else:
                    self.violations.append(f"{handle!r} ran again after its completion was confirmed")
            self.check_unique(handle, unique)
            self._open.setdefault(run.key, []).append(run)
            self.note("begun")
        return run

    def end(self, run: Run) -> None:
        """Record that the worker no longer works on the job."""
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
        """Record that a server confirmed that a job's completion is on disk."""
        with self._lock:
            if handle in self._reassigned:
                self.violations.append(f"{handle!r} was completed twice")
            self.confirmed.add(handle)
            self.note("confirmed")

    def ended(self, handle: bytes, result: str, at: float) -> None:
        """Record that a client has the result of a job for worker processes."""
        with self._lock:
            self.results.setdefault(handle, {}).setdefault(result, at)
            self.note("results")

    def audit(self, executions: Iterable[Execution]) -> None:
        """Compare the executions of worker processes with the results."""
        by_name: dict[str, list[Execution]] = {}
        for execution in executions:
            by_name.setdefault(execution.run, []).append(execution)
        for handle, results in self.results.items():
            if handle not in self.tasks:
                continue  # its submission was not answered
            done = by_name.get(self.tasks[handle], [])
            if len(results) > 1:
                self.break_promise(f"{handle!r} has the results {results}")
            for result, at in results.items():
                if result not in {one.token for one in done}:
                    self.break_promise(f"{handle!r} has the result of another job")
                late = [one for one in done if one.at > at and not one.late]
                if not all(self.woke(one.at) for one in late):
                    self.break_promise(f"{handle!r} ran again after a client had its result")

    def check_unique(self, handle: bytes, unique: bytes) -> None:
        """Record that an actor saw a job with its unique."""
        recorded = self._uniques.setdefault(handle, unique)
        if recorded != unique:
            self.violations.append(f"{handle!r} belongs to {recorded!r} and to {unique!r}")


class SingleServerLedger(Ledger):
    """The ledger of a single server: no other node takes jobs from it, and it has the whole history.

    Its ids rise in the order in which jobs are stored. So of two jobs of one unique the one with the greater id is later, and the
    earlier one has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[bytes, int] = {}

    def disturbed(self, kind: str) -> None:
        self.break_promise(f"{kind} by a single server")

    def begin(self, handle: bytes, function: bytes, unique: bytes) -> Run:
        with self._lock:
            if unique and identity(handle) < self._newest.get(unique, 0):
                self.violations.append(f"{handle!r} was alive although {unique!r} had a later job")
            return super().begin(handle, function, unique)

    def check_unique(self, handle: bytes, unique: bytes) -> None:
        super().check_unique(handle, unique)
        if unique:
            self._newest[unique] = max(self._newest.get(unique, 0), identity(handle))


def identity(handle: bytes) -> int:
    """Return the number in a handle."""
    return int(handle.rpartition(b":")[2])
