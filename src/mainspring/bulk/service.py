"""Operations on many jobs on a node: it begins them, works on its own ones, and takes over those of nodes that are gone.

An operation under way (`BulkRun`) reads the next jobs and gives them their turns. A backfill of a schedule fires the next
times in each step (`BackfillRun`).
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from mainspring.access.caller import Permission
from mainspring.access.idempotency import commit_keyed
from mainspring.bulk import rules
from mainspring.bulk.rules import LARGEST_STEP, PREFIX, Action, BulkOperation, Outcome, Result, Spec, Status
from mainspring.bulk.store import (
    REASON,
    BeginBulk,
    EndBulk,
    FindBulk,
    StepBackfill,
    StepBulk,
    Stepped,
    SweepBulk,
    TakeBulk,
)
from mainspring.callbacks import CallInProgress, shielded
from mainspring.clock import to_us
from mainspring.errors import ConflictError
from mainspring.jobs.rules import NEVER_BEGUN
from mainspring.jobs.store import Find
from mainspring.namespaces import Turns, places_left
from mainspring.queries import QueryJobs
from mainspring.storage.agenda import Pace, Steps
from mainspring.storage.reads import REMEDY, Kind, SetAside
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from mainspring.access.caller import Act, Caller
    from mainspring.access.idempotency import KeyedAct
    from mainspring.callbacks import Ask
    from mainspring.clock import Clock
    from mainspring.errors import MainspringError, StoreError
    from mainspring.jobs.model import Job
    from mainspring.jobs.requests import Redriving, StoredChanges
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.engine import Operation, Page
    from mainspring.storage.reads import Reads


if TYPE_CHECKING:
    Cancel = Callable[..., Coroutine[Ask, Any, str]]
    Rights = Callable[[Caller], Coroutine[Ask, Any, Caller | None]]

STEPS: Final = Steps(first=8, smallest=8, largest=LARGEST_STEP, aim=3000)
"""Jobs of a step."""
READ_AHEAD: Final = 100
"""Jobs that are read at once. Beside a long read, groups of SQLite wait for the interpreter at each statement."""
AHEAD: Final = 50
"""The fewest jobs that a step reads for the next ones, if it can: few cost as much as these."""
RETRY_DELAY: Final = 1.0
"""Seconds after which a read or a step that the store refused is repeated."""


class BulkNode(NamedTuple):
    """The services of the node on which operations run."""

    commits: CommitQueue
    reads: Reads
    clock: Clock
    changes: StoredChanges
    later: Callable[[float, Callable[[], None]], object]
    """Calls a function after some seconds."""
    cancel: Cancel
    """``Clients.cancel``: for jobs that some node holds."""
    rights: Rights
    """Returns the caller as it is now, or None if its token has ended."""


class BulkRun:
    """An operation under way. `prepare` makes its next step possible, `step` takes it; the service calls them in turn.

    ``ready`` is called when the next step can be taken, ``over`` when there is none on this node.
    """

    def __init__(
        self, node: BulkNode, bulk: BulkOperation, ready: Callable[[BulkRun], None], over: Callable[[BulkRun], None]
    ) -> None:
        self._node = node
        self._ready = ready
        self._over = over
        self._pace = Pace(STEPS, bulk.spec.rate)
        self._is_ended = False
        self._caller: Caller | None = None
        """The caller with its rights before the next step."""
        self._stopped: Counter[Outcome] = Counter()
        """The results of held jobs that no worker ran, since the last step."""
        self._unanswered = 0
        """The held jobs that are being cancelled."""
        self._is_waiting = False
        """Whether `prepare` has to wait for them."""
        self._adopt(bulk)
        self._stop_jobs()

    def _adopt(self, bulk: BulkOperation) -> None:
        """Continue from the operation's place, as it is stored."""
        self.bulk = bulk
        self._place = bulk.progress.after
        """The place up to which jobs were read."""
        self._ids: deque[int] = deque()
        """The jobs that were read and have not had their turn."""
        self._jobs: dict[int, Job] = {}
        """The same, as far as they exist."""
        self._is_exhausted = False
        """Whether there are no jobs behind those."""

    def end(self) -> None:
        """Take no further step: the node ends, or has lost its term."""
        self._is_ended = True

    # ---- reading ----

    def prepare(self) -> None:
        """Read the next jobs, if none are left; then report that the run is ready."""
        if self._is_ended:
            return
        if self._unanswered:
            self._is_waiting = True
        elif self._ids or self._is_exhausted:
            CallInProgress(self._node.rights(self.bulk.spec.caller), self._check_rights, self._not_read)
        elif self.bulk.spec.where is None:
            self._read_ids()
        else:
            query = QueryJobs(where=self.bulk.spec.where, after=self._place, limit=READ_AHEAD)
            self._node.reads.ask(query, self._add_page, self._not_read, self._is_wanted)

    def _check_rights(self, caller: Caller | None) -> None:
        """Go on if the caller may still change jobs of the namespace; its functions are checked for each job."""
        if self._is_ended:
            return
        self._caller = caller
        name, namespace = self.bulk.spec.caller.name, self.bulk.namespace
        if caller is None:
            self._stop(f"the token of {name!r} has ended")
        elif not caller.may(Permission.OPERATE, namespace):
            self._stop(f"{name!r} lacks the permission {Permission.OPERATE.value!r} in the namespace {namespace!r}")
        else:
            self._ready(self)

    def _stop(self, why: str) -> None:
        """End the operation early, and report that it is over."""
        self._is_ended = True
        bulk, now_us = self.bulk, to_us(self._node.clock.wall())

        def ended(_: BulkOperation | None) -> None:
            self._over(self)

        def not_ended(error: StoreError) -> None:
            del error
            self._over(self)  # the next search finds it

        self._node.commits.put(EndBulk(bulk.namespace, bulk.id, Status.STOPPED, why, now_us), ended, not_ended)

    def _is_wanted(self) -> bool:
        return not self._is_ended

    def _add_page(self, page: Page[Job]) -> None:
        self._set_page(page)
        self.prepare()

    def _set_page(self, page: Page[Job]) -> None:
        self._place = page.next
        self._is_exhausted = page.next is None
        self._ids.extend(job.id for job in page.items)
        self._jobs = {job.id: job for job in page.items}

    def _read_ids(self) -> None:
        ids = self.bulk.spec.ids
        begin = self._place or 0
        following = ids[begin : begin + READ_AHEAD]
        self._place = begin + len(following)
        self._is_exhausted = self._place >= len(ids)

        def found(jobs: Mapping[int, Job]) -> None:
            self._ids.extend(following)
            self._jobs = dict(jobs)
            self.prepare()

        self._node.commits.put(Find(list(following), namespace=self.bulk.namespace), found, self._not_read)

    def _not_read(self, error: MainspringError) -> None:
        del error  # operations with a waiting client report the store's errors
        self._adopt(self.bulk)
        self._node.later(RETRY_DELAY, self.prepare)

    # ---- steps ----

    def step(self, finished: Callable[[float], None]) -> None:
        """Give the next jobs their turn. ``finished`` is called with the seconds until the next step of any operation."""
        if self._is_ended:
            finished(0)
            return
        ids = [self._ids.popleft() for _ in range(self._pace.number(len(self._ids)))]
        is_last = self._is_exhausted and not self._ids
        jobs = [self._jobs[job_id] for job_id in ids if job_id in self._jobs]
        refused = self._forbidden(jobs)
        redriving = None
        if self.bulk.spec.action is Action.RETRY:
            redriving = self._node.changes.before_redrive(job for job in jobs if job.id not in refused)
            for job_id in redriving.successors:
                refused[job_id] = Result(job_id, Outcome.CONFLICT, f"it {NEVER_BEGUN}")
            for job_id, rival in redriving.rivals.items():
                message = f"its unique is live again as {rival}: wait for that job, or cancel it"
                refused[job_id] = Result(job_id, Outcome.CONFLICT, message)
        operation = StepBulk(
            self.bulk,
            ids,
            self._after(ids),
            to_us(self._node.clock.wall()),
            is_last=is_last,
            refused=refused,
            stopped=dict(self._stopped),
            ahead=0 if self._ids or self._is_exhausted else max(AHEAD, 2 * self._pace.size),
        )
        self.begin(operation)
        self._node.commits.put(
            operation,
            partial(self._stepped, len(ids), redriving, finished),
            partial(self._not_stepped, redriving, finished),
        )

    def begin(self, step: Operation) -> None:
        """Measure a step from now on. Without other work, it does not wait for a group to go with."""
        step.urgent = self._pace.begin(self._node.clock.monotonic(), self._node.commits.groups)

    def _forbidden(self, jobs: Iterable[Job]) -> dict[int, Result]:
        """Return the results of the jobs whose functions the caller may not operate."""
        caller, namespace = self._caller, self.bulk.namespace
        assert caller is not None, "its rights were checked"
        if caller.functions(Permission.OPERATE, namespace) is None:
            return {}
        may = {
            function: caller.may(Permission.OPERATE, namespace, function_text(function))
            for function in {job.function for job in jobs}
        }
        message = f"{caller.name!r} lacks the permission {Permission.OPERATE.value!r} for its function"
        return {job.id: Result(job.id, Outcome.FORBIDDEN, message) for job in jobs if not may[job.function]}

    def _after(self, ids: Sequence[int]) -> int | None:
        """Return the operation's place once these jobs have had their turn."""
        if self.bulk.spec.where is None:
            return (self.bulk.progress.after or 0) + len(ids)
        if self._ids or self._place is None:
            return ids[-1] if ids else self.bulk.progress.after
        return self._place

    def _stepped(
        self,
        number: int,
        redriving: Redriving | None,
        finished: Callable[[float], None],
        outcome: Stepped,
    ) -> None:
        bulk, term = outcome.bulk, self.bulk.term
        if not outcome.stepped:
            if redriving is not None:
                self._node.changes.not_redriven(redriving)
            is_mine = bulk is not None and bulk.status is Status.RUNNING and bulk.term == term and not bulk.unread
            if is_mine and bulk is not None and not self._is_ended:
                self._adopt(bulk)  # the step was committed, and its outcome was lost
                self._stop_jobs()
                finished(0)
                self.prepare()
            else:
                self._end(finished)
            return
        assert bulk is not None, "it has just been written"
        self.bulk = bulk
        if redriving is not None:
            self._node.changes.redriven(redriving, outcome.outcomes)
        elif bulk.spec.action is Action.CANCEL:
            self._node.changes.cancelled(outcome.outcomes)
        elif bulk.spec.action is Action.RESCHEDULE:
            self._node.changes.rescheduled(outcome.outcomes)
        if outcome.following is not None:
            self._set_page(outcome.following)
        self._stop_jobs()
        if bulk.status is not Status.RUNNING:
            self._end(finished)
            return
        pause = self._pace.after(number, outcome.seconds, self._node.clock.monotonic(), self._node.commits.groups)
        finished(pause.shared)
        self._node.later(pause.own, self.prepare)

    def _not_stepped(self, redriving: Redriving | None, finished: Callable[[float], None], error: StoreError) -> None:
        del error
        if redriving is not None:
            self._node.changes.not_redriven(redriving)
        self._adopt(self.bulk)
        finished(0)
        self._node.later(RETRY_DELAY, self.prepare)

    def _end(self, finished: Callable[[float], None]) -> None:
        self._is_ended = True
        finished(0)
        self._over(self)

    def _stop_jobs(self) -> None:
        """Cancel the last step's held jobs, or ask their workers to stop. The next step records that this was done."""
        self._stopped.clear()
        jobs = self.bulk.progress.stopping
        self._unanswered = len(jobs)

        def answered(state: str) -> None:
            if state == Outcome.CANCELLED:
                self._stopped[Outcome.CANCELLED] += 1
            elif state != "running":
                self._stopped[Outcome.CONFLICT] += 1  # it has ended otherwise
            one_less()

        def one_less(_: MainspringError | None = None) -> None:
            self._unanswered -= 1
            if not self._unanswered and self._is_waiting:
                self._is_waiting = False
                self.prepare()

        reason = self.bulk.spec.reason or REASON
        for job_id in jobs:
            CallInProgress(self._node.cancel(job_id, reason, namespace=self.bulk.namespace), answered, one_less)


