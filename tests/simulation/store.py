"""An engine whose commits take time and may fail, and a history of the operations that it committed."""

from __future__ import annotations

import math
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from mainspring.bulk.store import StepBulk
from mainspring.errors import StoreError, StoreFullError, StoreUnavailableError
from mainspring.jobs import rules
from mainspring.jobs import store as ops
from mainspring.jobs.model import Job, State
from mainspring.storage.engine import Budget

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from mainspring.clock import Clock
    from mainspring.ids import NodeId
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.storage.engine import Answer, Answered, Committed, Engine, Opened, Operation, Query

UNTIMED: Final = Budget(seconds=math.inf)
"""The budget of a read, without a time limit, because the duration of reads is not simulated."""


class History:
    """The live and the ended jobs, according to the committed operations. It survives the node's crashes."""

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.ended: dict[int, State] = {}
        self.settled = 0
        self.redriven: set[int] = set()
        self.stopping: set[int] = set()
        """Jobs with a stored request to cancel them: their recovery ends them."""
        self.withdrawn: set[int] = set()
        """Jobs that a slice has deleted: only their settlements may be stale."""

    def note(self, operation: Operation, outcome: Any) -> None:
        match operation:
            case ops.Submit():
                for job in operation.jobs:
                    if job.id not in outcome:
                        assert job.id not in self.live, f"{job.id} is stored twice"
                        self.live.add(job.id)
            case ops.Settle():
                for settlement in operation.settlements:
                    job_id = settlement.job.id
                    if job_id in self.withdrawn:
                        assert job_id in outcome, f"{job_id} was deleted"
                        continue
                    assert job_id not in outcome, f"{settlement.event} of {job_id} is stale, and this is the only node"
                    after = rules.target(settlement.event)
                    if after.ended:
                        self._end(job_id, after)
                    else:
                        assert job_id in self.live, f"{job_id} is released although it has ended"
            case ops.RequestStop():
                self.stopping |= outcome
            case ops.Cancel():
                if outcome.job is not None and outcome.before <= State.PENDING:
                    self._end(operation.id, State.CANCELLED)
            case ops.Wake():
                for job, _ in outcome.expired:
                    self._end(job.id, State.EXPIRED)
            case ops.Redrive():
                if outcome.redriven:
                    del self.ended[operation.id]
                    self.redriven.add(operation.id)
                    self.live.add(operation.id)
            case StepBulk():
                for one in outcome.outcomes:
                    self._note_step(one)
            case ops.Claim():
                for job in outcome[0]:
                    assert job.id in self.live, f"{job.id} is claimed although it has ended"
            case _:
                pass

    def note_recovery(self, find: Callable[[int], Job | None]) -> None:
        """Note the jobs that a recovery has ended; it does not name them."""
        for job_id in self.stopping & self.live:
            job = find(job_id)
            assert job is not None, f"{job_id} is lost"
            assert job.state == State.CANCELLED, f"{job_id} runs again although its cancel was stored"
            self._end(job_id, State.CANCELLED)

    def _note_step(self, outcome: ops.Cancelled | ops.Redriven | ops.Deleted | ops.Rescheduled) -> None:
        """Note the result for one job of an operation on many jobs."""
        match outcome:
            case ops.Cancelled(job=Job(id=job_id), before=before) if before <= State.PENDING:
                self._end(job_id, State.CANCELLED)
            case ops.Redriven(job=Job(id=job_id), redriven=True):
                del self.ended[job_id]
                self.redriven.add(job_id)
                self.live.add(job_id)
            case ops.Deleted(job=Job(id=job_id), deleted=True):
                del self.ended[job_id]

    def _end(self, job_id: int, state: State) -> None:
        assert job_id in self.live, f"{job_id} ends a second time, as {state.name}"
        self.live.discard(job_id)
        self.ended[job_id] = state
        self.settled += 1


