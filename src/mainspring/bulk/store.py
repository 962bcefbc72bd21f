"""The port of operations on many jobs: requests to a store with their outcomes, queries, and tables.

The unit of work of operations on many jobs, for all engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from mainspring.access.audit import Acting
from mainspring.access.caller import Act
from mainspring.bulk import rules
from mainspring.bulk.rules import Action, BulkOperation, Outcome, Result, Status, Touched, encode
from mainspring.event_log import types
from mainspring.event_log.interests import NewEvent, caused_by
from mainspring.event_log.types import OperationFields
from mainspring.jobs.model import State, failure
from mainspring.jobs.store import Cancel, Cancelled, Deleted, DeleteEnded, Redrive, Redriven, Reschedule, Rescheduled
from mainspring.storage.engine import Operation, PageQuery, Phase, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.event_log.interests import NewEvents
    from mainspring.jobs.model import Job
    from mainspring.jobs.owners import Notice
    from mainspring.queries import JobFilter
    from mainspring.schedules.rules import Backfill, Backfilled
    from mainspring.storage.engine import Page, Plan

KEPT_STEPS = 500
"""Steps that one ``SweepBulk`` deletes at most."""


class BeginBulk(Acting):
    """Store a new operation, on which the node works under its term. Outcome: ``BulkOperation``; see `Acting`."""

    phase = Phase.SLICES
    bulk: BulkOperation


class TakeBulk(Operation):
    """Take over an operation. Guards: it runs, can be read, and the term of its node has ended or is the node's own.

    Outcome: ``BulkOperation | None``.
    """

    phase = Phase.SLICES
    id: int


class StepBulk(Operation):
    """Give some jobs their turn, and move the operation's place on, in one transaction.

    Guards: the operation runs under the node's term, and has this ``revision``. So a step that is repeated, by a node that does
    not know its outcome or by the next node, changes nothing. Each job is looked up in the transaction. ``refused`` has the
    results of jobs that this node cannot change, ``stopped`` the number of held jobs of the step before that have ended at once.
    ``ahead`` is the number of following jobs that it also reads, if it can do so quickly.
    Outcome: ``Stepped``.
    """

    phase = Phase.SLICES
    is_request = True
    bulk: BulkOperation
    ids: Sequence[int]
    after: int | None
    now_us: int
    is_last: bool
    refused: Mapping[int, Result] = {}
    stopped: Mapping[Outcome, int] = {}
    ahead: int = 0

    def __post_init__(self) -> None:
        self.rows = max(len(self.ids), 1)
        self.size += 64 * len(self.ids)
        self.urgent = False


class StepBackfill(Operation):
    """Fire the next past fire times of a schedule, and move the backfill's place on, in one transaction.

    Guards: those of `StepBulk`. ``limit`` is the most fire times; ``permits`` returns whether the caller may run a function.
    Outcome: ``Stepped``.
    """

    phase = Phase.SLICES
    is_request = True
    bulk: BulkOperation
    limit: int
    now_us: int
    permits: Callable[[str], bool]

    def __post_init__(self) -> None:
        self.rows = self.limit
        self.urgent = False


class Stepped(NamedTuple):
    """The outcome of StepBulk and StepBackfill."""

    bulk: BulkOperation | None
    """The operation now; None if it does not exist."""
    stepped: bool
    """Whether the guards held."""
    outcomes: Sequence[Any] = ()
    """The outcomes of the jobs' own operations: such as ``jobs.store.Redriven``."""
    seconds: float = 0.0
    """The seconds by which the step has extended its group, without those of reading the following jobs."""
    following: Page[Job] | None = None
    """The jobs behind those of the step, if it has read them."""


class EndBulk(Acting):
    """End an operation early. Guard: it runs, on any node, and can be read. Outcome: ``BulkOperation | None``, as it is then."""

    phase = Phase.SLICES
    namespace: str
    id: int
    status: Status
    why: str
    now_us: int

    def recorded(self, outcome: BulkOperation | None) -> Act | None:
        """Return the act if this has ended the operation."""
        is_mine = outcome is not None and (outcome.status, outcome.ended_us) == (self.status, self.now_us)
        return self.act if is_mine else None


class SweepBulk(Operation):
    """Delete operations that ended before a time, and the lists of their jobs: some of them. Outcome: the number of rows."""

    phase = Phase.SLICES
    before_us: int

    def __post_init__(self) -> None:
        self.rows = KEPT_STEPS


class ShowBulk(Query[BulkOperation | None], frozen=True):
    """Read an operation."""

    namespace: str
    id: int


class ListBulk(PageQuery[BulkOperation], frozen=True, kw_only=True):
    """List the operations of a namespace, the one with the highest id first. A page continues after an id."""

    namespace: str = "default"


class FindBulk(Query[list[BulkOperation]], frozen=True):
    """Read the running operations of all namespaces that no live node works on, or that this node works on."""

    term: int
    """This node's term."""


class ListTouched(PageQuery[Touched], frozen=True, kw_only=True):
    """List the jobs of an operation, step by step; ``limit`` counts steps. A page continues after the revision of a step."""

    id: int


