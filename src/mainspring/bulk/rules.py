"""Operations on many jobs: their values, their pace, and their rules. They do no I/O.

A step is part of a group, and every operation of the group waits for it. So a step extends its group by less than a short
commit takes (`Pace`). While the node has other work, steps are rare, so that few groups have one; an operation may then use
only a part of the node, but has a rate that it should keep. A node without other work belongs to the operation.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from mainspring.access.caller import LOCAL, Caller
from mainspring.errors import UsageError
from mainspring.jobs.model import RUNS, UNREADABLE_JOB, UNREADABLE_OPTIONS, State
from mainspring.jobs.rules import run_not_retried
from mainspring.namespaces import split
from mainspring.queries import JobFilter
from mainspring.schedules.model import FireState
from mainspring.schedules.rules import Backfill, Backfilled
from mainspring.sizes import CANNOT_READ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mainspring.jobs.model import Job

T = TypeVar("T")


class Action(StrEnum):
    """The change that an operation makes to each of its jobs."""

    CANCEL = "cancel"
    RETRY = "retry"
    DELETE = "delete"
    RESCHEDULE = "reschedule"
    BACKFILL = "backfill"
    """Fire a schedule for past fire times: these have turns in place of jobs."""


class Status(IntEnum):
    """The state of an operation. The numbers are stored."""

    RUNNING = 0
    DONE = 1
    """It has had its turn with every job."""
    ABORTED = 2
    """A user ended it."""
    STOPPED = 3
    """It ended early, because more jobs match than its limit, or because its caller may not change them any more."""


class Outcome(StrEnum):
    """The result of an operation for one job. The names are stored, and shown to users."""

    CANCELLED = "cancelled"
    STOPPING = "stopping"
    """The job ran, and its worker was asked to stop."""
    RETRIED = "retried"
    DELETED = "deleted"
    RESCHEDULED = "rescheduled"
    NO_MATCH = "no_match"
    """The job did not match any more when its turn came."""
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    """Its state does not allow the action, or its unique is live again."""
    FORBIDDEN = "forbidden"
    """The caller may not change jobs of its function."""
    FIRED = "fired"
    """A backfill has submitted a job for this fire time."""
    JOINED = "joined"
    """A live job with the unique of the schedule serves the fire time."""
    WAITING = "waiting"
    """The fire time waits for an earlier run."""
    ALREADY_FIRED = "already_fired"
    """It has run before, or is about to."""
    FORGOTTEN = "forgotten"
    """It may have run before: its row may have been deleted."""


SUCCESSES: Final = frozenset(
    {
        Outcome.CANCELLED,
        Outcome.STOPPING,
        Outcome.RETRIED,
        Outcome.DELETED,
        Outcome.RESCHEDULED,
        Outcome.FIRED,
        Outcome.JOINED,
        Outcome.WAITING,
    }
)
"""Outcomes of jobs that were changed, and of fire times that run."""
FAILURES: Final = frozenset({Outcome.NOT_FOUND, Outcome.CONFLICT, Outcome.FORBIDDEN})
"""Outcomes that users have to look at."""
FAILURES_KEPT: Final = 20
"""The first failures of an operation, which are kept with their reasons."""
LARGEST_STEP: Final = 1000
"""The most jobs in one step, and in a list of handles."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request for an operation. It never changes. Stored as MessagePack, so a field is never renamed."""

    action: Action
    where: JobFilter | None = None
    """The jobs, by criteria whose times are absolute; None: by ``ids``."""
    ids: tuple[int, ...] = ()
    reason: str = ""
    caller: Caller = LOCAL
    """Its rights count as they are at each step."""
    rate: float | None = None
    """The most jobs per second; None: as fast as other work allows."""
    most: int | None = None
    """The most jobs that it may change. It stops before it changes another one."""
    due_us: int | None = None
    """The time to which it reschedules jobs."""
    schedule: str = ""
    """The key of the schedule that a backfill fires."""
    from_us: int = 0
    """The first time that a backfill may fire."""
    to_us: int = 0
    """The last one."""
    criteria: bytes = b""
    """The criteria of ``where`` as the caller gave them, in JSON."""
    matched: int = 0
    """The jobs that matched when it was created."""
    is_least: bool = False
    """Whether that is a lower bound, because the count took too long."""


