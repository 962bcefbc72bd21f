"""Submission of foreground jobs, which live as long as a client waits for them.

The only node of a store keeps such a job in memory alone. On a shared store the job is stored if other nodes may need it: its
clients may be at several nodes, or its workers at other nodes only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.errors import ConflictError, RefusedError
from mainspring.jobs.model import Job, State, failure
from mainspring.jobs.store import Submit

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import MainspringError, StoreError
    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.held import Held
    from mainspring.jobs.intake import Intake, Refused
    from mainspring.jobs.outcomes import OutcomeReader, Subscriptions
    from mainspring.jobs.roots import RootJobs
    from mainspring.jobs.store import Found
    from mainspring.jobs.table import Context, Listener

_PENDING = int(State.PENDING)


class _Asking(NamedTuple):
    """A foreground job that is being submitted."""

    job: Job
    listener: Listener
    accepted: Callable[[int], None]
    refused: Refused


class Foreground:
    """Accepts foreground jobs into memory, or into a shared store; ``subscriptions`` is given for a shared store.

    ``limit`` bounds the bytes of their payloads in memory.
    """

    def __init__(
        self,
        context: Context,
        assigner: Assigner,
        intake: Intake,
        roots: RootJobs,
        outcomes: OutcomeReader,
        *,
        limit: int,
        subscriptions: Subscriptions | None = None,
    ) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._listeners, self._hub, self._handles = context.listeners, context.hub, context.handles
        self._assigner = assigner
        self._intake = intake
        self._roots = roots
        self._uniques = context.uniques
        self._outcomes = outcomes
        self._limit = limit
        self._subscriptions = subscriptions

    def asks_the_store(self, job: Job) -> bool:
        """Return whether a foreground job needs the store before it is accepted.

        It may join a job, or run at another node, or stand for a run, which outlives its client.
        """
        if job.unique or job.function in self._roots.functions:
            return True
        return self._subscriptions is not None and not self._has_workers(job.function)

    def _has_workers(self, function: bytes) -> bool:
        queue = self._dispatch.queues.get(function)
        return queue is not None and bool(queue.workers)

    def submit(self, job: Job, listener: Listener, accepted: Callable[[int], None], refused: Refused) -> None:
        """Submit a foreground job.

        ``accepted`` is called with its id, or the id of the live job with the same unique that it joins, before any call of the
        listener.
        """
        table = self._table
        if job.function in self._roots.functions:
            self._begin(_Asking(job, listener, accepted, refused))
            return
        if self._subscriptions is not None and self.asks_the_store(job):
            self._store(_Asking(job, listener, accepted, refused), self._subscriptions)
            return
        if job.unique:
            key = (job.function, job.unique)
            live = table.foreground.get(key)
            if live is not None:
                self._listeners.add(live.job.id, listener, repeat=True)
                accepted(live.job.id)
                return
            if key in self._uniques.questions or self._dispatch.may_live(job.function):
                asking = _Asking(job, listener, accepted, refused)
                self._uniques.ask(key, lambda other: self._answered(asking, other), refused)
                return
        self._hold(_Asking(job, listener, accepted, refused))

    def _begin(self, asking: _Asking) -> None:
        """Begin the run for which a job stands; the client waits for its root job as for any stored one."""
        job = asking.job

        def begun(joined: dict[int, Found]) -> None:
            other = joined.get(job.id)
            job_id = job.id if other is None else other.id
            self._listeners.add(job_id, asking.listener, repeat=True)
            asking.accepted(job_id)
            if other is not None and State(other.state).ended:
                self._outcomes.look(job_id)

        self._start(job, begun, asking.refused)

    def _start(self, job: Job, done: Callable[[dict[int, Found]], None], failed: Refused) -> None:
        """Store a job that stands for a run, whose run begins at once or when its function is resumed."""
        if self._roots.are_paused(job.function):
            self._intake.submit([job], lambda _, joined: done(joined), failed)
        else:
            self._roots.begin([job], done, failed)

    def begin_held(self, held: Held) -> None:
        """Begin the run for which a foreground job in memory stands, because its function has become a workflow."""
        job = held.job
        self._assigner.release(held)

        def begun(joined: dict[int, Found]) -> None:
            if joined:
                failed(ConflictError(f"{self._handles.of(joined[job.id].id).decode()} has the job's unique"))

        def failed(error: MainspringError) -> None:
            job.state, job.error = int(State.FAILED), failure("NotBegun", str(error))
            self._listeners.notify(job, is_kept=False)

        self._start(job, begun, failed)

    def _answered(self, asking: _Asking, other: Found | None) -> None:
        """Continue with the background job that has the unique; None if there is none."""
        job = asking.job
        if other is not None:
            self._listeners.add(other.id, asking.listener, repeat=True)
            asking.accepted(other.id)
        elif (job.function, job.unique) in self._table.foreground:
            self.submit(*asking)
        else:
            self._hold(asking)

    def _hold(self, asking: _Asking) -> None:
        table, job = self._table, asking.job
        if table.foreground_bytes + len(job.payload) > self._limit:
            message = "the foreground jobs that wait here fill the memory given to them"
            asking.refused(RefusedError("QUEUE_ERROR", message))
            return
        if asking.listener.gone:
            asking.accepted(job.id)
            return
        job.input_size = len(job.payload)
        self._intake.submitted((job,))
        held = table.hold(job, stored=False)
        if job.unique:
            table.foreground[job.function, job.unique] = held
        self._listeners.add(job.id, asking.listener)
        asking.accepted(job.id)
        if self._hub.active and job.id in self._hub.wanted:
            self._hub.publish(job)
        self._dispatch.push(held)
        self._assigner.serve(held.queue)

    # ---- jobs that other nodes may run or join ----

    def _store(self, asking: _Asking, subscriptions: Subscriptions) -> None:
        """Store a foreground job of a client of this node: any node's workers may run it, and any node's clients may join it."""
        job, term = asking.job, self._table.term
        job.foreground = True
        self._intake.count(job, self._dispatch.tracked(job.function), scheduled=False)

        def stored(joined: dict[int, Found]) -> None:
            other = joined.get(job.id)
            job_id = job.id
            if other is not None:
                job_id = other.id
                self._intake.uncount([job], joined)
            self._listeners.add(job_id, asking.listener, repeat=True)
            asking.accepted(job_id)
            if other is None:
                self._intake.stored([job])
            elif State(other.state).ended:
                self._outcomes.look(job_id)
            if self._listeners.of(job_id):
                subscriptions.waited(job_id, term)
            elif asking.listener.gone:
                subscriptions.left([job_id])

        def failed(error: StoreError) -> None:
            self._intake.uncount([job])
            asking.refused(error)

        operation = Submit([job], term)
        operation.size = len(job.payload) + 300
        self._commits.put(operation, stored, failed)

    def pass_on(self, held: Held) -> None:
        """Store a foreground job that waits in memory, on a shared store: its last worker here has left, others may run it."""
        subscriptions = self._subscriptions
        if subscriptions is None:
            return
        job, term, on_the_way = held.job, self._table.term, self._table.on_the_way
        self._assigner.release(held)
        on_the_way.add(job.id)
        job.foreground, job.state = True, _PENDING
        held.queue.backlog[job.priority] += 1

        def stored(joined: dict[int, Found]) -> None:
            del joined  # it has no unique, or it would not have been in memory
            on_the_way.discard(job.id)
            if self._listeners.of(job.id):
                self._intake.stored([job])
                subscriptions.waited(job.id, term)
            else:
                subscriptions.left([job.id])

        def failed(error: StoreError) -> None:
            del error
            on_the_way.discard(job.id)
            self._intake.uncount([job])
            self._back(job)

        self._commits.put(Submit([job], term), stored, failed)

    def _back(self, job: Job) -> None:
        """Queue a foreground job in memory as before, because the store failed."""
        job.foreground = False
        if self._listeners.of(job.id):
            held = self._table.hold(job, stored=False)
            self._dispatch.push(held)
            self._assigner.serve(held.queue)
