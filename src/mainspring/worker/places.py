"""The places of a worker, each for one running job, and extra places while tasks wait for other jobs.

A task that waits for a job holds its place. If such tasks hold all places, the awaited jobs could never start here. Therefore
one extra place opens when every place is occupied and every running task waits. When the task in the extra place waits, too,
the next one opens, up to a limit. As soon as a task continues, no extra place accepts a new job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Need(Enum):
    """The need for extra places."""

    NONE = "none"
    """A task does not wait, a place is free, or the worker is about to end."""

    ANOTHER = "another"
    """All tasks wait: one more place is needed."""

    TOO_MANY = "too many"
    """All tasks wait, and all extra places are occupied."""


@dataclass(slots=True)
class Places:
    """The places of a worker: ``concurrency`` regular ones, and at most ``most_extra`` extra ones."""

    concurrency: int
    most_extra: int
    running: int = 0
    """Jobs in regular places."""

    extra: int = 0
    """Jobs in extra places."""

    closed: bool = False
    """Whether the worker is about to end, so that no new job is started."""

    @property
    def free(self) -> int:
        """The number of free regular places."""
        return self.concurrency - self.running

    def occupy(self, places: int, extra: int = 0) -> None:
        """Count jobs that start in regular and in extra places."""
        self.running += places
        self.extra += extra

    def vacate(self, places: int, extra: int) -> None:
        """Count jobs that have ended in regular and in extra places."""
        self.occupy(-places, -extra)

    def close(self) -> None:
        """Prevent further jobs from starting."""
        self.closed = True

    def need(self, waiting: int) -> Need:
        """Return the need for extra places while ``waiting`` of the running jobs wait for others."""
        if self.closed or self.free > 0 or waiting < self.running + self.extra:
            return Need.NONE
        return Need.ANOTHER if self.extra < self.most_extra else Need.TOO_MANY