PREFIX: Final = "op-"
"""The begin of the text that stands for an operation; its id follows."""


class Result(NamedTuple):
    """The result for one job."""

    job: int
    outcome: Outcome
    message: str = ""
    """The reason of a failure."""


class Failure(msgspec.Struct, frozen=True):
    """A job that an operation could not change."""

    job: int
    outcome: Outcome
    message: str


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far an operation is. Stored as MessagePack, so a field is never renamed."""

    after: int | None = None
    """The last job that has had its turn: an id for criteria, a number of ids for a list of them. None: no job has.

    Of a backfill, it is the last fire time."""
    counts: dict[Outcome, int] = {}
    """The number of jobs by outcome."""
    failures: tuple[Failure, ...] = ()
    """The first failures."""
    stopping: tuple[int, ...] = ()
    """Jobs of the last step that a node held: its workers are asked to stop after the commit."""
    why: str = ""
    """Why it was aborted or stopped."""

    @property
    def changed(self) -> int:
        """The number of jobs that were changed."""
        return sum(number for outcome, number in self.counts.items() if outcome in SUCCESSES)


class BulkOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation on many jobs, as it is stored."""

    id: int
    namespace: str = "default"
    status: Status = Status.RUNNING
    term: int = 0
    """The term of the node that works on it, also after its end."""
    revision: int = 0
    """Incremented with each write."""
    created_us: int
    ended_us: int = 0
    spec: Spec
    progress: Progress = Progress()
    unread: str = ""
    """Why this version cannot read all of it; empty if it can. The parts that it cannot read have defaults then, so that it must
    be neither worked on nor written."""


Touched = dict[Outcome, list[int]]
"""The jobs of one step by outcome."""

encode: Final = msgspec.msgpack.Encoder().encode
decode_spec: Final = msgspec.msgpack.Decoder(Spec).decode
decode_progress: Final = msgspec.msgpack.Decoder(Progress).decode
_decode_touched: Final = msgspec.msgpack.Decoder(Touched).decode


def decode_touched(stored: bytes) -> Touched:
    """Return the jobs of a stored step; none for bytes that cannot be read: one row must not break the list."""
    try:
        return _decode_touched(stored)
    except CANNOT_READ:
        return {}


def row_of(operation: BulkOperation) -> tuple[Any, ...]:
    """Return the row of an operation, in the order of the columns of the SQL stores."""
    return (
        operation.id,
        operation.namespace,
        int(operation.status),
        operation.term,
        operation.revision,
        operation.created_us,
        operation.ended_us,
        encode(operation.spec),
        encode(operation.progress),
    )


def operations_of(rows: Iterable[Iterable[Any]]) -> list[BulkOperation]:
    """Return the operations of such rows."""
    found = []
    for bulk_id, namespace, status, term, revision, created_us, ended_us, spec, progress in rows:
        faults: list[str] = []
        found.append(
            BulkOperation(
                id=bulk_id,
                namespace=namespace,
                status=_read("its status", Status, status, Status.RUNNING, faults),
                term=term,
                revision=revision,
                created_us=created_us,
                ended_us=ended_us,
                spec=_read("its request", decode_spec, spec, _NO_SPEC, faults),
                progress=_read("its progress", decode_progress, progress, _NO_PROGRESS, faults),
                unread="; ".join(faults),
            )
        )
    return found


def _read(what: str, decode: Callable[[Any], T], value: Any, default: T, faults: list[str]) -> T:
    """Return a decoded value; if this version cannot read it, a default, and add the reason."""
    try:
        return decode(value)
    except (ValueError, RecursionError) as error:  # a MsgspecError is a ValueError
        faults.append(f"this version of Mainspring cannot read {what}: {error}")
        return default


_NO_SPEC: Final = Spec(action=Action.CANCEL)
_NO_PROGRESS: Final = Progress()

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


def check_spec(spec: Spec) -> None:
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
            results.append(
                Result(job_id, Outcome.CONFLICT, f"it is {State(job.state).name.lower()}: {_ONLY[spec.action]}")
            )
        elif spec.action is not Action.CANCEL and job.term == RUNS:
            why = run_not_retried("it", job.function) if spec.action is Action.RETRY else _RUN[spec.action]
            results.append(Result(job_id, Outcome.CONFLICT, why))
        else:
            chosen.append(job_id)
    return Choice(chosen, results)


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
