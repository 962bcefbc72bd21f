"""A node's job lifecycle, as far as the suites need one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.jobs.lateness import DueRow
    from mainspring.jobs.model import Job, Options
    from mainspring.jobs.run_places import Filled
    from mainspring.jobs.store import Rescheduled, Withdrawn


class RecordedLifecycle:
    """A job lifecycle that allocates ids and records each call."""

    def __init__(self, next_id: Callable[[], int]) -> None:
        """``next_id`` returns the id of a new job."""
        self.next_id = next_id
        self.leases = False
        """Whether to lease each job that may be leased, as a node does if a worker waits for it."""
        self.reserved: list[Job] = []
        """All jobs that it has allowed, as it returned them."""
        self.live: list[int] = []
        """Ids of the jobs that are or will be in the store, by the calls so far."""
        self.committed: list[int] = []
        self.cancelled: list[int] = []
        self.stopped: list[int] = []
        self.begun_roots: list[int] = []
        self.ended_roots: list[int] = []
        self.deleted: list[int] = []
        self.rescheduled_jobs: list[int] = []
        self.rows: list[DueRow] = []
        """All committed times by which jobs should have begun and ended."""
        self.refused: set[bytes] = set()
        """The uniques of jobs in the node's memory."""
        self.times: Options | None = None
        """The options of functions with times."""

    def reserve(self, job: Job, term: int) -> bool:
        """Allow a new job, unless its unique is refused."""
        if job.unique and job.unique in self.refused:
            return False
        if self.leases and term:
            job.state, job.term = State.LEASED, term
        self.reserved.append(job)
        self.live.append(job.id)
        return True

    def add_times(self, job: Job) -> None:
        """Give a job the times, if there are any."""
        job.options = self.times or job.options

    def stored(self, jobs: Sequence[Job]) -> None:
        """Record that jobs are committed."""
        self.committed += [job.id for job in jobs]

    def waits(self, jobs: Sequence[Job], filled: Sequence[tuple[bytes, Sequence[bytes], Filled]]) -> None:
        """Record that jobs are committed."""
        del filled
        self.stored(jobs)

    def dropped(self, jobs: Sequence[Job]) -> None:
        """Record that jobs were not written."""
        for job in jobs:
            self.live.remove(job.id)

    def cancel(self, ids: Sequence[int], why: str) -> None:
        """Record that jobs were replaced."""
        assert why
        self.cancelled += ids

    def stop(self, ids: Collection[int], why: str) -> None:
        """Record that workers are to stop jobs."""
        assert why
        self.stopped += ids

    def dated(self, rows: Sequence[DueRow]) -> None:
        """Record committed times."""
        self.rows += rows

    def rescheduled(self, outcomes: Sequence[Rescheduled]) -> None:
        """Record that jobs wait for other times."""
        self.rescheduled_jobs += [one.job.id for one in outcomes if one.job is not None]

    def begun(self, new: Sequence[Job], taken: Sequence[Job] = ()) -> None:
        """Record committed root jobs."""
        self.begun_roots += [job.id for job in (*new, *taken)]

    def ended(self, jobs: Sequence[Job]) -> None:
        """Record the ends of root jobs."""
        self.ended_roots += [job.id for job in jobs]

    def withdrawn(self, jobs: Sequence[Withdrawn], *, stop: bool = True) -> None:
        """Record that live jobs were deleted."""
        del stop
        self.deleted += [job.id for job in jobs]