ROOM_DELAY: Final = 1.0
"""Seconds until the next step, if the overlap rule of the schedule permits no more runs for now."""


class BackfillRun(BulkRun):
    """A backfill under way. Nothing is read ahead: a step computes its fire times from the schedule as it is then."""

    def prepare(self) -> None:
        """Check the rights of the caller; then report that the run is ready."""
        if not self._is_ended:
            CallInProgress(self._node.rights(self.bulk.spec.caller), self._check_rights, self._not_read)

    def step(self, finished: Callable[[float], None]) -> None:
        """Fire the next times. ``finished`` is called with the seconds until the next step of any operation."""
        if self._is_ended:
            finished(0)
            return
        caller, namespace = self._caller, self.bulk.namespace
        assert caller is not None, "its rights were checked"
        permits = partial(caller.may, Permission.OPERATE, namespace)
        operation = StepBackfill(self.bulk, self._pace.size, to_us(self._node.clock.wall()), permits)
        self.begin(operation)
        self._node.commits.put(operation, partial(self._fired, finished), partial(self._not_stepped, None, finished))

    def _fired(self, finished: Callable[[float], None], outcome: Stepped) -> None:
        bulk = outcome.bulk
        number = 0 if bulk is None else rules.done(bulk.progress) - rules.done(self.bulk.progress)
        if outcome.stepped and bulk is not None and bulk.status is Status.RUNNING and not number:
            finished(0)
            self._node.later(ROOM_DELAY, self.prepare)
        else:
            self._stepped(number, None, finished, outcome)


