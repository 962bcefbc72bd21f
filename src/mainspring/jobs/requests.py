"""Clients' requests about single jobs, which may be in this node's memory, held by another node, or only in the store.

`Clients` cancels jobs, retries them and looks them up. `JobChanges` gives them another time, priority or expiry while they wait,
and deletes them once they have ended. The worker of a held job and its progress are not stored: nodes query each other for them
(`RemoteJobs`).

`StoredChanges` is the node's part in changes of stored jobs, of one or of many: its counts, and notifications of clients and
watchers.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.access.audit import RecordActs
from mainspring.access.idempotency import KeyedAct, RepeatedError, commit_keyed
from mainspring.callbacks import Callback, CallInProgress, shielded
from mainspring.clock import to_us
from mainspring.errors import ConflictError, StoreError
from mainspring.events import Ask, ProgressText, Running, Stop, StopRequested
from mainspring.jobs import rules
from mainspring.jobs.model import CANCEL_REASON, RUNS, Job, State, StopRequest, failure
from mainspring.jobs.rules import Refusals
from mainspring.jobs.store import (
    Cancel,
    DeleteEnded,
    Find,
    FindUnique,
    InNamespace,
    Redate,
    Redrive,
    RequestStop,
    Reschedule,
    ShowJob,
)
from mainspring.jobs.successors import is_successor
from mainspring.namespaces import ANY, DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.access.caller import Act
    from mainspring.errors import MainspringError
    from mainspring.events import Relay
    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.held import FunctionQueue, Held
    from mainspring.jobs.maintenance import DueJobs
    from mainspring.jobs.roots import RootJobs
    from mainspring.jobs.settlement import Ends, Settling
    from mainspring.jobs.store import Cancelled, Deleted, Found, Redriven, Rescheduled
    from mainspring.jobs.table import Context
    from mainspring.storage.reads import Reads


class Redriving(NamedTuple):
    """Ended jobs that a transaction is about to redrive."""

    away: Counter[FunctionQueue]
    """The jobs that are counted from now on, so that foreground jobs with their uniques query the store."""
    rivals: dict[int, str]
    """The jobs that may not be redriven, with the handles of the foreground jobs that have their uniques."""
    successors: set[int]
    """The jobs that may not be redriven because they have ended as successors."""


class StoredChanges:
    """Called before and after the transactions that change the jobs, which are the caller's."""

    def __init__(self, context: Context, assigner: Assigner, due_jobs: DueJobs) -> None:
        self._table, self._dispatch, self._hub = context.table, context.dispatch, context.hub
        self._uniques, self._handles = context.uniques, context.handles
        self._assigner = assigner
        self._due_jobs = due_jobs

    def before_redrive(self, jobs: Iterable[Job]) -> Redriving:
        """Prepare for the redrive of jobs. Afterwards `redriven` is called, or `not_redriven`."""
        away: Counter[FunctionQueue] = Counter()
        rivals: dict[int, str] = {}
        successors: set[int] = set()
        for job in jobs:
            if is_successor(job):
                successors.add(job.id)
                continue
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
        return Redriving(away, rivals, successors)

    def not_redriven(self, redriving: Redriving) -> None:
        """Uncount the jobs of a transaction that was not committed, or has changed nothing."""
        for queue, number in redriving.away.items():
            self._assigner.no_longer_away(queue, number)

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
                self._assigner.no_longer_pending(queue, priority)
            elif queue is not None:
                self._assigner.no_longer_away(queue)
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
        self._assigner.now_pending(pending, were_away=False)


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

    @shielded
    async def cancel(self, job_id: int, reason: str, act: Act | None = None, namespace: str = DEFAULT) -> str:
        """Cancel a job of a namespace.

        Return ``cancelled``, ``running`` (its worker was asked to stop), or its final state. ``act`` is recorded with the change,
        or when a worker is asked to stop.
        """
        while True:
            held = self._table.find(job_id)
            if held is None:
                error = failure("Cancelled", reason)
                operation = Cancel(job_id, error, round(self._clock.wall() * 1_000_000), namespace)
                operation.act = act
                outcome: Cancelled = await self._commits.committed(operation)
                state = await self._cancelled(job_id, outcome, reason, act)
                if state is not None:
                    return state
                # It was claimed during the request, or its settlement waits for the store.
                self._ends.retry_settlements()
            elif not held.is_in(namespace):
                raise self._refusals.not_found(job_id)
            elif held.then is None:
                return await self._request_stop(held, reason, act)
            else:
                await adopted(held.then)

    async def _cancelled(self, job_id: int, outcome: Cancelled, reason: str, act: Act | None) -> str | None:
        """Return the state of a stored job after the operation; None for a job that this node holds."""
        job, before = outcome.job, outcome.before
        if job is None:
            raise self._refusals.not_found(job_id)
        if before <= State.PENDING:
            self._changes.cancelled([outcome])
            return "cancelled"
        if not State(before).held:
            return State(before).name.lower()
        if job.term == RUNS:
            return await self._roots.cancel(job_id, reason, act)
        if self._remote_jobs is not None and job.term != self._table.term:
            self._record(act)
            self._remote_jobs.stop(job.term, job_id, reason)
            return "running"
        return None

    def _record(self, act: Act | None) -> None:
        """Record an act that no operation of its own performs: a worker is asked to stop, or the job is in memory."""
        if act is not None:
            self._commits.put(RecordActs([act]))

    async def _request_stop(self, held: Held, reason: str, act: Act | None) -> str:
        """Cancel a job in memory; if its worker can be asked to stop it, store the request first.

        The job is then cancelled even if the node crashes before the worker has stopped.
        """
        if not (self._keeps_requests and held.stored and held.worker is not None and held.worker.streams):
            self._record(act)
            return await Callback[str](lambda done, _: self.cancel_held(held, reason, done))
        request = StopRequest(round(self._clock.wall() * 1_000_000), failure("Cancelled", reason))
        operation = RequestStop([(held.job.id, held.job.term)], request)
        operation.act = act
        self.cancel_held(held, reason, lambda _: None)
        await self._commits.committed(operation)
        return "running"

    def cancel_elsewhere(self, job_id: int, reason: str) -> None:
        """Cancel a job that this node does not hold, if another node may hold it."""
        if self._remote_jobs is not None:
            CallInProgress(self.cancel(job_id, reason, namespace=ANY), lambda _: None, lambda _: None)

    def stop_elsewhere(self, term: int, job_id: int) -> None:
        """Ask the node that held a deleted job to stop it."""
        if self._remote_jobs is not None and term > 0:
            self._remote_jobs.stop(term, job_id, CANCEL_REASON)

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

    @shielded
    async def retry(
        self,
        job_id: int,
        keyed_act: KeyedAct | None = None,
        *,
        payload: bytes | None = None,
        delay: float = 0.0,
        act: Act | None = None,
        namespace: str = DEFAULT,
    ) -> Job:
        """Put an ended, unsuccessful job of a namespace back to pending, or to scheduled for some seconds, and return it.

        ``payload``: with other arguments. The reply of ``keyed_act`` gets the job, too. Raises NotFoundError, ConflictError,
        StoreError and RepeatedError.
        """
        found: Job | None = await Callback(partial(self.find, job_id, namespace=namespace))
        if found is None or found.state not in rules.sources(rules.Event.REDRIVE):
            raise self._not_retried(job_id, found)
        redriving = self._changes.before_redrive([found])
        if redriving.successors:
            raise self._refusals.never_begun(job_id)
        if job_id in redriving.rivals:
            raise self._not_retried(job_id, found, redriving.rivals[job_id])
        due_us = round((self._clock.wall() + delay) * 1_000_000) if delay else 0
        operation = Redrive(job_id, found.function, namespace, payload=payload, due_us=due_us)
        operation.act = act
        if keyed_act is not None:
            operation.keyed_act = KeyedAct(keyed_act.key, lambda outcomes: keyed_act.reply(_retried(*outcomes)))
        try:
            outcome: Redriven = await commit_keyed(self._commits, operation)
        except (StoreError, RepeatedError):
            self._changes.not_redriven(redriving)
            raise
        job = outcome.job
        if job is None or not outcome.redriven:
            self._changes.not_redriven(redriving)
            rival = None if outcome.rival is None else self._handles.of(outcome.rival).decode()
            raise self._not_retried(job_id, job, rival)
        self._changes.redriven(redriving, [outcome])
        return job

    def _not_retried(self, job_id: int, job: Job | None, rival: str | None = None) -> MainspringError:
        if job is None:
            return self._refusals.not_found(job_id)
        if rival is not None:
            return self._refusals.unique_is_live(job_id, rival)
        return self._refusals.not_retried(job_id, job)

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

    async def show(self, job_id: int, namespace: str = DEFAULT) -> tuple[Job | None, RemoteAttempt | None]:
        """Look a job of a namespace up; if another node holds it, ask that node for its worker and progress.

        A stored job is read beside the groups, so that the answer does not wait for the disk.
        """
        held = self._table.find(job_id)
        if held is not None:
            return held.seen() if held.is_in(namespace) else None, None
        job = await self._reads.read(ShowJob(job_id, namespace))
        if job is not None and State(job.state).held and job.term == self._table.term:
            # It was claimed meanwhile, or its settlement is not committed yet: it is looked up behind that.
            job = await Callback[Job | None](partial(self.find, job_id, namespace=namespace))
        remote_jobs, stored = self._remote_jobs, job
        if remote_jobs is None or stored is None or not State(stored.state).held or stored.term == self._table.term:
            return stored, None
        return stored, await Callback[RemoteAttempt | None](lambda done, _: remote_jobs.ask(stored, done))

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


