"""The values of operations on many jobs: the request, the progress and the result."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from mainspring.access.caller import LOCAL, Caller
from mainspring.queries.filters import JobFilter  # noqa: TC001 - msgspec reads the annotation
from mainspring.sizes import CANNOT_READ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
