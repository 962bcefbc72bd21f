"""Jobs that are stored in one transaction with something else: the answer to a request with a key, or a slice's changes.

`KeyedIntake` submits background jobs with a key of their client: they are stored once. `NodeJobLifecycle` is what the node does
about jobs that its store creates, starts, ends or deletes in a transaction (``jobs.slices.JobLifecycle``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.access.idempotency import KeyedAct, RepeatedError, Reservation
from mainspring.callbacks import Callback, CallInProgress, shielded
from mainspring.jobs.model import RUNS, State
from mainspring.jobs.requests import adopted
from mainspring.jobs.roots import Stored
from mainspring.jobs.store import SubmitOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from mainspring.callbacks import Done, Failed
    from mainspring.errors import MainspringError, StoreError
    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.context import Context
    from mainspring.jobs.held import Held
    from mainspring.jobs.intake import Intake
    from mainspring.jobs.model import Job
    from mainspring.jobs.requests import Clients
    from mainspring.jobs.roots import RootJobs
    from mainspring.jobs.settlement import Ends
    from mainspring.jobs.store import Found, Withdrawn
    from mainspring.storage.commit_queue import OperationWithCallbacks


class KeyedIntake:
    """Submits the jobs of requests with keys."""

    def __init__(self, context: Context, intake: Intake, roots: RootJobs) -> None:
        self._foreground, self._commits = context.table.foreground, context.commits
        self._intake = intake
        self._roots = roots

    @shielded
    async def submit(self, jobs: list[Job], keyed_act: KeyedAct) -> Stored:
        """Store a batch of new jobs, all of them or none, with the answer to the request. Raises RepeatedError.

        The reply of ``keyed_act`` gets what is stored as its only outcome.
        """
        starts = self._roots.due(jobs)
        began = {job.id for job in starts}
        others = [job for job in jobs if job.id not in began]
        await self._adopt(others)
        stored: Stored | Reservation = await Callback(
            lambda done, failed: self._put(others, starts, keyed_act, _Answers(done, failed))
        )
        if isinstance(stored, Reservation):
            raise RepeatedError(stored)
        return stored

    async def _adopt(self, jobs: list[Job]) -> None:
        """Store the foreground jobs that new jobs join, so that these join them in their transaction."""
        tried: list[Held] = []
        while (found := self._to_adopt(jobs, tried)) is not None:
            held, job = found
            if held.adopting:
                assert held.then is not None
                await adopted(held.then)
            else:
                tried.append(held)
                await Callback[None](partial(self._store_foreground, held, job))

    def _to_adopt(self, jobs: list[Job], tried: list[Held]) -> tuple[Held, Job] | None:
        """Return the first foreground job that a new job joins, and that job."""
        for job in jobs:
            held = self._foreground.get((job.function, job.unique)) if job.unique else None
            if held is not None and held not in tried:
                return held, job
        return None

    def _store_foreground(self, held: Held, job: Job, done: Done, failed: Failed) -> None:
        self._intake.store_foreground(held, job, lambda: done(None), failed)

    def _put(self, others: list[Job], starts: list[Job], keyed_act: KeyedAct, answers: _Answers) -> None:
        readers: list[Callable[[Any], Stored]] = []
        act = KeyedAct(keyed_act.key, lambda outcomes: keyed_act.reply([_merged(map(_reader_of, readers, outcomes))]))
        operations: list[OperationWithCallbacks] = []
        if others or not starts:
            readers.append(_of_submit)
            operations.append(self._submission(SubmitOnce(others, act), answers))
        if starts:
            operation, reader = self._roots.beginning(starts, act)
            readers.append(reader)
            operations.append((operation, lambda outcome: answers.add(_reader_of(reader, outcome)), answers.fail))
        answers.left = len(operations)
        self._commits.put_atomic(operations)

    def _submission(self, operation: SubmitOnce, answers: _Answers) -> OperationWithCallbacks:
        intake, jobs = self._intake, operation.jobs
        operation.size = intake.prepare(jobs)

        def stored(outcome: dict[int, Found] | Reservation) -> None:
            if isinstance(outcome, Reservation):
                intake.uncount(jobs)
                answers.add(outcome)
            else:
                new = intake.uncount(jobs, outcome) if outcome else jobs
                answers.add(_of_submit(outcome))
                intake.stored(new)

        def not_stored(error: StoreError) -> None:
            intake.uncount(jobs)
            answers.fail(error)

        return operation, stored, not_stored


class _Answers:
    """Gathers the answers of the operations of one group, and answers the request after the last one."""

    def __init__(self, done: Callable[[Stored | Reservation], None], failed: Callable[[MainspringError], None]) -> None:
        self._done = done
        self._failed = failed
        self._stored: list[Stored] = []
        self.left = 1
        """Operations that are not answered yet."""

    def add(self, outcome: Stored | Reservation) -> None:
        """Add an outcome. A repeated request is that in all of its operations."""
        self.left -= 1
        if not isinstance(outcome, Reservation):
            self._stored.append(outcome)
            outcome = _merged(self._stored)
        if not self.left:
            self._done(outcome)

    def fail(self, error: MainspringError) -> None:
        """Add the error of the group, which is that of all of its operations."""
        self.left -= 1
        if not self.left:
            self._failed(error)


def _reader_of(reader: Callable[[Any], Stored], outcome: Any) -> Any:
    return outcome if isinstance(outcome, Reservation) else reader(outcome)


def _of_submit(joined: dict[int, Found]) -> Stored:
    return Stored(joined, {})


def _merged(parts: Iterable[Stored]) -> Stored:
    joined: dict[int, Found] = {}
    refused: dict[int, str] = {}
    for part in parts:
        joined |= part.joined
        refused |= part.refused
    return Stored(joined, refused)


class NodeJobLifecycle:
    """The node's side of ``jobs.slices.JobLifecycle``."""

    def __init__(
        self,
        context: Context,
        serving: Assigner,
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
                CallInProgress(self._clients.cancel(job_id, why), lambda _: None, lambda _: None)

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