class BulkTables(Protocol):
    """The tables of a store inside a transaction."""

    @property
    def term(self) -> int:
        """The node's own term."""

    @property
    def events(self) -> NewEvents:
        """The events of the transaction."""

    async def load(self, bulk_id: int) -> BulkOperation | None:
        """Read an operation, and lock it where transactions run side by side."""

    async def save(self, bulk: BulkOperation, touched: bytes | None = None) -> None:
        """Write an operation, new or not, and the jobs of its last step."""

    async def is_over(self, term: int) -> bool:
        """Return whether the term has ended, so that its node cannot write any more."""

    async def jobs(self, ids: Sequence[int]) -> Mapping[int, Job]:
        """Read jobs, without payloads and results, and lock them where transactions run side by side."""

    async def near(self, where: JobFilter, after: int, limit: int) -> Page[Job] | None:
        """Return the next jobs by a filter after an id, if ``limit`` of them are found quickly.

        So reads need no other thread, for whose work the groups of this one would wait.
        """

    async def perform(self, operations: Sequence[Operation]) -> Sequence[Any]:
        """Run operations of the jobs slice, all of one kind; return their outcomes."""

    async def backfill(self, step: Backfill) -> Backfilled:
        """Fire past fire times of a schedule; see ``schedules.unit.ScheduleUnit.backfill``."""

    async def sweep(self, before_us: int, limit: int) -> int:
        """Delete operations that ended before a time, after their steps, and at most ``limit`` rows. Return their number."""


KIND: Final = "bulk"
REASON: Final = "cancelled by an operation on many jobs"
"""Stored with a cancelled job if the caller gave no reason."""
WRITES: Final[frozenset[type[Operation]]] = frozenset({BeginBulk, TakeBulk, StepBulk, StepBackfill, EndBulk, SweepBulk})


class BulkUnit:
    """The part of one transaction: see `jobs.slices.Unit`. Each operation writes at once. ``monotonic`` measures steps."""

    def __init__(self, tables: BulkTables, monotonic: Callable[[], float]) -> None:
        self._tables = tables
        self._monotonic = monotonic

    async def lock(self, plan: Plan) -> None:
        """Lock nothing ahead: only a step and an early end meet at the row of an operation."""

    async def follow(self, notices: Sequence[Notice]) -> None:
        """Follow nothing: operations own no jobs."""

    async def flush(self) -> None:
        """Write nothing more."""

    async def run(self, operation: Operation) -> Callable[[], Any]:
        """Run an operation; return a function that returns its outcome."""
        outcome: Any
        match operation:
            case BeginBulk():
                outcome = replace(operation.bulk, term=self._tables.term)
                await self._tables.save(outcome)
            case TakeBulk():
                outcome = await self._take(operation)
            case StepBulk():
                outcome = await self._step(operation)
            case StepBackfill():
                outcome = await self._backfill(operation)
            case EndBulk():
                outcome = await self._end(operation)
            case SweepBulk():
                outcome = await self._tables.sweep(operation.before_us, KEPT_STEPS)
            case _:
                raise TypeError(f"{type(operation).__name__} is no operation of this slice")
        return lambda: outcome

    async def _take(self, operation: TakeBulk) -> BulkOperation | None:
        tables = self._tables
        bulk = await tables.load(operation.id)
        if bulk is None or bulk.unread or bulk.status is not Status.RUNNING:
            return None
        if bulk.term != tables.term:
            if bulk.term and not await tables.is_over(bulk.term):
                return None
            bulk = replace(bulk, term=tables.term, revision=bulk.revision + 1)
            await tables.save(bulk)
        return bulk

    async def _end(self, operation: EndBulk) -> BulkOperation | None:
        bulk = await self._tables.load(operation.id)
        if bulk is None or bulk.namespace != operation.namespace:
            return None
        if bulk.status is Status.RUNNING and not bulk.unread:  # the write would lose what this version cannot read
            bulk = rules.ended(bulk, operation.status, operation.now_us, operation.why)
            await self._save(bulk)
        return bulk

    async def _step(self, step: StepBulk) -> Stepped:
        tables, began = self._tables, self._monotonic()
        bulk = await tables.load(step.bulk.id)
        if bulk is None or not self._may_step(bulk, step.bulk.revision):
            return Stepped(bulk, stepped=False)
        jobs = await tables.jobs(step.ids) if step.ids else {}
        forbidden = [one for one in step.refused.values() if one.outcome is Outcome.FORBIDDEN]
        hidden = {one.job for one in forbidden}
        choice = rules.choose(bulk.spec, [one for one in step.ids if one not in hidden], jobs, bulk.namespace)
        results = forbidden + choice.results
        results += [step.refused[job_id] for job_id in choice.ids if job_id in step.refused]
        ids = [job_id for job_id in choice.ids if job_id not in step.refused]
        most = rules.allowed(bulk, len(ids))
        if most < len(ids):
            bulk = rules.ended(bulk, Status.STOPPED, step.now_us, rules.too_many(bulk))
            await self._save(bulk)
            return Stepped(bulk, stepped=True)
        outcomes, changed = await self._act(bulk, ids, step.now_us) if ids else ((), [])
        results += changed
        bulk = rules.advance(bulk, results, step.after, step.now_us, is_last=step.is_last, stopped=step.stopped)
        touched = rules.touched(results)
        await self._save(bulk, encode(touched) if touched else None)
        seconds = self._monotonic() - began
        following = None
        if step.ahead and step.after is not None and bulk.spec.where is not None and bulk.status is Status.RUNNING:
            following = await tables.near(bulk.spec.where, step.after, step.ahead)
        return Stepped(bulk, True, outcomes, seconds, following)

    def _may_step(self, bulk: BulkOperation, revision: int) -> bool:
        """Return whether the guards of a step hold."""
        if bulk.unread:
            return False
        return bulk.status is Status.RUNNING and bulk.term == self._tables.term and bulk.revision == revision

    async def _backfill(self, step: StepBackfill) -> Stepped:
        tables, began = self._tables, self._monotonic()
        before = await tables.load(step.bulk.id)
        if before is None or not self._may_step(before, step.bulk.revision):
            return Stepped(before, stepped=False)
        fired = await tables.backfill(rules.next_times(before, step.limit, step.now_us, step.permits))
        bulk = rules.backfilled(before, fired, step.now_us)
        if bulk is not before:
            touched = rules.touched_by(fired)
            await self._save(bulk, encode(touched) if touched else None)
        return Stepped(bulk, True, (), self._monotonic() - began)

    async def _save(self, bulk: BulkOperation, touched: bytes | None = None) -> None:
        """Write an operation that has run until now."""
        await self._tables.save(bulk, touched)
        events = self._tables.events
        if bulk.status is not Status.RUNNING and types.OPERATION_ENDED in events.interests.types:
            events.add(ended_event(bulk))

    async def _act(self, bulk: BulkOperation, ids: Sequence[int], now_us: int) -> tuple[Sequence[Any], list[Result]]:
        """Change jobs; return the outcomes of their operations, and the results."""
        spec = bulk.spec
        operations: Sequence[Operation]
        act = Act(
            spec.action.value, spec.caller.name, depth=spec.caller.depth
        )  # for events alone: the audit has the act that began the operation
        match spec.action:
            case Action.CANCEL:
                error = failure("Cancelled", spec.reason or REASON)
                operations = [Cancel(job_id, error, now_us, bulk.namespace, act=act) for job_id in ids]
            case Action.RETRY:
                operations = [Redrive(job_id, namespace=bulk.namespace, act=act) for job_id in ids]
            case Action.DELETE:
                operations = [DeleteEnded(job_id, bulk.namespace) for job_id in ids]
            case Action.RESCHEDULE:
                operations = [
                    Reschedule(job_id, now_us, due_us=spec.due_us, namespace=bulk.namespace, act=act) for job_id in ids
                ]
            case Action.BACKFILL:
                raise TypeError("a backfill changes no jobs: StepBackfill fires its schedule")
        outcomes = await self._tables.perform(operations)
        events = self._tables.events
        for event in caused_by(operations, outcomes, events.interests):
            events.add(event)
        return outcomes, [_result(job_id, outcome) for job_id, outcome in zip(ids, outcomes, strict=True)]


