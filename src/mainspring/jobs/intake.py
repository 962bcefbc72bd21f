"""Submission of background jobs: they go to the store, and may join foreground jobs in memory.

`KeyedIntake` submits jobs with a key of their client: they are stored once. `NodeJobLifecycle` is what the node does about jobs
that its store creates, starts, ends or deletes in a transaction (``jobs.slices.JobLifecycle``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.access.idempotency import KeyedAct, RepeatedError, Reservation
from mainspring.callbacks import Callback, CallInProgress, shielded
from mainspring.errors import RefusedError, StoreFencedError
from mainspring.jobs.model import RUNS, Job, State
from mainspring.jobs.requests import adopted
from mainspring.jobs.roots import Stored
from mainspring.jobs.store import FindUnique, Found, Submit, SubmitOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from mainspring.callbacks import Done, Failed
    from mainspring.errors import MainspringError, StoreError
    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.function_limits import FunctionTimes
    from mainspring.jobs.held import Held
    from mainspring.jobs.lateness import DueRow
    from mainspring.jobs.model import Job
    from mainspring.jobs.requests import Clients, StoredChanges
    from mainspring.jobs.roots import RootJobs
    from mainspring.jobs.settlement import Ends
    from mainspring.jobs.store import Rescheduled, Withdrawn
    from mainspring.jobs.table import Context
    from mainspring.storage.commit_queue import OperationWithCallbacks


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.errors import MainspringError, StoreError
    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.held import FunctionQueue, Held
    from mainspring.jobs.roots import RootJobs
    from mainspring.jobs.run_places import Filled
    from mainspring.jobs.table import Context, Listener

    Accepted = Callable[[list[int], "dict[int, Found]"], None]
    """Is called with the ids of a batch's jobs, in order, and with the jobs that were joined."""
    Refused = Callable[[MainspringError], None]

_LEASED, _PENDING, _SCHEDULED = int(State.LEASED), int(State.PENDING), int(State.SCHEDULED)


