"""A node's side of the jobs that its store makes by itself, as far as the suites need one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.jobs.model import Job


class Noted:
    """The node's side of jobs that the store makes: gives them ids and notes what is told."""

    def __init__(self, next_id: Callable[[], int]) -> None:
        """``next_id`` returns the id of a new job."""
        self.next_id = next_id
        self.leases = False
        """Lease each job that may be leased, as a node does if a worker waits for it."""
        self.made: list[Job] = []
        """All that it has let be made, as it let them."""
        self.live: list[int] = []
        """Ids of jobs that are or will be in the store, as far as the node has heard."""
        self.committed: list[int] = []
        self.stopped: list[int] = []
        self.refused: set[bytes] = set()
        """Uniques that a job in the node's memory has."""

    def reserve(self, job: Job, term: int) -> bool:
        """Hear of a new job."""
        if job.unique and job.unique in self.refused:
            return False
        if self.leases and term:
            job.state, job.term = State.LEASED, term
        self.made.append(job)
        self.live.append(job.id)
        return True

    def stored(self, jobs: Sequence[Job]) -> None:
        """Hear that jobs are committed."""
        self.committed += [job.id for job in jobs]

    def dropped(self, jobs: Sequence[Job]) -> None:
        """Hear that jobs were not written."""
        for job in jobs:
            self.live.remove(job.id)

    def stop(self, ids: Sequence[int], why: str) -> None:
        """Hear that jobs were replaced."""
        assert why
        self.stopped += ids
