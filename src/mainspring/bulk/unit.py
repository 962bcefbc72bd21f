"""The unit of work of operations on many jobs, for all engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring.bulk import rules
from mainspring.bulk.rules import Action, BulkOperation, Outcome, Result, Status, encode
from mainspring.bulk.store import (
    KEPT_STEPS,
    BeginBulk,
    EndBulk,
    StepBackfill,
    StepBulk,
    Stepped,
    SweepBulk,
    TakeBulk,
)
from mainspring.jobs.model import State, failure
from mainspring.jobs.store import (
    Cancel,
    Cancelled,
    Deleted,
    DeleteEnded,
    Redrive,
    Redriven,
    Reschedule,
    Rescheduled,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.bulk.store import BulkTables
    from mainspring.jobs.owners import Notice
    from mainspring.storage.engine import Operation, Plan

KIND: Final = "bulk"
REASON: Final = "cancelled by an operation on many jobs"
"""Stored with a cancelled job if the caller gave no reason."""
WRITES: Final = frozenset({BeginBulk, TakeBulk, StepBulk, StepBackfill, EndBulk, SweepBulk})


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
                raise TypeError(f"{operation!r} is no operation of this slice")
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
            await self._tables.save(bulk)
        return bulk

    async def _step(self, step: StepBulk) -> Stepped:
        tables, began = self._tables, self._monotonic()
        bulk = await tables.load(step.id)
        if bulk is None or not self._may_step(bulk, step.revision):
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
            await tables.save(bulk)
            return Stepped(bulk, stepped=True)
        outcomes, changed = await self._act(bulk, ids, step.now_us) if ids else ((), [])
        results += changed
        bulk = rules.advance(bulk, results, step.after, step.now_us, is_last=step.is_last, stopped=step.stopped)
        touched = rules.touched(results)
        await tables.save(bulk, encode(touched) if touched else None)
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
        before = await tables.load(step.id)
        if before is None or not self._may_step(before, step.revision):
            return Stepped(before, stepped=False)
        fired = await tables.backfill(rules.next_times(before, step.limit, step.now_us, step.permits))
        bulk = rules.backfilled(before, fired, step.now_us)
        if bulk is not before:
            touched = rules.touched_by(fired)
            await tables.save(bulk, encode(touched) if touched else None)
        return Stepped(bulk, True, (), self._monotonic() - began)

    async def _act(self, bulk: BulkOperation, ids: Sequence[int], now_us: int) -> tuple[Sequence[Any], list[Result]]:
        """Change jobs; return the outcomes of their operations, and the results."""
        spec = bulk.spec
        operations: Sequence[Operation]
        match spec.action:
            case Action.CANCEL:
                error = failure("Cancelled", spec.reason or REASON)
                operations = [Cancel(job_id, error, now_us, bulk.namespace) for job_id in ids]
            case Action.RETRY:
                operations = [Redrive(job_id, namespace=bulk.namespace) for job_id in ids]
            case Action.DELETE:
                operations = [DeleteEnded(job_id, bulk.namespace) for job_id in ids]
            case Action.RESCHEDULE:
                operations = [
                    Reschedule(job_id, now_us, due_us=spec.due_us, namespace=bulk.namespace) for job_id in ids
                ]
            case Action.BACKFILL:
                raise TypeError("a backfill changes no jobs: StepBackfill fires its schedule")
        outcomes = await self._tables.perform(operations)
        return outcomes, [_result(job_id, outcome) for job_id, outcome in zip(ids, outcomes, strict=True)]


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