FIND_INTERVAL: Final = 10.0
"""Seconds between two searches for operations of nodes that are gone."""
SWEEP_INTERVAL: Final = 60.0
OPEN: Final = 400
"""Operations that a node works on, with the shares of `namespaces.places_left`."""
OPEN_OF_CALLER: Final = 100
"""Operations of one caller that a node works on before it refuses another one."""
OPEN_OF_NAMESPACE: Final = 200
"""The same for one namespace."""
OPERATION: Final = Kind("operation", REMEDY)


class BulkService:
    """The slice of operations on many jobs on a node, which calls ``tick`` at least every quarter of a second.

    One step runs at a time. Namespaces take turns, and so do the operations of one. ``paused`` returns whether the node has no
    lease or ends: then it takes no step. ``retention`` is the number of seconds for which ended operations are kept.
    ``set_aside`` has those that this node cannot read. Each search tries them again.
    """

    def __init__(
        self,
        node: BulkNode,
        next_id: Callable[[], int],
        term: Callable[[], int],
        paused: Callable[[], bool] = lambda: False,
        *,
        retention: float = 14 * 86_400.0,
        set_aside: SetAside | None = None,
    ) -> None:
        self._set_aside = SetAside(node.clock) if set_aside is None else set_aside
        self._node = node
        self._next_id = next_id
        self._term = term
        self._paused = paused
        self._retention = retention
        self._runs: dict[int, BulkRun] = {}
        self._ready: Turns[BulkRun] = Turns()
        self._beginning: dict[int, BulkOperation] = {}
        """New operations that the store does not have yet."""
        self._ends = False
        self._is_stepping = False
        self._is_finding = self._is_sweeping = False
        self._taking: set[int] = set()
        now = node.clock.monotonic()
        self._find_at = now
        self._sweep_at = now + SWEEP_INTERVAL

    # ---- requests ----

    def new(self, namespace: str, spec: Spec) -> BulkOperation:
        """Return a new operation, whose filter is fixed now. Raises UsageError for an invalid request."""
        rules.check_spec(spec)
        now_us = self.now_us()
        if spec.where is not None:
            spec = replace(spec, where=rules.narrowed(spec.action, spec.where, now_us))
        return BulkOperation(id=self._next_id(), namespace=namespace, created_us=now_us, spec=spec)

    def now_us(self) -> int:
        """Return the time."""
        return to_us(self._node.clock.wall())

    def monotonic(self) -> float:
        """Return the seconds of a clock that is never set."""
        return self._node.clock.monotonic()

    @shielded
    async def begin(
        self, bulk: BulkOperation, act: Act | None = None, keyed_act: KeyedAct | None = None
    ) -> BulkOperation:
        """Store an operation of `new`, begin it and return it.

        Raises StoreError, ConflictError if too many operations of the caller or the namespace are open, and RepeatedError.
        """
        if why := self._too_many(bulk):
            raise ConflictError(why)
        self._beginning[bulk.id] = bulk
        try:
            stored: BulkOperation = await commit_keyed(
                self._node.commits, BeginBulk(bulk, act=act, keyed_act=keyed_act)
            )
        finally:
            del self._beginning[bulk.id]
        self._start(stored)
        return stored

    def _too_many(self, new: BulkOperation) -> str:
        """Return the reason for refusing a new operation; empty if it may begin. Those under way continue in any case."""
        running = [*(run.bulk for run in self._runs.values()), *self._beginning.values()]
        caller, namespace = new.spec.caller, new.namespace
        of_caller = sum(one.spec.caller.holder == caller.holder for one in running)
        of_namespace = sum(one.namespace == namespace for one in running)
        if of_caller >= OPEN_OF_CALLER:
            who, number = f"{caller.name!r} has", of_caller
        elif (
            of_namespace >= OPEN_OF_NAMESPACE
            or places_left(OPEN, len(running), of_namespace, spans=caller.spans_namespaces) <= 0
        ):
            who, number = f"the namespace {namespace} has", of_namespace
        else:
            return ""
        return f"{who} {number} operations under way on this node, and may begin no more: wait for some, or abort some"

    async def abort(self, namespace: str, bulk_id: int, why: str, act: Act | None = None) -> BulkOperation | None:
        """End an operation early, whichever node works on it, and return it; None if there is none."""
        end = EndBulk(namespace, bulk_id, Status.ABORTED, why, self.now_us(), act=act)
        bulk: BulkOperation | None = await self._node.commits.committed(end)
        return bulk

    # ---- time ----

    def tick(self) -> None:
        """Search for operations to take over, and delete old ones, as due."""
        if self._ends or self._paused():
            return
        now = self._node.clock.monotonic()
        if now >= self._find_at and not self._is_finding:
            self._find_at = now + FIND_INTERVAL
            self._is_finding = True
            self._node.reads.ask(FindBulk(self._term()), self._found, self._not_found)
        if now >= self._sweep_at and not self._is_sweeping:
            self._sweep_at = now + SWEEP_INTERVAL
            self._sweep()

    def _found(self, bulks: Sequence[BulkOperation]) -> None:
        self._is_finding = False
        for bulk in bulks:
            if bulk.unread:
                self._set_aside.note(OPERATION, f"{PREFIX}{bulk.id}", bulk.unread)
                continue
            if not self._set_aside.is_empty:
                self._set_aside.handled(OPERATION, [f"{PREFIX}{bulk.id}"])
            if bulk.id not in self._runs and bulk.id not in self._taking:
                self._taking.add(bulk.id)
                self._take(bulk.id)

    def _not_found(self, error: StoreError) -> None:
        del error
        self._is_finding = False

    def _take(self, bulk_id: int) -> None:
        def taken(bulk: BulkOperation | None) -> None:
            self._taking.discard(bulk_id)
            if bulk is not None:
                self._start(bulk)

        def not_taken(error: StoreError) -> None:
            del error
            self._taking.discard(bulk_id)

        self._node.commits.put(TakeBulk(bulk_id), taken, not_taken)

    def _sweep(self) -> None:
        def swept(number: int) -> None:
            self._is_sweeping = False
            if number:
                self._sweep()

        def not_swept(error: StoreError) -> None:
            del error
            self._is_sweeping = False

        self._is_sweeping = True
        before_us = to_us(self._node.clock.wall() - self._retention)
        self._node.commits.put(SweepBulk(before_us), swept, not_swept)

    # ---- work ----

    def end(self) -> None:
        """Stop working for good: the node ends. Its next run, or another node, takes the operations over."""
        self._ends = True
        self.fenced()

    def fenced(self) -> None:
        """Stop working: the node's term has ended. The operations are taken over by the next term, of this or another node."""
        for run in self._runs.values():
            run.end()
        self._runs.clear()
        self._ready.clear()

    def _start(self, bulk: BulkOperation) -> None:
        if not self._ends and bulk.id not in self._runs and bulk.term == self._term():
            kind = BackfillRun if bulk.spec.action is Action.BACKFILL else BulkRun
            run = self._runs[bulk.id] = kind(self._node, bulk, self._add, self._remove)
            run.prepare()

    def _remove(self, run: BulkRun) -> None:
        if self._runs.get(run.bulk.id) is run:
            del self._runs[run.bulk.id]

    def _add(self, run: BulkRun) -> None:
        """Queue a run that is ready for its next step."""
        self._ready.add(run.bulk.namespace, run)
        self._serve()

    def _serve(self) -> None:
        if self._is_stepping or not self._ready:
            return
        if self._ends or self._paused():
            self.fenced()  # the next search takes them over, once the node works again
            return
        self._is_stepping = True
        self._ready.pop().step(self._finished)

    def _finished(self, pause: float) -> None:
        self._node.later(pause, self._served)

    def _served(self) -> None:
        self._is_stepping = False
        self._serve()
