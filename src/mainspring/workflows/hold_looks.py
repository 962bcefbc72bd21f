"""Looks for slots of resources for which runs wait.

Most requests of runs are granted by the decision that frees the slots. Nobody makes one when a holder is lost, when a time is
over, or when a resource gets other slots. So the nodes on which runs have asked decide about their resources each second, and so
does one node for the requests of nodes that have gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.clock import to_us
from mainspring.jobs.store import SIGNS_LAST
from mainspring.resources.hold_store import AskHolds, FindRunRequests

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads

INTERVAL: Final = 1.0
"""Seconds between two decisions about resources for which runs wait."""
LOOK_KEY: Final = "run-holds"
"""The name for which nodes choose the one that looks for the requests of others."""


class HoldLooks:
    """Decides about resources for which runs wait, on a node that calls ``tick`` regularly.

    ``paused`` returns whether nothing may be written, ``looks`` whether this node looks for the requests of others.
    """

    def __init__(
        self, commits: CommitQueue, reads: Reads, clock: Clock, *, paused: Callable[[], bool], looks: Callable[[], bool]
    ) -> None:
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._paused = paused
        self._looks = looks
        self._may_wait = True
        """Whether runs may wait. Some may do so at first, from an earlier process."""
        self._has_asked = False
        """Whether runs have asked since the last read began, which may have missed them."""
        self._is_busy = False
        self._at = 0.0
        """The time of the next decision."""
        self._look_at = 0.0
        """The time of the next look for requests of others."""

    def asked(self) -> None:
        """Note that runs have asked for slots."""
        self._has_asked = True
        if not self._may_wait:
            self._may_wait = True
            self._at = self._clock.monotonic() + INTERVAL

    def read_sign(self, are_there: bool) -> None:
        """Process the sign whether runs wait."""
        self._look_at = max(self._look_at, self._clock.monotonic() + SIGNS_LAST)
        if are_there and self._looks():
            self.asked()

    def tick(self) -> None:
        """Decide, if it is time."""
        now = self._clock.monotonic()
        if not self._may_wait and now >= self._look_at:
            self._look_at = now + INTERVAL
            self._may_wait = self._looks()
        if self._may_wait and not self._is_busy and now >= self._at and not self._paused():
            self._at = now + INTERVAL
            self._is_busy, self._has_asked = True, False
            self._reads.ask(FindRunRequests(), self._found, self._failed)

    def _found(self, names: list[str]) -> None:
        self._may_wait = bool(names) or self._has_asked
        if not names or self._paused():
            self._is_busy = False
            return
        operation = AskHolds((), to_us(self._clock.wall()), freed=names)
        self._commits.put(operation, lambda _: self._decided(), self._failed)

    def _decided(self) -> None:
        self._is_busy = False

    def _failed(self, error: StoreError) -> None:
        del error  # the next tick repeats it
        self._is_busy = False
