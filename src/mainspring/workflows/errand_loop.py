"""Stored errands of runs: a node does them one group after the other, as soon as they are stored and after its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.clock import to_us
from mainspring.workflows.store import RunErrands

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue


class ErrandLoop:
    """Does stored errands, on a node that calls ``tick`` regularly. ``paused`` returns whether nothing may be written."""

    def __init__(self, commits: CommitQueue, clock: Clock, *, paused: Callable[[], bool]) -> None:
        self._commits = commits
        self._clock = clock
        self._paused = paused
        self._stored = True
        """Whether there may be stored errands. There may be some at first, from an earlier process."""
        self._running = False

    def stored(self) -> None:
        """Note that a commit has left stored errands."""
        self._stored = True
        if not self._running:
            self.tick()

    def tick(self) -> None:
        """Do the first errands, if there may be some."""
        if self._stored and not self._running and not self._paused():
            self._stored, self._running = False, True
            self._commits.put(RunErrands(to_us(self._clock.wall())), self._done, self._failed)

    def _done(self, _: bool) -> None:
        self._running = False
        self.tick()

    def _failed(self, error: StoreError) -> None:
        del error  # the next tick repeats it
        self._stored, self._running = True, False