class Intake:
    """Submits background jobs to the store, and takes stored jobs into memory.

    ``wake_at`` is called with the time at which a job is due or expires. ``submitted`` is called with new jobs, for figures.
    """

    def __init__(
        self,
        context: Context,
        assigner: Assigner,
        roots: RootJobs,
        wake_at: Callable[[int], None],
        submitted: Callable[[Sequence[Job]], None],
        times: FunctionTimes,
    ) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._listeners, self._hub = context.listeners, context.hub
        self._assigner = assigner
        self._admits = assigner.claiming.admits
        self._uniques = context.uniques
        self._roots = roots
        self._goes_on = roots.goes_on
        self._wake_at = wake_at
        self.submitted = submitted
        self._times = times

    # ---- to the store ----

    def submit(self, jobs: list[Job], accepted: Accepted, refused: Refused) -> Submit | None:
        """Store a batch of new jobs (in the state SCHEDULED where ``due_us`` is set), all of them or none.

        A job that joins a foreground one must be submitted alone; see ``joins``. Due jobs that stand for runs become root jobs;
        if the batch has others too, ``refused`` may be called although the former or the latter are stored.

        Return the operation, if it is one that `CommitQueue.withdraw` may drop.
        """
        if self._times:
            self._times.apply(jobs)
        if self._roots.functions and (starts := self._roots.due(jobs)):
            self._begin(jobs, starts, accepted, refused)
            return None
        if (foreground := self._table.foreground) and self.joins(jobs):
            (job,) = jobs  # batches are taken apart before, see joins()
            held = foreground[job.function, job.unique]
            self._adopt(held, job, lambda job_id, joined: accepted([job_id], joined), refused)
            return None
        operation = Submit(jobs)
        operation.size = self.prepare(jobs)
        self._commits.put(
            operation,
            lambda joined: self._submitted(jobs, joined, accepted),
            lambda error: self._not_submitted(jobs, error, refused),
        )
        return operation

    def prepare(self, jobs: Sequence[Job]) -> int:
        """Count new jobs that are about to be stored; return the size of their operation."""
        dispatch = self._dispatch
        queues, uniques = dispatch.queues, self._uniques
        size = 0
        for job in jobs:
            if job.function not in queues:
                dispatch.tracked(job.function)
        if uniques.questions:
            for job in jobs:
                uniques.overtake((job.function, job.unique))
        for job in jobs:
            self.count(job, queues.get(job.function), scheduled=bool(job.due_us))
            size += job.input_size + 300
        return size

    def _begin(self, jobs: list[Job], starts: list[Job], accepted: Accepted, refused: Refused) -> None:
        """Begin runs for some jobs of a batch, submit the others, and answer when both are done."""
        began = {job.id for job in starts}
        others = [job for job in jobs if job.id not in began]
        found: dict[int, Found] = {}
        errors: list[MainspringError] = []
        left = 2 if others else 1

        def ended(joined: dict[int, Found]) -> None:
            nonlocal left
            left -= 1
            found.update(joined)
            if left:
                return
            if errors:
                refused(errors[0])
            else:
                accepted([found[job.id].id if job.id in found else job.id for job in jobs], found)

        def failed(error: MainspringError) -> None:
            errors.append(error)
            ended({})

        if others:
            self.submit(others, lambda _, joined: ended(joined), failed)
        self._roots.begin(starts, ended, failed)

    def count(self, job: Job, queue: FunctionQueue | None, *, scheduled: bool, leases: bool = True) -> None:
        """Set the state in which a new job is stored, and count it; no queue: the store alone counts the function's jobs.

        ``leases``: the job may be leased to this node, if a worker waits for it.
        """
        size = job.input_size = len(job.payload)
        if scheduled:
            job.state = _SCHEDULED
            if queue is not None:
                queue.away += 1
        elif (
            leases
            and queue is not None
            and (self._admits(queue, job) or (queue.prefer is not None and self._goes_on(job) is not None))
        ):
            job.state, job.term = _LEASED, self._table.term
            queue.inflight += 1
            if queue.admission is not None:
                queue.admission.expect(job.key)
            queue.mean_size += (size - queue.mean_size) / 64
        else:
            job.state = _PENDING
            if queue is not None:
                queue.backlog[job.priority] += 1

    def _submitted(self, jobs: list[Job], joined: dict[int, Found], accepted: Accepted) -> None:
        ids = [job.id for job in jobs]
        if joined:
            ids = [joined[job_id].id if job_id in joined else job_id for job_id in ids]
            jobs = self.uncount(jobs, joined)
        accepted(ids, joined)
        self.stored(jobs)

    def stored(self, jobs: Sequence[Job], *, serves: bool = True) -> None:
        """Process new rows: hand out jobs that are leased to this node, and set timers for the others.

        Without ``serves``, jobs that are not leased wait until something else serves their queues.
        """
        if not jobs:
            return
        self.submitted(jobs)
        assigner, dispatch, term = self._assigner, self._dispatch, self._table.term
        queues = dispatch.queues
        if dispatch.new_rows:
            dispatch.stored(jobs)
        if self._hub.active:
            for job in jobs:
                if job.id in self._hub.wanted:
                    self._hub.publish(job)
        touched: dict[FunctionQueue, None] = {}
        leased = False
        for job in jobs:
            state = job.state
            if state == _LEASED:
                queue = queues[job.function]
                queue.inflight -= 1
                if queue.admission is not None:
                    queue.admission.arrived(job.key)
                if job.term == term:
                    leased = True
                    queue.leased += 1
                    held = assigner.hold(job)
                    worker = None if queue.prefer is None else self._goes_on(job)
                    if worker is None:
                        dispatch.push(held)
                    else:
                        assigner.start(held, worker)
                        worker.connection.assign(held)
                else:  # the term has ended since: the node that ended it gives the job back
                    queue.away += 1
                touched[queue] = None
            elif state == _SCHEDULED:
                self._wake_at(job.due_us)
            else:
                waiting = queues.get(job.function) if serves else None
                if waiting is not None:
                    touched[waiting] = None
            if job.expires_us:
                self._wake_at(job.expires_us)
        for queue in touched:
            assigner.serve(queue)
        if leased:
            assigner.arrived()

    def uncount(self, jobs: Sequence[Job], gone: dict[int, Found] | None = None) -> list[Job]:
        """Undo the counts of jobs that were not stored, and use the places that these get free; return the others."""
        stored = []
        touched: dict[FunctionQueue, None] = {}
        for job in jobs:
            if gone is not None and job.id not in gone:
                stored.append(job)
                continue
            queue = self._dispatch.queues.get(job.function)
            if queue is None:
                continue
            if job.state == _LEASED:
                queue.inflight -= 1
                touched[queue] = None
                if queue.admission is not None:
                    queue.admission.arrived(job.key)
            elif job.state == _PENDING:
                self._assigner.no_longer_pending(queue, job.priority)
            else:
                self._assigner.no_longer_away(queue)
        for queue in touched:
            self._assigner.serve(queue)
        return stored

    def _not_submitted(self, jobs: list[Job], error: StoreError, refused: Refused) -> None:
        self.uncount(jobs)
        refused(error)

    # ---- joins ----

    def joins(self, jobs: list[Job]) -> bool:
        """Return whether any of the background jobs joins a foreground one: then they have to be submitted one by one.

        Such a job may have to wait for more than one commit, and be refused although the others of its batch are stored.
        """
        foreground = self._table.foreground
        return bool(foreground) and any(job.unique and (job.function, job.unique) in foreground for job in jobs)

    def join(
        self,
        function: bytes,
        unique: bytes,
        listener: Listener | None,
        accepted: Callable[[int], None],
        refused: Refused,
    ) -> None:
        """Join a live job if there is one; refuse otherwise, because the queue is full.

        A request without a listener is a background one, and joins stored jobs only.
        """
        held = self._table.foreground.get((function, unique))
        if held is not None and listener is not None:
            self._listeners.add(held.job.id, listener, repeat=True)
            accepted(held.job.id)
            return

        def found(outcome: list[Found | None]) -> None:
            other = outcome[0]
            if other is None:
                refused(RefusedError("QUEUE_ERROR", "Job queue is full"))
                return
            if listener is not None:
                self._listeners.add(other.id, listener, repeat=True)
            accepted(other.id)

        self._commits.put(FindUnique([(function, unique)]), found, refused)

    def store_foreground(self, held: Held, joining: Job, then: Callable[[], None], refused: Refused) -> None:
        """Store a foreground job that is not being stored, because a new job will join it; then call ``then``."""
        self._adopt(held, joining, lambda _, __: then(), refused)

    def _adopt(
        self, held: Held, joining: Job, accepted: Callable[[int, dict[int, Found]], None], refused: Refused
    ) -> None:
        """Store a foreground job because a background submit has joined it: it now outlives its clients."""
        if held.adopting:
            assert held.then is not None
            held.then.append(lambda: self._adopt(held, joining, accepted, refused))
            return
        if held.stored or self._table.held.get(held.handle) is not held:
            # It was stored, or has ended meanwhile: the store decides.
            self.submit([joining], lambda ids, found: accepted(ids[0], found), refused)
            return
        if not self._table.term:
            # Nobody would give back a job that is leased under no term.
            refused(StoreFencedError("the last term has ended, and the next has not begun yet"))
            return
        job, options = held.job, held.job.options
        job.state, job.term = _LEASED, self._table.term
        if options is None and joining.options is not None:
            # The last submit sets the retention and the retries; the first one set the work to do.
            job.options = msgspec.structs.replace(joining.options, reducer=None)
        held.adopting = True
        held.then = []

        def stored(kept: dict[int, Found]) -> None:
            if kept:
                # A job that has succeeded has the unique as well, and its result is kept: it is joined instead.
                other = kept[job.id]
                job.term, job.options = 0, options
                accepted(other.id, {joining.id: other})
            else:
                self._table.has_been_stored(held)
                if job.term != self._table.term:  # another node may have it by now
                    self._assigner.lost(held)
                accepted(job.id, {joining.id: Found(job.id, _LEASED, job.attempt)})
            self._continue(held)
            self._assigner.arrived()

        def failed(error: StoreError) -> None:
            job.term, job.options = 0, options
            refused(error)
            self._continue(held)

        self._commits.put(Submit([job]), stored, failed)

    def _continue(self, held: Held) -> None:
        """Call the functions that waited until the row was stored, or failed."""
        held.adopting = False
        then, held.then = held.then, None
        for function in then or ():
            function()
        if (
            self._table.held.get(held.handle) is held
            and not (held.stored or held.adopting or held.worker)
            and not self._listeners.of(held.job.id)
        ):
            self._assigner.release(held)  # its client left meanwhile


