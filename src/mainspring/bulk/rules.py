"""The rules of operations on many jobs. They do no I/O."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from mainspring.bulk.model import (
    FAILURES,
    FAILURES_KEPT,
    LARGEST_STEP,
    Action,
    BulkOperation,
    Failure,
    Outcome,
    Progress,
    Result,
    Spec,
    Status,
    Touched,
)
from mainspring.errors import UsageError
from mainspring.jobs.model import RUNS, UNREADABLE_JOB, UNREADABLE_OPTIONS, State
from mainspring.jobs.refusals import run_not_retried
from mainspring.namespaces import split
from mainspring.queries.filters import JobFilter
from mainspring.schedules.model import FireState
from mainspring.schedules.past_times import Backfill, Backfilled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mainspring.jobs.model import Job

STATES: Final[dict[Action, tuple[State, ...]]] = {
    Action.CANCEL: (State.SCHEDULED, State.PENDING, State.LEASED, State.RUNNING),
    Action.RETRY: (State.FAILED, State.CANCELLED, State.EXPIRED),
    Action.DELETE: (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.EXPIRED),
    Action.RESCHEDULE: (State.SCHEDULED, State.PENDING),
}
"""The states of the jobs that an action can change."""
_ONLY: Final = {
    Action.CANCEL: "only jobs that have not ended can be cancelled",
    Action.RETRY: "only failed, cancelled and expired jobs can be retried",
    Action.DELETE: "only ended jobs can be deleted",
    Action.RESCHEDULE: "only scheduled and pending jobs can be rescheduled",
}

_OUTCOMES: Final = {
    FireState.FIRED: Outcome.FIRED,
    FireState.JOINED: Outcome.JOINED,
    FireState.WAITING: Outcome.WAITING,
}
"""Outcomes of fire times by the states of their rows."""
_RUN: Final = {
    Action.DELETE: "it is a run of a workflow, which stays as long as its history",
    Action.RESCHEDULE: "it is a run of a workflow, which has begun: only waiting jobs can be changed",
}


def check(spec: Spec) -> None:
    """Raise UsageError for a request that names no jobs, names them twice, or cannot match any."""
    if spec.rate is not None and not spec.rate > 0:
        raise UsageError(f"the rate is a number of jobs per second above 0, not {spec.rate:g}")
    if spec.action is Action.BACKFILL:
        if spec.from_us > spec.to_us:
            raise UsageError(
                "a backfill ends before it begins: give a time from that is before to, and not in the future"
            )
        return
    if spec.where is not None and spec.ids:
        raise UsageError("an operation has a filter or handles, not both")
    if spec.where is None:
        if not spec.ids:
            raise UsageError("an operation needs a filter or handles")
        if len(spec.ids) > LARGEST_STEP:
            raise UsageError(f"an operation has at most {LARGEST_STEP} handles, not {len(spec.ids)}: use a filter")
    elif replace(spec.where, functions=()) == JobFilter(
        namespace=spec.where.namespace
    ):  # these come from the caller's grants
        raise UsageError("the filter is empty and would match every job: give at least one criterion, such as a state")
    elif not states_of(spec.action, spec.where):
        names = ", ".join(state.name.lower() for state in spec.where.states)
        raise UsageError(f"no job that is {names} can match: {_ONLY[spec.action]}")
    if (spec.due_us is not None) != (spec.action is Action.RESCHEDULE):
        raise UsageError("a time to run at is for the action reschedule, which needs it")
    if spec.most is not None and spec.most < 0:
        raise UsageError(f"the expected number of jobs is at least 0, not {spec.most}")


def states_of(action: Action, where: JobFilter) -> tuple[State, ...]:
    """Return the states of the jobs that match a filter and that the action can change."""
    return tuple(state for state in STATES[action] if not where.states or state in where.states)


def narrowed(action: Action, where: JobFilter, now_us: int) -> JobFilter:
    """Return the filter of an operation that is created now: later jobs, and jobs that it cannot change, do not match."""
    before_us = min(where.created_to_us or now_us + 1, now_us + 1)
    return replace(where, states=states_of(action, where), created_to_us=before_us)


class Choice(NamedTuple):
    """The jobs of a step on which its action is tried, and the results for the other ones."""

    ids: list[int]
    results: list[Result]


def choose(spec: Spec, ids: Iterable[int], jobs: Mapping[int, Job], namespace: str) -> Choice:
    """Choose from the jobs whose turn has come. ``jobs`` are those that still exist, as they are now."""
    chosen: list[int] = []
    results: list[Result] = []
    for job_id in ids:
        job = jobs.get(job_id)
        if job is None or split(job.function)[0] != namespace:
            outcome = Outcome.NO_MATCH if spec.where is not None else Outcome.NOT_FOUND
            results.append(Result(job_id, outcome, "no such job exists, or it is no longer kept"))
        elif spec.where is not None and not spec.where.matches(job):
            results.append(Result(job_id, Outcome.NO_MATCH))
        elif job.options is UNREADABLE_OPTIONS and spec.action is not Action.DELETE:
            results.append(Result(job_id, Outcome.CONFLICT, UNREADABLE_JOB))
        elif job.state not in STATES[spec.action]:
            results.append(Result(job_id, Outcome.CONFLICT, f"it is {_name(job.state)}: {_ONLY[spec.action]}"))
        elif spec.action is not Action.CANCEL and job.term == RUNS:
            results.append(Result(job_id, Outcome.CONFLICT, _of_run(spec.action, job)))
        else:
            chosen.append(job_id)
    return Choice(chosen, results)


def _of_run(action: Action, job: Job) -> str:
    return run_not_retried("it", job.function) if action is Action.RETRY else _RUN[action]


def _name(state: int) -> str:
    return State(state).name.lower()


def advance(
    operation: BulkOperation,
    results: Sequence[Result],
    after: int | None,
    now_us: int,
    *,
    is_last: bool = False,
    stopped: Mapping[Outcome, int] = MappingProxyType({}),
) -> BulkOperation:
    """Return an operation after a step, whose jobs had these results.

    It is not done while workers have to be asked to stop: then an empty step follows. ``stopped`` has the number of jobs of the
    step before that have ended at once, by outcome: no worker ran them.
    """
    progress = operation.progress
    counts = dict(progress.counts)
    for outcome, number in stopped.items():
        counts[outcome] = counts.get(outcome, 0) + number
        counts[Outcome.STOPPING] -= number
    counts = {outcome: number for outcome, number in counts.items() if number}
    for result in results:
        counts[result.outcome] = counts.get(result.outcome, 0) + 1
    room = FAILURES_KEPT - len(progress.failures)
    failures = [Failure(*result) for result in results if result.outcome in FAILURES][:room] if room else ()
    progress = replace(
        progress,
        after=after,
        counts=counts,
        failures=(*progress.failures, *failures),
        stopping=tuple(result.job for result in results if result.outcome is Outcome.STOPPING),
    )
    if is_last and not progress.stopping:
        return ended(replace(operation, progress=progress), Status.DONE, now_us)
    return replace(operation, progress=progress, revision=operation.revision + 1)


def backfilled(operation: BulkOperation, step: Backfilled, now_us: int) -> BulkOperation:
    """Return a backfill after a step; the same if the step could do nothing."""
    if step.error:
        return ended(operation, Status.STOPPED, now_us, step.error)
    progress = operation.progress
    if step.after_us == _place(operation) and not step.is_last:
        return operation
    counts = dict(progress.counts)
    numbers = [(_OUTCOMES[row.state], 1) for row in step.rows]
    numbers += [(Outcome.ALREADY_FIRED, step.already), (Outcome.FORGOTTEN, step.forgotten)]
    for outcome, number in numbers:
        if number:
            counts[outcome] = counts.get(outcome, 0) + number
    following = replace(operation, progress=replace(progress, after=step.after_us, counts=counts))
    if step.is_last:
        return ended(following, Status.DONE, now_us)
    return replace(following, revision=following.revision + 1)


def next_times(operation: BulkOperation, limit: int, now_us: int, permits: Callable[[str], bool]) -> Backfill:
    """Return the next step of a backfill."""
    spec = operation.spec
    return Backfill(operation.id, spec.schedule, _place(operation), spec.to_us, limit, now_us, permits)


def _place(operation: BulkOperation) -> int:
    after = operation.progress.after
    return operation.spec.from_us - 1 if after is None else after


def ended(operation: BulkOperation, status: Status, now_us: int, why: str = "") -> BulkOperation:
    """Return an operation that has ended."""
    return replace(
        operation,
        status=status,
        revision=operation.revision + 1,
        ended_us=now_us,
        progress=replace(operation.progress, why=why) if why else operation.progress,
    )


def allowed(operation: BulkOperation, number: int) -> int:
    """Return how many of ``number`` jobs a step may change under the operation's limit."""
    most = operation.spec.most
    return number if most is None else max(min(number, most - operation.progress.changed), 0)


def too_many(operation: BulkOperation) -> str:
    """Return the reason for which an operation stops at its limit."""
    return f"more than the expected {operation.spec.most} jobs match"


def touched(results: Iterable[Result]) -> Touched:
    """Return the jobs of a step by outcome, without those that did not match any more."""
    jobs: Touched = {}
    for result in results:
        if result.outcome is not Outcome.NO_MATCH:
            jobs.setdefault(result.outcome, []).append(result.job)
    return jobs


def touched_by(step: Backfilled) -> Touched:
    """Return the jobs of the fire times that a step of a backfill has fired."""
    return touched(Result(row.job, _OUTCOMES[row.state]) for row in step.rows if row.job)


def done(progress: Progress) -> int:
    """Return the number of jobs that have had their turn."""
    return sum(progress.counts.values())
