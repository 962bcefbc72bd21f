"""A node's handling of jobs that its store creates in a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.jobs.model import RUNS, State

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mainspring.jobs.clients import Clients
    from mainspring.jobs.context import Context
    from mainspring.jobs.ends import Ends
    from mainspring.jobs.intake import Intake
    from mainspring.jobs.model import Job
    from mainspring.jobs.serving import Serving
    from mainspring.jobs.store import Withdrawn


class NodeJobLifecycle:
    """The node's side of ``jobs.slices.JobLifecycle``."""

    def __init__(
        self,
        context: Context,
        serving: Serving,
        ends: Ends,
        intake: Intake,
        clients: Clients,
    ) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._listeners, self._handles, self._hub = context.listeners, context.handles, context.hub
        self._uniques = context.uniques
        self._serving = serving
        self._ends = ends
        self._intake = intake
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

    def stop(self, ids: Collection[int], why: str) -> None:
        """Stop held jobs, except those whose workers were already asked to stop."""
        for job_id in ids:
            held = self._table.find(job_id)
            if held is not None and not held.cancelled:
                self._clients.cancel_held(held, why, lambda _: None)

    def begun(self, new: Sequence[Job], taken: Sequence[Job] = ()) -> None:
        """Count root jobs as jobs that this node does not hold."""
        if new:
            self._intake.submitted(new)
        for job in (*new, *taken):
            queue = self._dispatch.tracked(job.function)
            if queue is not None:
                queue.away += 1
            if job.unique:
                self._uniques.overtake((job.function, job.unique))
            if self._hub.active and job.id in self._hub.wanted:
                self._hub.publish(msgspec.structs.replace(job, state=int(State.RUNNING), term=RUNS, payload=b""))
        for job in taken:
            queue = self._dispatch.queues.get(job.function)
            if queue is not None and job.state == State.PENDING:
                self._serving.no_longer_pending(queue, job.priority)
            elif queue is not None:
                self._serving.no_longer_away(queue)

    def ended(self, jobs: Sequence[Job]) -> None:
        """Count the ends of root jobs; notify their clients and watchers after the group's answers, which may add clients."""
        for job in jobs:
            queue = self._dispatch.tracked(job.function)
            if queue is not None:
                self._serving.no_longer_away(queue)
        self._commits.after_answers(lambda: self._announce(jobs))

    def _announce(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._listeners.notify(job)
            if self._hub.active and job.id in self._hub.wanted:
                self._hub.publish(job)

    def _runs(self, gone: Withdrawn) -> bool:
        held = self._table.find(gone.id)
        return held is not None and held.worker is not None

    def withdrawn(self, jobs: Sequence[Withdrawn], *, stop: bool = True) -> None:
        """Forget deleted jobs. A deleted job of this node that is not in memory has a settlement under way, which counts it."""
        # Those that run come last: the places that they leave must not be given to others of the list.
        for gone in sorted(jobs, key=self._runs) if len(jobs) > 1 else jobs:
            queue = self._dispatch.queues.get(gone.function)
            held = self._table.find(gone.id)
            if held is not None and held.stored and held.job.term == gone.term:
                self._ends.forget(held, stop=stop)
            elif queue is not None and gone.state == State.PENDING:
                self._serving.no_longer_pending(queue, gone.priority)
            elif queue is not None and gone.term != self._table.term:
                self._serving.no_longer_away(queue)
            for listener in self._listeners.pop(gone.id):
                listener.unknown(self._handles.of(gone.id))