async def adopted(then: list[Callable[[], None]]) -> None:
    """Wait until a foreground job is stored that is being stored now."""
    await Callback[None](lambda done, _: then.append(lambda: done(None)))


class JobChange(NamedTuple):
    """Changed values of a waiting job; None leaves a value unchanged. Times are microseconds of wall time."""

    due_us: int | None = None
    """The time from which it runs; a past one lets it run at once."""
    priority: int | None = None
    expires_us: int | None = None
    """0: it does not expire."""
    start_us: int | None = None
    """By when it should have begun; 0 removes the time, also of the next."""
    deadline_us: int | None = None

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

    @shielded
    async def reschedule(self, job_id: int, change: JobChange, act: Act | None = None, namespace: str = DEFAULT) -> Job:
        """Change a waiting job of a namespace, and return it. Raises NotFoundError, ConflictError and StoreError."""
        while True:
            held = self._table.find(job_id)
            if held is not None:
                if not held.is_in(namespace):
                    raise self._refusals.not_found(job_id)
                if held.then is not None:
                    await adopted(held.then)
                    continue
                if held.worker is not None:
                    raise self._refusals.not_changed(job_id, held.seen(), State.RUNNING)
                if not held.stored:
                    raise self._refusals.in_foreground(job_id)
                # It waits in memory: it goes back to the store, and is changed in the same group, before it can be claimed again.
                self._settling.released(held)
            now_us = round(self._clock.wall() * 1_000_000)
            operation = Reschedule(
                job_id,
                now_us,
                due_us=change.due_us,
                priority=change.priority,
                expires_us=change.expires_us,
                start_us=change.start_us,
                deadline_us=change.deadline_us,
                namespace=namespace,
            )
            operation.act = act
            outcome: Rescheduled = await self._commits.committed(operation)
            job = outcome.job
            if job is None:
                raise self._refusals.not_found(job_id)
            if outcome.before <= State.PENDING:
                self._changes.rescheduled([outcome])
                return job
            if not State(outcome.before).held or job.term != self._table.term:
                raise self._refusals.not_changed(job_id, job, outcome.before)
            # It was claimed during the request, or its settlement waits for the store.
            self._ends.retry_settlements()

    # ---- by when it should begin and end ----

    @shielded
    async def redate(
        self,
        job_id: int,
        *,
        start_us: int | None = None,
        deadline_us: int | None = None,
        act: Act | None = None,
        namespace: str = DEFAULT,
    ) -> Job:
        """Change the times of a job of a namespace, as `jobs.store.Redate` does, and return it.

        Raises NotFoundError, ConflictError for a job that has ended or that no store keeps, and StoreError.
        """
        while (held := self._table.find(job_id)) is not None and held.then is not None:
            await adopted(held.then)
        if held is not None and not held.is_in(namespace):
            raise self._refusals.not_found(job_id)
        if held is not None and not held.stored:
            raise self._refusals.in_foreground(job_id)
        operation = Redate(job_id, start_us=start_us, deadline_us=deadline_us, namespace=namespace)
        operation.act = act
        job: Job | None = await self._commits.committed(operation)
        if job is None:
            raise self._refusals.not_found(job_id)
        if State(job.state).ended:
            raise self._refusals.not_redated(job_id, job)
        held = self._table.find(job_id)
        if held is None:
            return job
        held.job.options = job.options
        return held.seen()

    # ---- delete ----

    async def delete(self, job_id: int, act: Act | None = None, namespace: str = DEFAULT) -> Job:
        """Delete an ended job of a namespace, and return it as it was. Raises NotFoundError, ConflictError and StoreError."""
        held = self._table.find(job_id)
        if held is not None:
            refusals = self._refusals
            raise refusals.not_deleted(job_id, held.seen()) if held.is_in(namespace) else refusals.not_found(job_id)
        operation = DeleteEnded(job_id, namespace)
        operation.act = act
        outcome: Deleted = await self._commits.committed(operation)
        if outcome.job is None:
            raise self._refusals.not_found(job_id)
        if not outcome.deleted:
            raise self._refusals.not_deleted(job_id, outcome.job)
        return outcome.job