class KeyedIntake:
    """Submits the jobs of requests with keys."""

    def __init__(self, context: Context, intake: Intake, roots: RootJobs, times: FunctionTimes) -> None:
        self._foreground, self._commits = context.table.foreground, context.commits
        self._intake = intake
        self._roots = roots
        self._times = times

    @shielded
    async def submit(self, jobs: list[Job], keyed_act: KeyedAct) -> Stored:
        """Store a batch of new jobs, all of them or none, with the answer to the request. Raises RepeatedError.

        The reply of ``keyed_act`` gets what is stored as its only outcome.
        """
        self._times.apply(jobs)
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
            operations.append(self._submission(SubmitOnce(others, keyed_act=act), answers))
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
        assigner: Assigner,
        ends: Ends,
        intake: Intake,
        clients: Clients,
        times: FunctionTimes,
        roots: RootJobs,
        dated: Callable[[Sequence[DueRow]], None],
        changes: StoredChanges,
    ) -> None:
        """``dated`` is called with committed times by which jobs should have begun and ended."""
        self._dated = dated
        self._changes = changes
        self._times = times
        self._roots = roots
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._listeners, self._handles, self._hub = context.listeners, context.handles, context.hub
        self._uniques = context.uniques
        self._assigner = assigner
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
        self.add_times(job)
        queue = self._dispatch.tracked(job.function)
        self._intake.count(job, queue, scheduled=job.state == State.SCHEDULED, leases=term == self._table.term)
        if job.unique:
            self._uniques.overtake(key)
        return True

    def add_times(self, job: Job) -> None:
        """Give a job the times of its function."""
        if self._times:
            self._times.apply((job,))

    def stored(self, jobs: Sequence[Job]) -> None:
        """Serve due jobs to workers, and set a timer for the others."""
        self._intake.stored(jobs)

    def waits(self, jobs: Sequence[Job], filled: Sequence[tuple[bytes, Sequence[bytes], Filled]]) -> None:
        """Process root jobs that wait for places."""
        self._intake.stored(jobs, serves=False)
        for function, keys, what in filled:
            self._roots.filled(function, keys, what)

    def dropped(self, jobs: Sequence[Job]) -> None:
        """Undo the counts of jobs that were not stored."""
        self._intake.uncount(jobs)

    def rescheduled(self, outcomes: Sequence[Rescheduled]) -> None:
        """Count jobs in their new states, and serve or wake them in time."""
        self._changes.rescheduled(outcomes)

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
            if held is None:
                self._clients.cancel_elsewhere(job_id, why)
            elif not held.cancelled:
                self._clients.cancel_held(held, why, lambda _: None)

    def dated(self, rows: Sequence[DueRow]) -> None:
        """Watch times by which jobs should have begun and ended, or schedules started a job."""
        self._dated(rows)

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
                self._assigner.no_longer_pending(queue, job.priority)
            elif queue is not None:
                self._assigner.no_longer_away(queue)

    def ended(self, jobs: Sequence[Job]) -> None:
        """Count the ends of root jobs; notify their clients and watchers after the group's answers, which may add clients."""
        for job in jobs:
            queue = self._dispatch.tracked(job.function)
            if queue is not None:
                self._assigner.no_longer_away(queue)
            self._roots.freed(job)
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
                self._assigner.no_longer_pending(queue, gone.priority)
            elif gone.term != self._table.term:
                if queue is not None:
                    self._assigner.no_longer_away(queue)
                if stop:
                    self._clients.stop_elsewhere(gone.term, gone.id)
            for listener in self._listeners.pop(gone.id):
                listener.unknown(self._handles.of(gone.id))
