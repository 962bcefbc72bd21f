"""A fleet whose functions have limits: whatever happens to the nodes, the running jobs of a function never exceed its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.resources.rules import FunctionLimits, Limits
from tests.simulation.actors import FUNCTIONS

from .world import FleetWorld

if TYPE_CHECKING:
    from mainspring.jobs.held import Held


class LimitedWorld(FleetWorld):
    """One run with limits that are set before the first node starts; some functions only have a limit for the (empty) key."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.most = 0
        """Number of checks at which the limit was reached."""

    def _begin(self, name: str) -> None:
        tables = self.content.tables
        if not tables.limits:
            self.limits = {function: self.chance.choice((1, 2, 3)) for function in FUNCTIONS}
            for function, limit in self.limits.items():
                by_key = self.chance.random() < 0.3
                limits = Limits(concurrency_per_key=limit) if by_key else Limits(concurrency=limit)
                tables.limits[function] = FunctionLimits(function, commanded=limits, version=1)
        super()._begin(name)

    def assigned(self, handle: bytes) -> None:
        """Check the limit after the assignment of a job."""
        super().assigned(handle)
        self._check(self._here.service.table.held[handle].queue.name)

    def check(self) -> None:
        """Check the invariants of any moment."""
        super().check()
        for function in FUNCTIONS:
            self._check(function)

    def _check(self, function: bytes) -> None:
        """Count the running jobs of nodes with valid leases: other nodes stop theirs, which do not count."""
        running: list[Held] = []
        for life in self.lives.values():
            if life.ready and not life.closed and not life.store.is_over():
                held = life.service.table.held.values()
                running += [one for one in held if one.worker is not None and one.queue.name == function]
        limit = self.limits[function]
        assert len(running) <= limit, f"{len(running)} jobs of {function!r} run at once, and {limit} may"
        self.most += len(running) == limit
