"""Whether a node is to end: because it is asked to, or because its store is broken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.clock import Clock
    from mainspring.errors import StoreError


class End:
    """The end of a node, from before its store is open. Running jobs get ``grace`` seconds."""

    def __init__(self, clock: Clock, grace: float) -> None:
        self._clock = clock
        self._grace = grace
        self.asked = asyncio.Event()
        self.patience: float | None = None
        """Until when, by the monotonic clock, running jobs may go on; None: without a limit."""
        self.broken: StoreError | None = None
        """Why the node cannot go on."""

    def stop(self, graceful: bool = False) -> None:
        """Ask the node to end; ``graceful``: when all running jobs have ended, or it is asked again without that."""
        if not graceful and self.patience is None:
            self.patience = self._clock.monotonic() + self._grace
        self.asked.set()

    def interrupt(self) -> None:
        """Ask the node to end; asked in a stop that has a limit: to end now, and to hand running jobs back."""
        if self.patience is None:
            self.stop()
        else:
            self.patience = self._clock.monotonic()

    def fail(self, error: StoreError) -> None:
        """End the node because it cannot go on; the first reason is kept."""
        if self.broken is None:
            self.broken = error
            self.asked.set()

    def has_waited(self) -> bool:
        """Tell whether running jobs have had their time."""
        return self.patience is not None and self._clock.monotonic() >= self.patience
