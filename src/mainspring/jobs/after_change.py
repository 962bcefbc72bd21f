"""The node's part in changes of stored jobs, of one or of many: its counts, and notifications of clients and watchers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from mainspring.jobs.model import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.context import Context
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.maintenance import DueJobs
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import Cancelled, Redriven, Rescheduled


class Redriving(NamedTuple):
    """Ended jobs that a transaction is about to redrive."""

    away: Counter[FunctionQueue]
    """The jobs that are counted from now on, so that foreground jobs with their uniques query the store."""
    rivals: dict[int, str]
    """The jobs that may not be redriven, with the handles of the foreground jobs that have their uniques."""


class StoredChanges:
    """Called before and after the transactions that change the jobs, which are the caller's."""

    def __init__(self, context: Context, serving: Assigner, due_jobs: DueJobs) -> None:
        self._table, self._dispatch, self._hub = context.table, context.dispatch, context.hub
        self._uniques, self._handles = context.uniques, context.handles
        self._serving = serving
        self._due_jobs = due_jobs

    def before_redrive(self, jobs: Iterable[Job]) -> Redriving:
        """Prepare for the redrive of jobs. Afterwards `redriven` is called, or `not_redriven`."""
        away: Counter[FunctionQueue] = Counter()
        rivals: dict[int, str] = {}
        for job in jobs:
            key = (job.function, job.unique)
            foreground = self._table.foreground.get(key)
            if foreground is not None:
                rivals[job.id] = self._handles.of(foreground.job.id).decode()
                continue
            queue = self._dispatch.tracked(job.function)
            if queue is not None:
                away[queue] += 1
            self._uniques.overtake(key)
        for queue, number in away.items():
            queue.away += number
        return Redriving(away, rivals)

    def not_redriven(self, redriving: Redriving) -> None:
        """Uncount the jobs of a transaction that was not committed, or has changed nothing."""
        for queue, number in redriving.away.items():
            self._serving.no_longer_away(queue, number)

    def redriven(self, redriving: Redriving, outcomes: Sequence[Redriven]) -> None:
        """Count the redriven jobs, and serve or wake them in time."""
        self.not_redriven(redriving)
        self._now_waiting([one.job for one in outcomes if one.redriven and one.job is not None])

    def cancelled(self, outcomes: Iterable[Cancelled]) -> None:
        """Count and announce the jobs that were cancelled because no node held them."""
        for job, before in outcomes:
            if job is not None and before <= State.PENDING:
                self._due_jobs.ended(job, before)

    def rescheduled(self, outcomes: Iterable[Rescheduled]) -> None:
        """Count the rescheduled jobs in their new states, and serve or wake them in time."""
        jobs: list[Job] = []
        for job, before, priority in outcomes:
            if job is None or before > State.PENDING:
                continue
            queue = self._dispatch.tracked(job.function)
            if queue is not None and before == State.PENDING:
                self._serving.no_longer_pending(queue, priority)
            elif queue is not None:
                self._serving.no_longer_away(queue)
            jobs.append(job)
        self._now_waiting(jobs)

    def _now_waiting(self, jobs: Iterable[Job]) -> None:
        """Count and announce jobs that wait in the store from now on, and serve or wake them in time."""
        pending: Counter[tuple[bytes, int]] = Counter()
        times: set[int] = set()
        for job in jobs:
            if job.state == State.PENDING:
                pending[job.function, job.priority] += 1
            else:
                times.add(job.due_us)
                queue = self._dispatch.tracked(job.function)
                if queue is not None:
                    queue.away += 1
            if job.expires_us:
                times.add(job.expires_us)
            if self._hub.active and job.id in self._hub.wanted:
                self._hub.publish(job)
        if times:
            self._due_jobs.wake_at(min(times))
        self._serving.now_pending(pending, were_away=False)
