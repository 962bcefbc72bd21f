"""Clients' requests about jobs, which may be in this node's memory, held by another node, or only in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.access.audit import RecordActs
from mainspring.access.once import KeyedAct
from mainspring.access.replies import Reservation
from mainspring.clock import to_us
from mainspring.errors import ConflictError
from mainspring.jobs import rules
from mainspring.jobs.failures import CANCEL_REASON, failure
from mainspring.jobs.model import RUNS, State, StopRequest
from mainspring.jobs.refusals import Refusals
from mainspring.jobs.store import Cancel, Find, FindUnique, InNamespace, Redrive, RequestStop, ShowJob
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.acts import Act
    from mainspring.errors import MainspringError, StoreError
    from mainspring.jobs.context import Context
    from mainspring.jobs.ends import Ends
    from mainspring.jobs.held import Held
    from mainspring.jobs.model import Job
    from mainspring.jobs.remote_jobs import RemoteAttempt, RemoteJobs
    from mainspring.jobs.roots import RootJobs
    from mainspring.jobs.settling import Settling
    from mainspring.jobs.store import Cancelled, Found, Redriven
    from mainspring.jobs.stored_changes import StoredChanges
    from mainspring.storage.reads import Reads


class Clients:
    """Cancels jobs, retries them and looks them up.

    ``keeps_requests`` is whether the store keeps requests to stop held jobs. ``remote_jobs`` is given if the store is shared.
    """

    def __init__(
        self,
        context: Context,
        reads: Reads,
        settling: Settling,
        ends: Ends,
        changes: StoredChanges,
        roots: RootJobs,
        *,
        keeps_requests: bool,
        remote_jobs: RemoteJobs | None = None,
    ) -> None:
        self._table, self._commits = context.table, context.commits
        self._clock, self._handles = context.clock, context.handles
        self._reads = reads
        self._settling = settling
        self._ends = ends
        self._changes = changes
        self._roots = roots
        self._refusals = Refusals(context.handles)
        self._keeps_requests = keeps_requests
        self._remote_jobs = remote_jobs

    # ---- cancelling and retrying ----

    def cancel(
        self,
        job_id: int,
        reason: str,
        done: Callable[[str], None],
        failed: Callable[[MainspringError], None],
        act: Act | None = None,
        namespace: str = DEFAULT,
    ) -> None:
        """Cancel a job of a namespace.

        ``done`` is called with ``cancelled``, ``running`` (its worker was asked to stop), or its final state. ``act`` is recorded
        with the change, or when a worker is asked to stop.
        """
        held = self._table.find(job_id)
        if held is not None:
            if not held.is_in(namespace):
                failed(self._refusals.not_found(job_id))
            elif held.then is not None:
                held.then.append(lambda: self.cancel(job_id, reason, done, failed, act, namespace))
            else:
                self._request_stop(held, reason, done, failed, act)
            return

        def cancelled(outcome: Cancelled) -> None:
            job = outcome.job
            if job is None:
                failed(self._refusals.not_found(job_id))
            elif outcome.before <= State.PENDING:
                self._changes.cancelled([outcome])
                done("cancelled")
            elif State(outcome.before).held and job.term == RUNS:
                self._roots.cancel(job_id, reason, done, failed, act)
            elif State(outcome.before).held and self._remote_jobs is not None and job.term != self._table.term:
                self._record(act)
                self._remote_jobs.stop(job.term, job_id, reason)
                done("running")
            elif State(outcome.before).held:
                # It was claimed during the request, or its settlement waits for the store.
                self._ends.retry_settlements()
                self.cancel(job_id, reason, done, failed, act, namespace)
            else:
                done(State(outcome.before).name.lower())

        error = failure("Cancelled", reason)
        operation = Cancel(job_id, error, round(self._clock.wall() * 1_000_000), namespace)
        operation.act = act
        self._commits.put(operation, cancelled, failed)

    def _record(self, act: Act | None) -> None:
        """Record an act that no operation of its own performs: a worker is asked to stop, or the job is in memory."""
        if act is not None:
            self._commits.put(RecordActs([act]))

    def _request_stop(
        self,
        held: Held,
        reason: str,
        done: Callable[[str], None],
        failed: Callable[[StoreError], None],
        act: Act | None,
    ) -> None:
        """Cancel a job in memory; if its worker can be asked to stop it, store the request first.

        The job is then cancelled even if the node crashes before the worker has stopped.
        """
        if not (self._keeps_requests and held.stored and held.worker is not None and held.worker.streams):
            self._record(act)
            self.cancel_held(held, reason, done)
            return
        request = StopRequest(round(self._clock.wall() * 1_000_000), failure("Cancelled", reason))
        operation = RequestStop([(held.job.id, held.job.term)], request)
        operation.act = act
        self.cancel_held(held, reason, lambda _: None)
        self._commits.put(operation, lambda _: done("running"), failed)

    def cancel_held(self, held: Held, reason: str, done: Callable[[str], None]) -> None:
        """Cancel a job in memory, without the store if its worker is asked to stop it."""
        worker = held.worker
        if worker is not None and worker.streams:
            held.cancelled = reason or CANCEL_REASON
            held.stop_us = held.stop_us or to_us(self._clock.wall())
            worker.connection.stop(held, b"cancelled")
            done("running")
            return
        if worker is not None:
            worker.ignored_results.add(held.handle)  # the protocol has no message for a plain worker
        self._settling.cancelled(held, reason, lambda _: done("cancelled"))

    def retry(
        self,
        job_id: int,
        done: Callable[[Any], None],
        failed: Callable[[MainspringError], None],
        *,
        payload: bytes | None = None,
        delay: float = 0.0,
        act: Act | None = None,
        keyed_act: KeyedAct | None = None,
        namespace: str = DEFAULT,
    ) -> None:
        """Put an ended, unsuccessful job of a namespace back to pending, or to scheduled for some seconds.

        ``payload``: with other arguments. ``done`` is called with the job, or with the earlier `Reservation` if a request with
        the key of ``keyed_act`` was made before. The reply of ``keyed_act`` gets the job, too.
        """

        def refuse(job: Job | None, rival: str | None = None) -> None:
            if job is None:
                failed(self._refusals.not_found(job_id))
            elif rival is not None:
                failed(self._refusals.unique_is_live(job_id, rival))
            else:
                failed(self._refusals.not_retried(job_id, job))

        def found(job: Job | None) -> None:
            if job is None or job.state not in rules.sources(rules.Event.REDRIVE):
                refuse(job)
                return
            redriving = self._changes.before_redrive([job])
            if job_id in redriving.rivals:
                refuse(job, redriving.rivals[job_id])
                return

            def redriven(outcome: Redriven | Reservation) -> None:
                if isinstance(outcome, Reservation):
                    self._changes.not_redriven(redriving)
                    done(outcome)
                    return
                if outcome.job is None or not outcome.redriven:
                    self._changes.not_redriven(redriving)
                    refuse(outcome.job, None if outcome.rival is None else self._handles.of(outcome.rival).decode())
                    return
                self._changes.redriven(redriving, [outcome])
                done(outcome.job)

            def not_redriven(error: StoreError) -> None:
                self._changes.not_redriven(redriving)
                failed(error)

            due_us = round((self._clock.wall() + delay) * 1_000_000) if delay else 0
            operation = Redrive(job_id, job.function, namespace, payload=payload, due_us=due_us)
            operation.act = act
            if keyed_act is not None:
                operation.keyed_act = KeyedAct(keyed_act.key, lambda outcomes: keyed_act.reply(_retried(*outcomes)))
            self._commits.put(operation, redriven, not_redriven)

        self.find(job_id, found, failed, namespace=namespace)

    # ---- looking up ----

    def find(
        self,
        job_id: int,
        done: Callable[[Job | None], None],
        failed: Callable[[StoreError], None],
        *,
        overtakes: bool = False,
        room: int = 0,
        namespace: str = DEFAULT,
    ) -> None:
        """Look a job of a namespace up; a job in memory is returned as it is there.

        With ``overtakes`` the result may not include operations that are still queued: see `Operation.overtakes`.
        ``room`` is as in `Find`.
        """
        held = self._table.find(job_id)
        if held is not None:
            done(held.seen() if held.is_in(namespace) else None)
            return
        operation = Find([job_id], room, namespace)
        operation.overtakes = overtakes
        self._commits.put(operation, lambda jobs: done(jobs.get(job_id)), failed)

    def show(
        self,
        job_id: int,
        done: Callable[[Job | None, RemoteAttempt | None], None],
        failed: Callable[[StoreError], None],
        namespace: str = DEFAULT,
    ) -> None:
        """Look a job of a namespace up; if another node holds it, ask that node for its worker and progress.

        A stored job is read beside the groups, so that the answer does not wait for the disk.
        """
        held = self._table.find(job_id)
        if held is not None:
            done(held.seen() if held.is_in(namespace) else None, None)
            return

        def found(job: Job | None) -> None:
            remote_jobs = self._remote_jobs
            if remote_jobs is None or job is None or not State(job.state).held or job.term == self._table.term:
                done(job, None)
            else:
                remote_jobs.ask(job, lambda attempt: done(job, attempt))

        def read(job: Job | None) -> None:
            if job is not None and State(job.state).held and job.term == self._table.term:
                # It was claimed meanwhile, or its settlement is not committed yet: it is looked up behind that.
                self.find(job_id, found, failed, namespace=namespace)
            else:
                found(job)

        self._reads.ask(ShowJob(job_id, namespace), read, failed)

    def find_unique(
        self,
        unique: bytes,
        done: Callable[[Found | None], None],
        failed: Callable[[StoreError], None],
        namespace: str = DEFAULT,
    ) -> None:
        """Look a live stored job of a namespace up by its unique, whatever its function."""
        key = (InNamespace(namespace), unique)
        self._commits.put(FindUnique([key]), lambda found: done(found[0]), failed)


def _retried(outcome: Redriven) -> list[Job]:
    """Return the job of a request that was done. Raises ConflictError for another one, whose key is free again."""
    if outcome.job is None or not outcome.redriven:
        raise ConflictError("the job was not retried")
    return [outcome.job]
