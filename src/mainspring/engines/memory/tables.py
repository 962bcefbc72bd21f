"""What the memory engine holds, and the indexes over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.counts import Counts

if TYPE_CHECKING:
    from mainspring.engines.memory.pending import Pending
    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notices
    from mainspring.resources.model import FunctionLimits, Rate
    from mainspring.resources.rules import Bucket, Holding
    from mainspring.schedules.catalogue import Catalogue
    from mainspring.schedules.model import Fire
    from mainspring.schedules.parents import Join
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.store import Key


class Tables:
    """The content of a memory store. Heaps may hold ids that are out of date; whoever takes one looks at the job's state."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.live: dict[tuple[bytes, bytes], int] = {}
        """Function and unique to the live job that has them."""
        self.kept: dict[tuple[bytes, bytes], int] = {}
        """The same to the last job submitted with ``keep_unique`` that has succeeded."""
        self.pending: dict[bytes, tuple[Pending, Pending, Pending]] = {}
        """Function to its pending jobs of each priority."""
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
        self.limits: dict[bytes, FunctionLimits] = {}
        """What is said of functions, by name."""
        self.tokens: dict[tuple[bytes, bytes], dict[int, Holding]] = {}
        """Function and pool to what nodes have and want of it, by term; only where the store is shared."""
        self.buckets: dict[tuple[bytes, bytes], tuple[Rate, Bucket]] = {}
        """Function and pool to the starts that are left; only where the store is shared."""
        self.notices: Notices = {}
        """What has happened in the group under way, for the owners of jobs."""
        self.schedules: dict[str, Stored] = {}
        self.catalogue: Catalogue | None = None
        """The specifications, until one of them changes."""
        self.fires: dict[str, dict[int, Fire]] = {}
        """Rows by schedule and fire time."""
        self.unfinished: dict[str, set[int]] = {}
        """Fire times of the rows that are not finished, by schedule."""
        self.forgotten: dict[str, int] = {}
        """Up to which fire time rows were dropped, by schedule."""
        self.runs: dict[int, set[Key]] = {}
        """Jobs to the rows that have them and no outcome."""
        self.joins: dict[Key, Join] = {}
        self.declared: dict[tuple[str, bytes], tuple[int, int]] = {}
        """App and digest to when they were seen first and last."""
