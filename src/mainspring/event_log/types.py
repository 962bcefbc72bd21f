"""The types of events, in one table: what each is about, and the fields that it has.

An event is thin: it names a job, a run or another object, and has states, numbers and the first line of an error, but never the
arguments, results or other data of users. So everybody who may see the object may see its events.
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from mainspring.errors import UsageError
from mainspring.sizes import about

if TYPE_CHECKING:
    from collections.abc import Iterable


class Subject(StrEnum):
    """The kinds of objects that events are about."""

    JOB = "job"
    RUN = "run"
    SCHEDULE = "schedule"
    FUNCTION = "function"
    WORKER = "worker"
    NODE = "node"
    OPERATION = "operation"


class Fields(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The fields of an event beside those that all events have; a field without a value is left out."""


class JobFields(Fields):
    """Of an event about a job."""

    attempt: Annotated[int, about("The attempts counted so far.")] = 0
    tags: Annotated[tuple[str, ...], about("The tags of the job.")] = ()
    key: Annotated[str, about("The concurrency key of the job.")] = ""
    schedule: Annotated[str, about("The schedule that has started the job.")] = ""
    run: Annotated[int, about("The number of the run of a workflow to which the job belongs.")] = 0
    error_type: Annotated[str, about("The type of the error.")] = ""
    error: Annotated[str, about("The first line of the message of the error.")] = ""
    worker: Annotated[str, about("The worker that ran the attempt, where it is known.")] = ""
    ran_us: Annotated[int, about("How long the attempt ran, in microseconds, where it is known.")] = 0
    due_us: Annotated[int, about("When the job runs next, in microseconds of wall time.")] = 0
    lost: Annotated[bool, about("Whether the attempt was lost with its worker or node.")] = False
    by: Annotated[str, about("The name of the caller who asked for it.")] = ""


class EventType(NamedTuple):
    """A row of the table."""

    name: str
    subject: Subject
    fields: type[Fields]
    about: str
    """When it happens, in one sentence."""


SUCCEEDED: Final = "job.succeeded"
FAILED: Final = "job.failed"
ATTEMPT_FAILED: Final = "job.attempt_failed"
CANCELLED: Final = "job.cancelled"
EXPIRED: Final = "job.expired"
SNOOZED: Final = "job.snoozed"
RETRIED: Final = "job.retried"

TYPES: Final = {
    one.name: one
    for one in (
        EventType(SUCCEEDED, Subject.JOB, JobFields, "A job has succeeded."),
        EventType(FAILED, Subject.JOB, JobFields, "A job has failed for good: it is a dead letter."),
        EventType(
            ATTEMPT_FAILED, Subject.JOB, JobFields, "An attempt has failed or was lost, and the job runs once more."
        ),
        EventType(CANCELLED, Subject.JOB, JobFields, "A job was cancelled."),
        EventType(
            EXPIRED, Subject.JOB, JobFields, "A job has expired before a worker had it, or between two attempts."
        ),
        EventType(SNOOZED, Subject.JOB, JobFields, "A job was postponed: by its own code, or by a caller."),
        EventType(RETRIED, Subject.JOB, JobFields, "A caller has put an ended job back, to run once more."),
    )
}

JOBS: Final = frozenset(name for name, one in TYPES.items() if one.subject is Subject.JOB)
"""The types about jobs."""


def types_of(patterns: Iterable[str]) -> frozenset[str]:
    """Return the types that patterns name, such as ``job.failed``, ``job.*`` and ``*``. Raises UsageError if one names none."""
    found: set[str] = set()
    for pattern in patterns:
        named = {name for name in TYPES if fnmatchcase(name, pattern)}
        if not named:
            raise UsageError(f"{pattern!r} names no type of event: there are {', '.join(sorted(TYPES))}")
        found |= named
    return frozenset(found)
