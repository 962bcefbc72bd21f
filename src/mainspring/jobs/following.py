"""What a node does for jobs that its store has made by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService


class Following:
    """The node's side of ``jobs.slices.Followers``."""

    def __init__(self, service: JobService, next_id: Callable[[], int]) -> None:
        self._service = service
        self._table = service.table
        self._dispatch = service.dispatch
        self._intake = service.intake
        self.next_id = next_id

    def coming(self, job: Job) -> bool:
        """Count a new job as one that lives, unless a foreground job in memory has its unique."""
        key = (job.function, job.unique)
        if job.unique and key in self._table.foreground:
            return False
        queue = self._dispatch.known(job.function)
        if queue is None:
            pass  # the store alone counts it
        elif job.state == State.PENDING:
            queue.backlog[job.priority] += 1
        else:
            queue.away += 1
        if job.unique:
            self._service.uniques.overtake(key)
        return True

    def stored(self, jobs: Sequence[Job]) -> None:
        """Let workers have what is due, and look for the rest in time."""
        self._intake.stored(jobs)

    def dropped(self, jobs: Sequence[Job]) -> None:
        """Take back what was counted."""
        self._intake.uncount(jobs)

    def stop(self, ids: Sequence[int], why: str) -> None:
        """Cancel jobs, unless their workers have been asked already; whoever wants it asks again now and then."""
        for job_id in ids:
            held = self._table.find(job_id)
            if held is None or not held.cancelled:
                self._service.clients.cancel(job_id, why, lambda _: None, lambda _: None)