def ended_event(bulk: BulkOperation) -> NewEvent:
    """Return the event of an operation that has ended."""
    fields = OperationFields(
        action=bulk.spec.action.name.lower(),
        status=bulk.status.name.lower(),
        why=bulk.progress.why,
        done=sum(bulk.progress.counts.values()),
        by=bulk.spec.caller.name,
        depth=bulk.spec.caller.depth,
    )
    return NewEvent(types.OPERATION_ENDED, bulk.namespace, "", f"{rules.PREFIX}{bulk.id}", 0, fields)


def _result(job_id: int, outcome: object) -> Result:
    match outcome:
        case Cancelled():
            return _cancelled(job_id, outcome)
        case Redriven():
            return _redriven(job_id, outcome)
        case Deleted():
            return Result(job_id, Outcome.DELETED if outcome.deleted else Outcome.NO_MATCH)
        case Rescheduled():
            waited = outcome.job is not None and outcome.before <= State.PENDING
            return Result(job_id, Outcome.RESCHEDULED if waited else Outcome.NO_MATCH)
    raise TypeError(f"{outcome!r} is no outcome of an operation on a job")


def _cancelled(job_id: int, outcome: Cancelled) -> Result:
    if outcome.job is None:
        return Result(job_id, Outcome.NO_MATCH)
    before = State(outcome.before)
    if before.ended:
        return Result(job_id, Outcome.CONFLICT, f"it is {before.name.lower()}")
    return Result(job_id, Outcome.STOPPING if before.held else Outcome.CANCELLED)


def _redriven(job_id: int, outcome: Redriven) -> Result:
    if outcome.redriven:
        return Result(job_id, Outcome.RETRIED)
    if outcome.rival is not None:
        return Result(job_id, Outcome.CONFLICT, "its unique is live again: wait for that job, or cancel it")
    return Result(job_id, Outcome.NO_MATCH)
