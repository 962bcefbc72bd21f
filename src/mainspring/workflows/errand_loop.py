"""Stored errands of runs: a node does them one group after the other, as soon as they are stored and after its start.

Those that it cannot do are set aside: they are tried again from time to time, all of them in their order (``storage.set_aside``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.clock import to_us
from mainspring.storage.set_aside import REMEDY, RETRY_DELAY, Kind
from mainspring.workflows.store import RunErrands

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.set_aside import SetAside
    from mainspring.workflows.store import RanErrands

ERRAND: Final = Kind("errand", REMEDY)
"""A request of one run to another, by its number in the store."""


class ErrandLoop:
    """Does stored errands, on a node that calls ``tick`` regularly. ``paused`` returns whether nothing may be written."""

    def __init__(self, commits: CommitQueue, clock: Clock, *, paused: Callable[[], bool], set_aside: SetAside) -> None:
        self._commits = commits
        self._clock = clock
        self._paused = paused
        self._set_aside = set_aside
        self._stored = True
        """Whether there may be stored errands. There may be some at first, from an earlier process."""
        self._running = False
        self._retry_at: float | None = None
        """The monotonic time at which those that are set aside are tried again; None if there are none."""

    def stored(self) -> None:
        """Note that a commit has left stored errands."""
        self._stored = True
        if not self._running:
            self.tick()

    def tick(self) -> None:
        """Do the first errands, if there may be some."""
        if self._running or not (self._stored or self._retry_at is not None):
            return  # as nearly always: ticks are frequent
        from_first = self._retry_at is not None and self._clock.monotonic() >= self._retry_at
        if (self._stored or from_first) and not self._paused():
            self._stored, self._running = False, True
            if from_first:
                self._retry_at = None
            self._commits.put(RunErrands(to_us(self._clock.wall()), from_first=from_first), self._done, self._failed)

    def _done(self, outcome: RanErrands) -> None:
        self._running = False
        self._set_aside.handled(ERRAND, map(str, outcome.done))
        for number, fault in outcome.aside.faults.items():
            self._set_aside.note(ERRAND, str(number), fault)
        if outcome.aside.after and self._retry_at is None:
            self._retry_at = self._clock.monotonic() + RETRY_DELAY
        self.tick()

    def _failed(self, error: StoreError) -> None:
        del error  # the next tick repeats it
        self._stored, self._running = True, False
        self._retry_at = self._clock.monotonic()
