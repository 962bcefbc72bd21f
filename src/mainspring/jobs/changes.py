"""Clients' changes of single jobs: another time, priority or expiry while they wait, and their deletion once they have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.jobs.model import Job, State
from mainspring.jobs.refusals import Refusals
from mainspring.jobs.store import DeleteEnded, Reschedule
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.acts import Act
    from mainspring.errors import MainspringError
    from mainspring.jobs.context import Context
    from mainspring.jobs.ends import Ends
    from mainspring.jobs.settling import Settling
    from mainspring.jobs.store import Deleted, Rescheduled
    from mainspring.jobs.stored_changes import StoredChanges

    Failed = Callable[[MainspringError], None]


class JobChange(NamedTuple):
    """Changed values of a waiting job; None leaves a value unchanged. Times are microseconds of wall time."""

    due_us: int | None = None
    """The time from which it runs; a past one lets it run at once."""
    priority: int | None = None
    expires_us: int | None = None
    """0: it does not expire."""

    def shown(self) -> dict[str, int]:
        """Return the changed values, for the audit."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class JobChanges:
    """Changes jobs, which may wait in this node's memory or only in the store."""

    def __init__(self, context: Context, settling: Settling, ends: Ends, changes: StoredChanges) -> None:
        self._table, self._commits = context.table, context.commits
        self._clock = context.clock
        self._refusals = Refusals(context.handles)
        self._settling = settling
        self._ends = ends
        self._changes = changes

    # ---- reschedule ----

    def reschedule(
        self,
        job_id: int,
        change: JobChange,
        done: Callable[[Job], None],
        failed: Failed,
        act: Act | None = None,
        namespace: str = DEFAULT,
    ) -> None:
        """Change a waiting job of a namespace.

        ``done`` is called with the changed job, ``failed`` with the reason why it does not wait.
        """
        held = self._table.find(job_id)
        if held is not None:
            if not held.is_in(namespace):
                failed(self._refusals.not_found(job_id))
                return
            if held.then is not None:
                held.then.append(lambda: self.reschedule(job_id, change, done, failed, act, namespace))
                return
            if held.worker is not None or not held.stored:
                if held.worker is None:
                    failed(self._refusals.in_foreground(job_id))
                else:
                    failed(self._refusals.not_changed(job_id, held.seen(), State.RUNNING))
                return
            # It waits in memory: it goes back to the store, and is changed in the same group, before it can be claimed again.
            self._settling.released(held)
        now_us = round(self._clock.wall() * 1_000_000)
        operation = Reschedule(
            job_id,
            now_us,
            due_us=change.due_us,
            priority=change.priority,
            expires_us=change.expires_us,
            namespace=namespace,
        )
        operation.act = act

        def rescheduled(outcome: Rescheduled) -> None:
            job = outcome.job
            if job is None:
                failed(self._refusals.not_found(job_id))
            elif outcome.before <= State.PENDING:
                self._changes.rescheduled([outcome])
                done(job)
            elif State(outcome.before).held and job.term == self._table.term:
                # It was claimed during the request, or its settlement waits for the store.
                self._ends.retry_settlements()
                self.reschedule(job_id, change, done, failed, act, namespace)
            else:
                failed(self._refusals.not_changed(job_id, job, outcome.before))

        self._commits.put(operation, rescheduled, failed)

    # ---- delete ----

    def delete(
        self,
        job_id: int,
        done: Callable[[Job], None],
        failed: Failed,
        act: Act | None = None,
        namespace: str = DEFAULT,
    ) -> None:
        """Delete an ended job of a namespace.

        ``done`` is called with the job as it was, ``failed`` with the reason why it stays.
        """
        held = self._table.find(job_id)
        if held is not None:
            refusals = self._refusals
            failed(refusals.not_deleted(job_id, held.seen()) if held.is_in(namespace) else refusals.not_found(job_id))
            return

        def deleted(outcome: Deleted) -> None:
            job = outcome.job
            if job is None:
                failed(self._refusals.not_found(job_id))
            elif not outcome.deleted:
                failed(self._refusals.not_deleted(job_id, job))
            else:
                done(job)

        operation = DeleteEnded(job_id, namespace)
        operation.act = act
        self._commits.put(operation, deleted, failed)
