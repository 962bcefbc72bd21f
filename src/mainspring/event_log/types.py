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
    from collections.abc import Collection, Iterable, Mapping


class Subject(StrEnum):
    """The kinds of objects that events are about."""

    JOB = "job"
    RUN = "run"
    SCHEDULE = "schedule"
    FUNCTION = "function"
    WORKER = "worker"
    NODE = "node"
    OPERATION = "operation"
    WEBHOOK = "webhook"
    RESOURCE = "resource"
    OBJECT = "object"
    """Anything that somebody has acted on."""


class Fields(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The fields of an event beside those that all events have; a field without a value is left out."""

    depth: Annotated[int, about("How many deliveries of events have led to it.")] = 0


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
    by: Annotated[str, about("The name of the caller whose request it was.")] = ""


class OverdueFields(Fields):
    """Of an event about a job, or the root job of a run, that is late."""

    kind: Annotated[str, about("The option that set the time: start_within or deadline.")] = ""
    due_us: Annotated[int, about("The time by which it should have begun or ended, in microseconds of wall time.")] = 0
    running: Annotated[bool, about("Whether it has begun: a node has the job, or its run is open.")] = False
    tags: Annotated[tuple[str, ...], about("The tags of the job.")] = ()
    key: Annotated[str, about("The concurrency key of the job.")] = ""
    schedule: Annotated[str, about("The schedule that has started the job.")] = ""
    run: Annotated[
        int, about("The number of the run of a workflow to which the job belongs, or for which it stands.")
    ] = 0


class LateAnswerFields(Fields):
    """Of an event about an answer to a completion token that was not accepted."""

    why: Annotated[str, about("Why it does not count: answered, expired, or over, if the attempt is.")] = ""
    number: Annotated[int, about("The number of the token among those of the job.")] = 0
    attempt: Annotated[int, about("The attempts that were counted before that of the token.")] = 0
    tags: Annotated[tuple[str, ...], about("The tags of the job.")] = ()
    schedule: Annotated[str, about("The schedule that has started the job.")] = ""
    run: Annotated[int, about("The number of the run of a workflow to which the job belongs.")] = 0


class RunFields(Fields):
    """Of an event about a run of a workflow. Its job is the one that stands for the chain of runs."""

    run: Annotated[int, about("The number of the run.")] = 0
    version: Annotated[str, about("The version of the workflow.")] = ""
    tags: Annotated[tuple[str, ...], about("The tags of the run.")] = ()
    attempt: Annotated[int, about("Which attempt of the workflow it is.")] = 1
    parent: Annotated[int, about("The run that has started it as a child.")] = 0
    error_type: Annotated[str, about("The type of the error.")] = ""
    error: Annotated[str, about("The first line of the message of the error, or why the run is parked.")] = ""
    ran_us: Annotated[int, about("How long the run was open, in microseconds.")] = 0


class StrandedFields(Fields):
    """Of an event about the runs of a version without a worker."""

    version: Annotated[str, about("The version of the workflow.")] = ""
    runs: Annotated[int, about("How many runs need a decision.")] = 0


class ScheduleFields(Fields):
    """Of an event about a schedule."""

    fire_us: Annotated[int, about("The fire time, in microseconds of wall time.")] = 0
    tags: Annotated[tuple[str, ...], about("The tags of its jobs.")] = ()
    until_us: Annotated[int, about("The last of several fire times that were missed together.")] = 0
    cause: Annotated[str, about("The cause of the fire: trigger, parent or manual.")] = ""
    reason: Annotated[str, about("Why the time was missed, such as misfire or overlap.")] = ""
    by: Annotated[str, about("The name of the caller.")] = ""


class LateScheduleFields(Fields):
    """Of an event about a schedule that has started no job in time."""

    fire_us: Annotated[int, about("The fire time for which a job should have begun, in microseconds of wall time.")] = 0
    due_us: Annotated[int, about("The time by which it should have begun.")] = 0
    why: Annotated[
        str, about("Why it has not: not_fired, waiting, or the reason for which the time was skipped, such as overlap.")
    ] = ""
    tags: Annotated[tuple[str, ...], about("The tags of its jobs.")] = ()


class FunctionFields(Fields):
    """Of an event about a function."""

    reason: Annotated[str, about("The reason that the caller gave.")] = ""
    until_us: Annotated[int, about("When the pause ends by itself, in microseconds of wall time.")] = 0
    by: Annotated[str, about("The name of the caller.")] = ""
    number: Annotated[int, about("How many dead letters the series has so far.")] = 0


class InstanceFields(Fields):
    """Of an event about an instance of a managed resource."""

    instance: Annotated[str, about("The name of the instance.")] = ""
    state: Annotated[str, about("Its state.")] = ""
    why: Annotated[str, about("Why it is in the state, or why a step has failed.")] = ""


class OperationFields(Fields):
    """Of an event about an operation on many jobs."""

    action: Annotated[str, about("Its change of each job.")] = ""
    status: Annotated[str, about("How it has ended.")] = ""
    why: Annotated[str, about("Why it was stopped, if it was.")] = ""
    done: Annotated[int, about("How many jobs had their turn.")] = 0
    by: Annotated[str, about("The name of the caller.")] = ""


class MemberFields(Fields):
    """Of an event about a worker or a node."""

    node: Annotated[
        str, about("The node that a worker was connected to, or that has noticed the death of another one.")
    ] = ""
    jobs: Annotated[int, about("How many jobs it held.")] = 0
    why: Annotated[str, about("Why it counts as lost.")] = ""


class WebhookFields(Fields):
    """Of an event about a webhook."""

    reason: Annotated[str, about("Why it was paused.")] = ""
    by: Annotated[str, about("The name of the caller; empty if its own deliveries have paused it.")] = ""


class ResourceFields(Fields):
    """Of an event about a resource."""

    items: Annotated[tuple[str, ...], about("The names of the items; none of a counted resource.")] = ()
    slots: Annotated[int, about("How many slots it has now, or how many were taken.")] = 0
    hold: Annotated[str, about("The number of a person's hold.")] = ""
    until_us: Annotated[int, about("When a person's hold ends by itself, in microseconds of wall time.")] = 0
    by: Annotated[str, about("The name of the caller; empty if workers have declared it.")] = ""
    reason: Annotated[str, about("The reason that the caller gave.")] = ""


class ActFields(Fields):
    """Of an act of an operator, as the audit has it."""

    what: Annotated[str, about("The name of the request, such as jobs.cancel.")] = ""
    by: Annotated[str, about("The name of the caller.")] = ""
    reason: Annotated[str, about("The reason that the caller gave.")] = ""


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
OVERDUE: Final = "job.overdue"
LATE_ANSWER: Final = "job.completion_late"
RUN_STARTED: Final = "run.started"
RUN_COMPLETED: Final = "run.completed"
RUN_FAILED: Final = "run.failed"
RUN_CANCELLED: Final = "run.cancelled"
RUN_TIMED_OUT: Final = "run.timed_out"
RUN_TERMINATED: Final = "run.terminated"
RUN_PARKED: Final = "run.parked"
RUN_UNPARKED: Final = "run.unparked"
RUN_STRANDED: Final = "run.stranded"
FIRED: Final = "schedule.fired"
MISSED: Final = "schedule.missed"
SCHEDULE_OVERDUE: Final = "schedule.overdue"
SCHEDULE_PAUSED: Final = "schedule.paused"
SCHEDULE_RESUMED: Final = "schedule.resumed"
FUNCTION_PAUSED: Final = "function.paused"
FUNCTION_RESUMED: Final = "function.resumed"
DEAD_LETTERS: Final = "function.dead_letters"
INSTANCE_READY: Final = "resource.instance_ready"
INSTANCE_FAILED: Final = "resource.instance_failed"
INSTANCE_RELEASED: Final = "resource.instance_released"
WORKER_LOST: Final = "worker.lost"
NODE_JOINED: Final = "node.joined"
NODE_DEAD: Final = "node.dead"
OPERATION_ENDED: Final = "operation.ended"
WEBHOOK_PAUSED: Final = "webhook.paused"
WEBHOOK_RESUMED: Final = "webhook.resumed"
RESOURCE_CHANGED: Final = "resource.changed"
RESOURCE_DRAINED: Final = "resource.drained"
RESOURCE_OPENED: Final = "resource.opened"
RESOURCE_HELD: Final = "resource.held"
RESOURCE_FREED: Final = "resource.freed"
RESOURCE_TAKEN: Final = "resource.taken"
RESOURCE_DENIED: Final = "resource.denied"
ACTED: Final = "operator.acted"

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
        EventType(
            OVERDUE,
            Subject.JOB,
            OverdueFields,
            "A job has not ended by its deadline, or has not begun by the time for that; also a run, by its root job.",
        ),
        EventType(
            LATE_ANSWER,
            Subject.JOB,
            LateAnswerFields,
            "An answer to a completion token was not accepted: it came too late, or another one before; 20 times for a token.",
        ),
        EventType(
            RUN_STARTED, Subject.RUN, RunFields, "A run of a workflow has begun; a run that goes on as new has not."
        ),
        EventType(RUN_COMPLETED, Subject.RUN, RunFields, "A run has completed."),
        EventType(RUN_FAILED, Subject.RUN, RunFields, "A run has failed, and is not tried again."),
        EventType(RUN_CANCELLED, Subject.RUN, RunFields, "A run has ended as cancelled."),
        EventType(RUN_TIMED_OUT, Subject.RUN, RunFields, "A run has taken longer than its timeout."),
        EventType(RUN_TERMINATED, Subject.RUN, RunFields, "A run was ended from outside."),
        EventType(
            RUN_PARKED, Subject.RUN, RunFields, "The code of a run cannot go on, and the run waits for other code."
        ),
        EventType(RUN_UNPARKED, Subject.RUN, RunFields, "A parked run goes on."),
        EventType(
            RUN_STRANDED,
            Subject.RUN,
            StrandedFields,
            "Runs of a version have waited for a minute for a worker with their code; once until they wait no longer.",
        ),
        EventType(
            FIRED, Subject.SCHEDULE, ScheduleFields, "A schedule has started a job for a fire time, or joined one."
        ),
        EventType(MISSED, Subject.SCHEDULE, ScheduleFields, "A fire time was skipped; the reason says why."),
        EventType(
            SCHEDULE_OVERDUE,
            Subject.SCHEDULE,
            LateScheduleFields,
            "A schedule has started no job in time; once, until it starts one.",
        ),
        EventType(SCHEDULE_PAUSED, Subject.SCHEDULE, ScheduleFields, "A schedule was paused."),
        EventType(SCHEDULE_RESUMED, Subject.SCHEDULE, ScheduleFields, "A paused schedule goes on."),
        EventType(FUNCTION_PAUSED, Subject.FUNCTION, FunctionFields, "A function was paused: none of its jobs starts."),
        EventType(FUNCTION_RESUMED, Subject.FUNCTION, FunctionFields, "A paused function goes on."),
        EventType(
            DEAD_LETTERS,
            Subject.FUNCTION,
            FunctionFields,
            "A job of the function has failed for good: the first one of a series, or the 10th, the 100th, and so on.",
        ),
        EventType(INSTANCE_READY, Subject.RESOURCE, InstanceFields, "An instance of a managed resource was created."),
        EventType(
            INSTANCE_FAILED,
            Subject.RESOURCE,
            InstanceFields,
            "An instance is broken or gone, or its creation or release has failed and is tried again.",
        ),
        EventType(INSTANCE_RELEASED, Subject.RESOURCE, InstanceFields, "An instance was released."),
        EventType(
            WORKER_LOST,
            Subject.WORKER,
            MemberFields,
            "A worker has ended or fallen silent while it had jobs, or has ended without a goodbye.",
        ),
        EventType(NODE_JOINED, Subject.NODE, MemberFields, "A node takes part: it has begun a term."),
        EventType(
            NODE_DEAD,
            Subject.NODE,
            MemberFields,
            "The term of a node has ended without its goodbye; its jobs go to others.",
        ),
        EventType(OPERATION_ENDED, Subject.OPERATION, OperationFields, "An operation on many jobs has ended."),
        EventType(
            WEBHOOK_PAUSED,
            Subject.WEBHOOK,
            WebhookFields,
            "A webhook was paused: by a caller, or because its receiver is gone or has failed too often.",
        ),
        EventType(WEBHOOK_RESUMED, Subject.WEBHOOK, WebhookFields, "A paused webhook goes on."),
        EventType(
            RESOURCE_CHANGED,
            Subject.RESOURCE,
            ResourceFields,
            "A resource has other items or slots: by a command, or because workers declare them.",
        ),
        EventType(RESOURCE_DRAINED, Subject.RESOURCE, ResourceFields, "Items of a resource get no new holders."),
        EventType(RESOURCE_OPENED, Subject.RESOURCE, ResourceFields, "Drained items of a resource get holders again."),
        EventType(RESOURCE_HELD, Subject.RESOURCE, ResourceFields, "A person holds slots of a resource."),
        EventType(RESOURCE_FREED, Subject.RESOURCE, ResourceFields, "The slots of a person were given back in time."),
        EventType(
            RESOURCE_TAKEN,
            Subject.RESOURCE,
            ResourceFields,
            "Slots were taken away from a job, whose attempt has ended.",
        ),
        EventType(
            RESOURCE_DENIED,
            Subject.RESOURCE,
            ResourceFields,
            "A job or a run has waited too long for slots that it lacked.",
        ),
        EventType(ACTED, Subject.OBJECT, ActFields, "A caller has done something that the audit records."),
    )
}

JOBS: Final = frozenset(name for name, one in TYPES.items() if one.fields is JobFields)
"""The types about what has happened to jobs; that of lateness, which time causes, is none of them."""
RUNS: Final = frozenset(name for name, one in TYPES.items() if one.fields is RunFields)
"""The types about single runs."""


GROUPS: Final[Mapping[str, frozenset[str]]] = {
    pattern: frozenset(name for name in TYPES if fnmatchcase(name, pattern))
    for pattern in dict.fromkeys(f"{name.partition('.')[0]}.*" for name in TYPES)
}
"""The types that a pattern for each kind of object names."""


def patterns_of(types: Collection[str]) -> list[str]:
    """Return the fewest patterns that name some types, for people to read: whole groups such as ``job.*``, and single types."""
    if TYPES.keys() <= set(types):
        return ["*"]
    groups = [pattern for pattern, names in GROUPS.items() if len(names) > 1 and names <= set(types)]
    grouped = frozenset[str]().union(*(GROUPS[pattern] for pattern in groups))
    return sorted([*groups, *(name for name in types if name not in grouped)])


def types_of(patterns: Iterable[str]) -> frozenset[str]:
    """Return the types that patterns name, such as ``job.failed``, ``job.*`` and ``*``. Raises UsageError if one names none."""
    found: set[str] = set()
    for pattern in patterns:
        named = {name for name in TYPES if fnmatchcase(name, pattern)}
        if not named:
            raise UsageError(f"{pattern!r} names no type of event: there are {', '.join(sorted(TYPES))}")
        found |= named
    return frozenset(found)
