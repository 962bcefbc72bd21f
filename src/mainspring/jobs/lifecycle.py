"""A node's handling of jobs that its store creates in a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.jobs.clients import Clients
    from mainspring.jobs.context import Context
    from mainspring.jobs.intake import Intake
    from mainspring.jobs.model import Job


class NodeJobLifecycle:
    """The node's side of ``jobs.slices.JobLifecycle``."""

    def __init__(self, context: Context, intake: Intake, clients: Clients) -> None:
        self._table, self._dispatch = context.table, context.dispatch
        self._intake = intake
        self._uniques = context.uniques
        self._clients = clients

    def next_id(self) -> int:
        """Return the id of a new job."""
        return self._table.next_id()

    def reserve(self, job: Job, term: int) -> bool:
        """Count a new job, and lease it if a worker waits for it; return False if a foreground job in memory has its unique."""
        key = (job.function, job.unique)
        if job.unique and key in self._table.foreground:
            return False
        queue = self._dispatch.tracked(job.function)
        self._intake.count(job, queue, scheduled=job.state == State.SCHEDULED, leases=term == self._table.term)
        if job.unique:
            self._uniques.overtake(key)
        return True

    def stored(self, jobs: Sequence[Job]) -> None:
        """Serve due jobs to workers, and set a timer for the others."""
        self._intake.stored(jobs)

    def dropped(self, jobs: Sequence[Job]) -> None:
        """Undo the counts of jobs that were not stored."""
        self._intake.uncount(jobs)

    def cancel(self, ids: Sequence[int], why: str) -> None:
        """Cancel jobs, except those whose workers were already asked to stop. Callers repeat the call from time to time."""
        for job_id in ids:
            held = self._table.find(job_id)
            if held is None or not held.cancelled:
                self._clients.cancel(job_id, why, lambda _: None, lambda _: None)
