"""What the memory engine holds, and the indexes over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.counts import Counts

if TYPE_CHECKING:
    from mainspring.jobs.model import Job


class Tables:
    """The content of a memory store. Heaps may hold ids that are out of date; whoever takes one looks at the job's state."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.live: dict[tuple[bytes, bytes], int] = {}
        """Function and unique to the live job that has them."""
        self.kept: dict[tuple[bytes, bytes], int] = {}
        """The same to the last job submitted with ``keep_unique`` that has succeeded."""
        self.pending: dict[bytes, tuple[list[int], list[int], list[int]]] = {}
        """Function to a heap of ids for each priority."""
        self.due: list[tuple[int, int]] = []
        """Heap of (due, id) of scheduled jobs."""
        self.expiring: list[tuple[int, int]] = []
        """Heap of (expires, id) of jobs that wait."""
        self.ended: list[tuple[int, int]] = []
        """Heap of (ended, id)."""
        self.dead: list[tuple[int, int]] = []
        """The same of failed jobs."""
        self.waits: dict[int, set[int]] = {}
        """Jobs to the terms of the nodes whose clients wait for them; only where the store is shared."""
        self.counts = Counts()