class SlowStore:
    """An engine whose current group is in progress until ``finish`` is called."""

    def __init__(self, engine: Engine, history: History, clock: Clock, chance: random.Random) -> None:
        self.engine = engine
        self.durable = engine.durable
        self.max_value = engine.max_value
        self.step_secret = engine.step_secret
        self.shared, self.whole = engine.shared, engine.whole
        self.lacks = engine.lacks
        self.full = False
        """Whether every group fails."""
        self.loses: Callable[[Sequence[Operation]], bool] = lambda _: False
        """Whether a group is committed and fails nevertheless, as that of a node which is fenced at that moment."""
        self.away = False
        """Whether every read fails."""
        self.deliveries: SimpleQueue[Callable[[], None]] = SimpleQueue()
        """Callbacks of the engine's threads for the node's thread."""
        self.failed = -1.0
        """Monotonic time of the last group that failed."""
        self._history = history
        self._clock = clock
        self._chance = chance
        self._group: Sequence[Operation] | None = None
        self._outcomes: Sequence[Any] | None = None
        self._committed: Committed | None = None

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: JobLifecycle | None = None
    ) -> Opened:
        return await self.engine.open(node, deliver, lifecycle)

    async def close(self) -> None:
        await self.engine.close()

    @property
    def busy(self) -> bool:
        return self._group is not None

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        del answer
        assert self._group is None, "one group at a time"
        self._group, self._committed, self._outcomes = group, committed, None
        if not self.full and self._chance.random() < 0.5:
            self._outcomes = self._execute(group)  # it is committed long before the node is notified

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query at once, even if the engine has a thread for it."""
        if self.away:
            answered(StoreUnavailableError("the simulated store is away"))
            return
        answers: list[Any] = []
        self.engine.read(query, budget, answers.append)
        while not answers:
            self.deliveries.get()()
        answered(answers[0])

    def finish(self) -> None:
        group, committed, outcomes = self._group, self._committed, self._outcomes
        assert group is not None
        assert committed is not None
        self._group = self._outcomes = None
        if outcomes is None and self.full:
            self.failed = self._clock.monotonic()
            committed(StoreFullError("the simulated disk is full"))
            return
        outcomes = outcomes if outcomes is not None else self._execute(group)
        if self.loses(group):
            committed(StoreUnavailableError("the outcome of the simulated group is lost"))
        else:
            committed(outcomes)

    def _execute(self, group: Sequence[Operation]) -> Sequence[Any]:
        outcomes = execute(self.engine, group)
        pairs = zip(group, outcomes, strict=True)
        for operation, outcome in sorted(pairs, key=lambda pair: pair[0].phase):
            self._history.note(operation, outcome)
        if any(isinstance(operation, ops.Recover) for operation in group):
            self._history.note_recovery(self.find)
        return outcomes

    # ---- inspection of the engine ----

    def find(self, job_id: int) -> Job | None:
        """Return a job from the store; None if it is not there."""
        jobs: dict[int, Job] = execute(self.engine, [ops.Find([job_id], 2**30)])[0]
        return jobs.get(job_id)

    def find_unique(self, function: bytes, unique: bytes) -> int | None:
        found = execute(self.engine, [ops.FindUnique([(function, unique)])])[0][0]
        return None if found is None else found.id

    def counts(self) -> dict[tuple[bytes, int, int], int]:
        counts: dict[tuple[bytes, int, int], int] = execute(self.engine, [ops.Count()])[0]
        return counts


def refuse_separate_answer(place: int, outcome: Any) -> None:
    """Raise AssertionError: these engines answer a group as a whole."""
    raise AssertionError(f"operation {place} is answered separately: {outcome}")


def execute(engine: Engine, group: Sequence[Operation]) -> Sequence[Any]:
    """Run a group on an engine that commits before it returns."""
    got: list[Sequence[Any] | StoreError] = []
    engine.commit(group, got.append, refuse_separate_answer)
    assert got, "the engine committed in a thread"
    if isinstance(got[0], StoreError):
        raise got[0]
    return got[0]