ANSWER_TIMEOUT: Final = 1.0
"""Seconds to wait for the answer of a node."""


class RemoteAttempt(NamedTuple):
    """An attempt under way at another node."""

    started_us: int
    number: int
    worker: str
    numerator: bytes
    denominator: bytes
    stop_us: int
    """When its worker was asked to stop; 0 if it was not, and at a node of an older version."""


class RemoteJobs:
    """Queries the nodes that hold jobs, and answers queries about jobs that this node holds."""

    def __init__(self, context: Context, relay: Relay) -> None:
        self._table, self._timers, self._clock = context.table, context.timers, context.clock
        self._relay = relay
        self._answers: dict[int, list[Callable[[RemoteAttempt | None], None]]] = {}
        """By job id, the functions to call with the answer."""
        self._stops: dict[int, int] = {}
        """By job id, the first part of an answer: when the worker was asked to stop."""

    def ask(self, job: Job, then: Callable[[RemoteAttempt | None], None]) -> None:
        """Ask the node that holds a job for its worker and progress.

        ``then`` is called with None if that node does not hold the job any more, or does not answer in time.
        """
        answers = self._answers.setdefault(job.id, [])

        def answer(attempt: RemoteAttempt | None) -> None:
            self._timers.cancel(timer)
            then(attempt)

        def give_up() -> None:
            waiting = self._answers.get(job.id, [])
            if answer in waiting:
                waiting.remove(answer)
                if not waiting:
                    del self._answers[job.id]
                    self._stops.pop(job.id, None)
                then(None)

        timer = self._timers.at(self._clock.monotonic() + ANSWER_TIMEOUT, give_up)
        answers.append(answer)
        if len(answers) == 1:
            self._relay.send(job.term, Ask(job.id, self._table.term))

    def asked(self, job_id: int, by: int) -> None:
        """Answer the node with the term ``by``."""
        held = self._table.find(job_id)
        name = held.worker_name() if held is not None else None
        if held is None or name is None:
            self._relay.send(by, Running(job_id, 0))
            return
        self._relay.send(by, ProgressText(job_id, held.text.decode()))
        if held.stop_us:
            self._relay.send(by, StopRequested(job_id, held.stop_us))
        seen = held.seen()
        self._relay.send(by, Running(job_id, seen.started_us, seen.attempt, name, held.numerator, held.denominator))

    def stop_requested(self, message: StopRequested) -> None:
        """Keep the first part of an answer for which somebody waits."""
        if message.id in self._answers:
            self._stops[message.id] = message.at_us

    def answered(self, running: Running) -> None:
        """Pass an answer to its callers."""
        stop_us = self._stops.pop(running.id, 0)
        attempt = RemoteAttempt(*running[1:], stop_us) if running.started_us else None
        for answer in self._answers.pop(running.id, ()):
            answer(attempt)

    def stop(self, term: int, job_id: int, reason: str) -> None:
        """Ask the node that holds a job to cancel it."""
        self._relay.send(term, Stop(job_id, reason))
