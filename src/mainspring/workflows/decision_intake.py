"""Decisions at a node: which worker has which run, and the operations that record what deciders report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from mainspring.clock import to_us
from mainspring.jobs.settlement_records import SettleBatch
from mainspring.workflows.requests import ContinueAsNewWorkflowExecution, Decided
from mainspring.workflows.store import Decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.model import Job
    from mainspring.jobs.service import JobService
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.workflows.requests import Completion, Decision

MOST_RUNS: Final = 20_000
"""Runs of one worker's cache that a node remembers. A worker that has more gets the missing events of the others by request."""

_LOST: Final = Decided("stale", "the store could not record the decision")


class _Cached:
    """A run in a worker's cache, up to an event."""

    __slots__ = ("last", "worker")

    def __init__(self, worker: Worker, last: int) -> None:
        self.worker = worker
        self.last = last


class Connection(Protocol):
    """The connection of a decider."""

    def has_news(self, run: int, last: int) -> None:
        """Tell the worker that a run has newer events, if it has a decision of the run that has not seen them."""


class CachedRuns:
    """The runs in the caches of the connected workers, each at the worker that got its events last.

    It also has the runs with which their workers go on: these workers alone get the next decisions.
    """

    def __init__(self) -> None:
        self._runs: dict[int, _Cached] = {}
        self._connections: dict[Worker, Connection] = {}
        self._of: dict[Worker, dict[int, None]] = {}
        """The runs of each worker, those that got events most recently last."""
        self._goes_on: dict[int, Worker] = {}

    def connected(self, worker: Worker, connection: Connection) -> None:
        """Note the connection of a worker."""
        self._connections[worker] = connection

    def appended(self, run: int, last: int) -> None:
        """Tell the worker that has a run about newer events."""
        cached = self._runs.get(run)
        if cached is not None and cached.last < last:
            self._connections[cached.worker].has_news(run, last)

    def worker_of(self, run: int) -> Worker | None:
        """Return the worker that has a run."""
        cached = self._runs.get(run)
        return None if cached is None else cached.worker

    def last_of(self, run: int, worker: Worker) -> int:
        """Return the last event of a run that a worker has; 0 if the worker does not have the run."""
        cached = self._runs.get(run)
        return cached.last if cached is not None and cached.worker is worker else 0

    def sent(self, run: int, worker: Worker, last: int) -> None:
        """Record that a worker has a run up to an event, unless its connection has ended meanwhile."""
        if worker not in self._connections:
            return
        cached = self._runs.get(run)
        mine = self._of.get(worker)
        if mine is None:
            mine = self._of[worker] = {}
        if cached is None:
            self._runs[run] = _Cached(worker, last)
        else:
            if cached.worker is not worker:
                self._of[cached.worker].pop(run, None)
                cached.worker = worker
            cached.last = last
        mine.pop(run, None)
        mine[run] = None
        if len(mine) > MOST_RUNS:
            self.forget(worker, [next(iter(mine))])

    def forget(self, worker: Worker, runs: Iterable[int]) -> None:
        """Forget runs that a worker no longer has."""
        mine = self._of.get(worker)
        if mine is None:
            return
        for run in runs:
            if run in mine:
                del mine[run], self._runs[run]

    def go_on(self, run: int, worker: Worker) -> None:
        """Record that a worker goes on with a run, whose decision is not committed yet."""
        self._goes_on[run] = worker

    def went_on(self, run: int) -> None:
        """Record that the decision after which a worker goes on with a run is committed."""
        self._goes_on.pop(run, None)

    def goes_on(self, job: Job) -> Worker | None:
        """Return the worker that alone may get a new job: the next decision of a run with which it goes on.

        This includes the first decision of a run that continues another one as new.
        """
        if not self._goes_on or job.options is None or job.options.run is None:
            return None
        worker = self._goes_on.get(job.options.run[0])
        return None if worker is None or worker.gone else worker

    def prefer_not(self, worker: Worker) -> None:
        """Prefer a worker for no run, because it is silent."""
        self.forget_all(worker)
        self._goes_on = {run: other for run, other in self._goes_on.items() if other is not worker}

    def forget_all(self, worker: Worker) -> None:
        """Forget all runs of a worker, whose connection stays."""
        for run in self._of.pop(worker, ()):
            del self._runs[run]

    def closed(self, run: int) -> None:
        """Forget a run that has ended."""
        cached = self._runs.pop(run, None)
        if cached is not None:
            del self._of[cached.worker][run]

    def gone(self, worker: Worker) -> None:
        """Forget the runs of a worker whose connection has ended."""
        self.forget_all(worker)
        self._connections.pop(worker, None)


def _continues(decision: Decision) -> bool:
    """Return whether a decision continues its run as new at once, in a version that its worker has."""
    return type(decision) is ContinueAsNewWorkflowExecution and not decision.delay and not decision.version


class Ending(NamedTuple):
    """An activity that a decider has executed itself, and whose result it reports with its decision."""

    held: Held
    result: bytes


class DecisionIntake:
    """Records the reports of deciders: what one turn of the node's loop brings is one operation.

    The settlements of a report and its completion are one atomic part of a group.
    """

    def __init__(self, commits: CommitQueue, clock: Clock, jobs: JobService, cached: CachedRuns) -> None:
        self._jobs = jobs
        self._commits = commits
        self._clock = clock
        self._cached = cached
        self._open: Decide | None = None
        self._settlements = SettleBatch()
        self._done: list[Callable[[Decided], None]] = []

    def report(
        self,
        completion: Completion,
        decision: Held | None,
        endings: Sequence[Ending],
        done: Callable[[Decided], None],
        worker: Worker,
    ) -> None:
        """Record a completion after the ends of its decision task and activities; ``done`` gets the outcome after the commit.

        If ``worker`` goes on with the run (``more``), or continues it as new, it alone gets the next decision.
        """
        if completion.more:
            self._cached.go_on(completion.run, worker)
        elif completion.decisions and _continues(completion.decisions[-1]):
            completion = completion._replace(new_run=self._jobs.table.next_id())
            self._cached.go_on(completion.new_run, worker)
        operation = self._open
        if operation is None or not operation.open:
            operation = self._begin()
        settling, batch = self._jobs.settling, self._settlements
        for ending in endings:
            settling.succeeded_within(batch, ending.held, ending.result)
        if decision is not None and not completion.more:
            settling.succeeded_within(batch, decision, b"")
        operation.completions.append(completion)
        operation.rows += 2
        operation.now_us = to_us(self._clock.wall())
        size = 300 + sum(len(step.result) for step in completion.steps)
        operation.size += size
        self._commits.add_bytes(size)
        self._done.append(done)

    def _begin(self) -> Decide:
        done: list[Callable[[Decided], None]] = []
        batch = SettleBatch()
        operation = Decide([], 0)

        def end() -> None:
            for completion in operation.completions:
                if completion.more or completion.new_run:
                    self._cached.went_on(completion.new_run or completion.run)

        def decided(outcome: Sequence[Decided]) -> None:
            end()
            for one, function in zip(outcome, done, strict=True):
                function(one)

        def not_decided(error: StoreError) -> None:
            del error  # the settlements are repeated by themselves; the deciders begin again
            end()
            for function in done:
                function(_LOST)

        self._open, self._settlements, self._done = operation, batch, done
        self._commits.put_atomic([self._jobs.ends.of_batch(batch), (operation, decided, not_decided)])
        return operation
