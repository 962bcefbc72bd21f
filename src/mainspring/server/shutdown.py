"""The end of a node: requested by an operator, or forced by a broken store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.clock import Clock
    from mainspring.errors import StoreError


class Shutdown:
    """The state of a node's shutdown; it exists before the store is open. Running jobs get ``grace`` seconds."""

    def __init__(self, clock: Clock, grace: float) -> None:
        self._clock = clock
        self._grace = grace
        self.requested = asyncio.Event()
        self.deadline: float | None = None
        """The monotonic time at which running jobs are released; None: no limit."""
        self.broken: StoreError | None = None
        """The error that prevents the node from going on."""

    def stop(self, graceful: bool = False) -> None:
        """Request the end; ``graceful`` waits for all running jobs, unless a later request is not graceful."""
        if not graceful and self.deadline is None:
            self.deadline = self._clock.monotonic() + self._grace
        self.requested.set()

    def interrupt(self) -> None:
        """Request the end. If a deadline is set already, set it to now: running jobs are released immediately."""
        if self.deadline is None:
            self.stop()
        else:
            self.deadline = self._clock.monotonic()

    def fail(self, error: StoreError) -> None:
        """Shutdown the node because of an error; the first one is kept."""
        if self.broken is None:
            self.broken = error
            self.requested.set()

    def is_overdue(self) -> bool:
        """Return whether the deadline of running jobs has passed."""
        return self.deadline is not None and self._clock.monotonic() >= self.deadline
