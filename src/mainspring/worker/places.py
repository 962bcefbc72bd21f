"""How many jobs a worker may run: its places, and extra ones while tasks wait for other jobs.

A task that waits for a job holds its place. Where all places are held so, the awaited jobs could never start here. The rule: when
every place is taken and every running task waits, one extra place opens. When that one is held by a task that waits, too, the
next one opens, up to a bound. As soon as a task goes on, no extra place takes a new job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Need(Enum):
    """What the rule asks for."""

    NONE = "none"
    """Some task is at work, a place is free, or the worker is about to end."""

    ANOTHER = "another"
    """All tasks wait: one more place is needed."""

    TOO_MANY = "too many"
    """All tasks wait, and all extra places are taken."""


@dataclass(slots=True)
class Places:
    """The places of a worker: ``concurrency`` of its own, and at most ``most_extra`` extra ones."""

    concurrency: int
    most_extra: int
    running: int = 0
    """Jobs in places of its own."""

    extra: int = 0
    """Jobs in extra places."""

    closed: bool = False
    """No new job is started: the worker is about to end."""

    @property
    def free(self) -> int:
        """The number of its own places that are free."""
        return self.concurrency - self.running

    def take(self, places: int, extra: int = 0) -> None:
        """So many jobs more run in places of its own, and in extra ones."""
        self.running += places
        self.extra += extra

    def leave(self, places: int, extra: int) -> None:
        """So many jobs have ended."""
        self.take(-places, -extra)

    def close(self) -> None:
        """Start no new job."""
        self.closed = True

    def need(self, waiting: int) -> Need:
        """Say what is needed while so many of the running jobs wait for others."""
        if self.closed or self.free > 0 or waiting < self.running + self.extra:
            return Need.NONE
        return Need.ANOTHER if self.extra < self.most_extra else Need.TOO_MANY
