"""Calls about stored jobs: list, show, change and watch them; their attempts, arguments, results and logs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.caller import Permission
from mainspring.api.declaration import Button, delete, get, patch, post
from mainspring.api.request import (
    PAGE_LIMIT,
    Code,
    CreatedFrom,
    CreatedTo,
    Cursor,
    Handle,
    Limit,
    OfError,
    OfFunction,
    OfKey,
    OfSchedule,
    OfState,
    OfTag,
    OfUnique,
    OfWorkflow,
    Page,
    Request,
    Rows,
    Touches,
)
from mainspring.api.submitting import (
    REFUSALS,
    SUBMISSION_LIMIT,
    Arguments,
    PriorityName,
    Submission,
    has_arguments,
)
from mainspring.features import Feature
from mainspring.jobs.model import FUNCTION_LIMIT, State
from mainspring.sizes import (
    KIND,
    Seconds,
    Text,
    TextTuple,
    Time,
    Whole,
    about,
    described,
)

REASON_LIMIT = 4096
"""Characters in the reason of a cancel, which is stored with the job."""
STATE_BY_NAME = {state.name.lower(): state for state in State}


class JobInfo(msgspec.Struct):
    """A job; docs/reference/protocol.md explains the keys."""

    handle: str
    function: str
    unique: str
    state: str
    priority: str
    attempt: int
    created_at: str | None
    started_at: str | None
    ended_at: str | None
    error: str | None
    overdue_since: str | None = None
    """Since when it has not begun, or not ended, in time."""
    awaits_until: str | None = None
    """Of a job that awaits the answer to its completion token: until when."""


class AwaitedCompletion(msgspec.Struct):
    """The newest completion token of a job."""

    number: int
    """Names the token; the first one of the job is 1."""
    state: str
    """``open``; ``kept``: the answer is there, and the function has not returned yet; ``completed``; ``expired``; or ``void``."""
    since: str | None
    """When the job asked for it."""
    expires_at: str | None
    alive_until: str | None
    """When the next sign of life must have come, of a token with a heartbeat."""
    late_answers: int
    last_late_at: str | None


class JobWork(msgspec.Struct):
    """A submission of a job's work to another system."""

    number: int
    """Its number among those of the job."""
    state: str
    """``open``: submitted, or about to be; ``done`` and ``over``: it has ended, or is left alone; ``cancel``, ``cancelling``;
    ``answered``: the other system has answered the cancellation; ``given_up``: its job has ended without an answer."""
    key: str
    submitted: bool
    """Whether the other system's answer is recorded."""
    meta: Any
    """That answer; null also for callers without the right to see payloads."""
    began_at: str | None
    canceller: str | None
    """The handle of the job that cancels it."""
    answered_at: str | None
    """When that job had ended."""
    looked_at: str | None = None
    """When the worker has looked last, as it has reported to this node."""
    problem: str | None = None
    """Why it could not look, or has no answer yet."""


class JobDetails(JobInfo, kw_only=True):
    """A job with all its details."""

    traceback: str | None
    schedule: str | None
    fire_time: str | None
    concurrency_key: str | None
    run_at: str | None
    expires_at: str | None
    input_size: int
    output_size: int
    max_attempts: int | None
    timeout: float | None
    worker: str | None
    done: int
    total: int
    tags: list[str]
    text: str | None = None
    """That of the progress."""
    start_by: str | None = None
    """When it should have begun."""
    deadline_at: str | None = None
    """When it should have ended."""
    works: list[JobWork] | None = None
    """Its last submissions to another system, in their order; null for other jobs."""
    run: str | None = None
    """The key of the run of a workflow for which the job stands, which is its own handle, or to which it belongs."""
    completion: AwaitedCompletion | None = None
    """Its newest completion token; None: it has asked for none."""
    waits_for_unique: str | None = None
    """The unique for whose live job it waits: it begins when that has ended."""


class CancelledJob(msgspec.Struct):
    """The state of a job after a cancel."""

    handle: str
    state: str
    """``cancelled``; ``running`` if its worker was asked to stop; or the state in which the job had already ended."""


class MissedChanges(msgspec.Struct):
    """The number of changes that were left out because the watcher's buffer was full."""

    missed: int


class ListJobs(Request[Page[JobInfo]], kw_only=True):
    """List jobs, newest first. They match all given criteria (`JobCriteria`)."""

    permission = Permission.READ
    call = "jobs.list"
    http = get("jobs", problems=(Code.RUN_NOT_FOUND,))
    place = "handle"
    only_reads = True
    state: OfState = None
    function: OfFunction = None
    unique: OfUnique = None
    key: OfKey = None
    schedule: OfSchedule = None
    workflow: OfWorkflow = None
    error_type: OfError = None
    tag: OfTag = None
    created_from: CreatedFrom = None
    created_to: CreatedTo = None
    cursor: Cursor = None
    limit: Limit = 100


class ShowJob(Request[JobDetails]):
    """Show a job."""

    permission = Permission.READ
    touches = Touches.JOB
    reads_object = True
    call = "jobs.show"
    handle: Handle


class CancelJob(Request[CancelledJob]):
    """Cancel a job."""

    permission = Permission.OPERATE
    touches = Touches.JOB
    call = "jobs.cancel"
    http = post("jobs/{handle}/cancel", example={"reason": "not needed any more"})
    handle: Handle
    reason: Annotated[str, msgspec.Meta(max_length=REASON_LIMIT), described("A text to store with the job.")] = (
        "cancelled on request"
    )


class RetryJob(Arguments, Request[JobInfo]):
    """Retry a job that ended without success.

    It is pending at once, or after the ``delay``. With arguments, it gets these in place of its own: that needs the permission
    to submit jobs.
    """

    permission = Permission.OPERATE
    touches = Touches.JOB
    keeps_answer = True
    call = "jobs.retry"
    http = post(
        "jobs/{handle}/retry",
        problems=(Code.CONFLICT, Code.TOO_LARGE, Code.UNSUPPORTED),
        example={"delay": 60, "args": [17]},
    )
    handle: Handle
    delay: Annotated[Seconds | None, described("Start this long from now, or later.")] = None

    def needed_feature(self) -> Feature | None:
        """Return the feature of the store for a retry later or with other arguments; all stores have the other retries."""
        return Feature.JOB_CHANGES if self.delay or has_arguments(self) else None

    def needs(self) -> Permission:
        """Return the permission to submit jobs for a retry with other arguments."""
        return Permission.DEVELOP if has_arguments(self) else self.permission


class WatchJobs(Request[None]):
    """Send each change of state, optionally of one function or one job only."""

    permission = Permission.READ
    call = "jobs.watch"
    function: Annotated[
        Annotated[str, msgspec.Meta(max_length=FUNCTION_LIMIT)] | None, about("Only jobs of this function.")
    ] = None
    handle: Annotated[Text | None, about("Only this job.")] = None


FutureSeconds = Annotated[float, msgspec.Meta(ge=0, le=1e12, extra={KIND: "duration"})]


class DeletedJob(msgspec.Struct):
    """A job that was deleted."""

    handle: str
    state: Literal["deleted"] = "deleted"


class UpdateJob(Request[JobInfo]):
    """Change the time, the priority or the expiry of a job that waits, or by when a job should begin and end.

    Keys that are left out stay as they are.
    """

    permission = Permission.OPERATE
    requires = Feature.JOB_CHANGES
    touches = Touches.JOB
    call = "jobs.update"
    http = patch(
        "jobs/{handle}", problems=(Code.CONFLICT,), example={"priority": "high", "run_at": "2030-01-31T12:00:00Z"}
    )
    handle: Handle
    run_at: Annotated[
        Time | UnsetType,
        described(
            "Start at this time or later, such as 2030-01-31T12:00:00Z; at once if it is past.", "--run-at", "--at"
        ),
    ] = UNSET
    priority: Annotated[PriorityName | UnsetType, described("The new priority: higher ones start first.")] = UNSET
    expires_at: Annotated[
        Time | UnsetType | None, described("End the job as expired if it has not started by this time; none: never.")
    ] = UNSET
    start_within: Annotated[
        Seconds | UnsetType | None,
        described(
            "The job is overdue if it has not begun within this time from now, or from run_at if that is given; none: never.",
            label="Late if not begun within",
        ),
    ] = UNSET
    deadline: Annotated[
        Seconds | UnsetType | None,
        described(
            "The job is overdue if it has not ended within this time from now, or from run_at if that is given; none: never."
            " Also of a job that runs, and of a run's own job.",
            label="Late if not ended within",
        ),
    ] = UNSET


class SnoozeJob(Request[JobInfo]):
    """Postpone a job that waits."""

    permission = Permission.OPERATE
    requires = Feature.JOB_CHANGES
    touches = Touches.JOB
    call = "jobs.snooze"
    http = post("jobs/{handle}/snooze", problems=(Code.CONFLICT,), example={"delay": 3600})
    command = "EXAMPLES\n  mainspring jobs snooze H:node:1000000000001 --delay 2h"
    button = Button(label="Snooze", done="The job was postponed.", states=("pending", "leased", "scheduled"))
    handle: Handle
    delay: Annotated[FutureSeconds, described("Start the job this long from now, or later.")]


class DeleteJob(Request[DeletedJob]):
    """Delete a job that has ended."""

    permission = Permission.OPERATE
    requires = Feature.JOB_CHANGES
    touches = Touches.JOB
    call = "jobs.delete"
    http = delete("jobs/{handle}", problems=(Code.CONFLICT,))
    handle: Handle


class CloneJob(Arguments, Request[Submission]):
    """Submit a new job like another one, whatever the state of that.

    The new job has the function, the arguments, the priority, the concurrency key, the tags, the retry policy, the time limits
    and the version of the other one, where the request gives no others. It has no unique, and runs at once, unless the request
    says otherwise. Its expiry and the times after which it is late count from now, so they are not those of the other one.
    """

    permission = Permission.DEVELOP
    touches = Touches.JOB
    keeps_answer = True
    call = "jobs.clone"
    http = post(
        "jobs/{handle}/clone",
        status=201,
        location="jobs/{handle}",
        others={200: "It joined a job of its unique."},
        problems=(Code.NOT_KEPT, *REFUSALS),
        example={"args": ["dog.png"], "priority": "low"},
        answered={"handle": "H:node:1000000000002", "joined": False},
        limit=SUBMISSION_LIMIT,
    )
    handle: Handle
    unique: Annotated[Text, described("A unique for the new job. By default it has none.")] = ""
    priority: Annotated[PriorityName | None, described("The priority. By default it is that of the other job.")] = None
    delay: Annotated[FutureSeconds | None, described("Start this long from now, or later.")] = None
    run_at: Annotated[
        Time | None, described("Start at this time or later, such as 2030-01-31T12:00:00Z.", "--run-at", "--at")
    ] = None
    expires: Annotated[
        FutureSeconds | None, described("End the job as expired if it has not started within this time.")
    ] = None
    start_within: Annotated[
        FutureSeconds | None,
        described(
            "The job is overdue if it has not begun within this time. By default that of the task.",
            label="Late if not begun within",
        ),
    ] = None
    deadline: Annotated[
        FutureSeconds | None,
        described(
            "The job is overdue if it has not ended within this time. By default that of the task.",
            label="Late if not ended within",
        ),
    ] = None
    concurrency_key: Annotated[
        Text | None, described("The key for limits. By default it is that of the other job.")
    ] = None
    tags: Annotated[
        TextTuple | None,
        described("A tag; may be repeated. By default the job has those of the other one.", "--tag"),
    ] = None


SHOWN_BYTES = 1 << 20
"""Bytes of the largest payload in an answer."""


class Attempt(msgspec.Struct):
    """One attempt at a job; docs/reference/protocol.md explains the keys."""

    number: int
    outcome: str
    """``running``, or a value of `jobs.rules.Outcome`."""
    started_at: str | None
    ended_at: str | None
    duration: float | None
    """Seconds."""
    node: str | None
    worker: str | None
    error_type: str | None
    error: str | None
    stop_requested_at: str | None = None
    """When its worker was asked to stop because of a cancel; None if it was not."""
    done: int = 0
    """The last progress that its worker reported, as the next two; 0 and None if it reported none."""
    total: int = 0
    text: str | None = None


class Attempts(msgspec.Struct):
    """The attempts at a job, oldest first."""

    handle: str
    attempts: list[Attempt]


class KeptArguments(msgspec.Struct):
    """The arguments of a job."""

    handle: str
    size: int
    """Bytes of the payload, as it was submitted."""
    kept: bool
    """Whether the payload, or what may be shown of it, is still there."""
    redacted: bool
    """Whether values were replaced, or the whole payload is withheld because it is not JSON."""
    value: Any | UnsetType = UNSET
    """The payload, if it is JSON."""
    payload: bytes | UnsetType = UNSET
    """The payload, if it is not JSON. Base64 in JSON."""
    encoded: str | UnsetType = UNSET
    """Codec, key and bytes of a payload that an App has encoded, as text; the payload is in ``payload``."""


class ListAttempts(Request[Attempts]):
    """List the attempts at a job, the oldest first."""

    permission = Permission.READ
    touches = Touches.JOB
    reads_object = True
    call = "jobs.attempts"
    http = get("jobs/{handle}/attempts")
    handle: Handle


class ShowArguments(Request[KeptArguments]):
    """Show the arguments of a job, without redacted values."""

    permission = Permission.PAYLOADS
    touches = Touches.JOB
    reads_object = True
    call = "jobs.arguments"
    http = get("jobs/{handle}/arguments", problems=(Code.UNSUPPORTED,))
    handle: Handle


class UserData(msgspec.Struct):
    """Bytes of a user."""

    data: bytes


class JobOutcome(msgspec.Struct):
    """How a job ended; docs/reference/cli.md explains the keys."""

    handle: str
    state: str
    attempt: int
    result: msgspec.Raw | str | None = None
    encoding: str | None = None
    """None with a result: it is too long for this answer, or the caller may not see it."""
    error: str | None = None
    traceback: str | None = None


class ReadPayload(Request[UserData]):
    """Get the arguments of a job, as they are."""

    permission = Permission.PAYLOADS
    touches = Touches.JOB
    reads_object = True
    name_in_audit = "jobs.payload"
    handle: Handle


class ReadResult(Request[UserData]):
    """Get the result of a job that has succeeded, as it is."""

    permission = Permission.PAYLOADS
    touches = Touches.JOB
    reads_object = True
    name_in_audit = "jobs.result"
    handle: Handle


class AwaitJob(Request[JobOutcome]):
    """Show how a job ended, once it has."""

    permission = Permission.READ
    touches = Touches.JOB
    reads_object = True
    name_in_audit = "jobs.wait"
    only_reads = True
    handle: Handle


class JobProgress(msgspec.Struct):
    """How much of a job is done."""

    done: int
    total: int


class FollowJob(Request[JobInfo]):
    """Follow the states and the progress of a job until it ends.

    The events are ``job`` with a `JobInfo`, and ``progress`` with a `JobProgress`.
    """

    permission = Permission.READ
    touches = Touches.JOB
    reads_object = True
    name_in_audit = "jobs.follow"
    http = get("jobs/{handle}/stream", name="jobs_stream", stream=True, problems=(Code.JOB_NOT_FOUND,))
    handle: Handle


LONGEST_WAIT = 30.0
"""Seconds that a call may wait for lines."""
LevelName = Literal["debug", "info", "warning", "error", "critical"]
Level = Annotated[LevelName, described("Only lines of this level and above.")]
AttemptNumber = Annotated[
    Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None,
    described("Only lines of this attempt: 1 is the first.", metavar="NUMBER"),
]


class LogLine(msgspec.Struct):
    """A line of a job's log; docs/reference/protocol.md explains the keys."""

    attempt: int
    number: int
    at: str | None
    level: str
    logger: str
    message: str
    fields: dict[str, str | int | float | bool | None]
    missed: int | UnsetType = UNSET
    """The number of lines that are missing before this one; left out if there are none."""


class Logged(Page[LogLine], kw_only=True):
    """A part of a job's log, the oldest line first. Its ``next`` is None only if no more lines follow."""

    ended: bool
    """Whether the job has ended, and no more lines follow."""


class LogEnd(msgspec.Struct):
    """The last event of a stream of lines: the job has ended."""

    ended: bool = True


class FollowLogs(Request[None]):
    """Follow the lines of a job's log until it has ended.

    The events are ``lines``, and ``end`` when the job has ended.
    """

    permission = Permission.PAYLOADS
    requires = Feature.LOGS
    touches = Touches.JOB
    reads_object = True
    name_in_audit = "jobs.follow_logs"
    http = get(
        "jobs/{handle}/logs/stream",
        name="jobs_logs_stream",
        stream=True,
        resume="after",
        problems=(Code.JOB_NOT_FOUND,),
    )
    handle: Handle
    tail: Annotated[Whole, about("With how many earlier lines the stream begins, the newest ones.")] = 200
    after: Annotated[Text | None, about("The place where another stream ended, in place of `tail`.")] = None
    level: Level = "debug"
    attempt: AttemptNumber = None


class ReadJobLogs(Request[Logged]):
    """List lines of a job's log, the oldest first."""

    permission = Permission.PAYLOADS
    requires = Feature.LOGS
    touches = Touches.JOB
    reads_object = True
    call = "jobs.logs"
    http = get("jobs/{handle}/logs", problems=(Code.JOB_NOT_FOUND,))
    of_page = ("limit", "tail", "whole", "wait")
    only_reads = True
    bounds_pages = True
    handle: Handle
    tail: Annotated[Rows, about("The number of lines on the first page, the newest ones.")] = 200
    whole: Annotated[bool, about("Whether the first page begins with the first line, and has no `tail`.")] = False
    cursor: Cursor = None
    limit: Annotated[Rows, about("With `whole` or `cursor`: the most lines of a page.")] = PAGE_LIMIT
    level: Level = "debug"
    attempt: AttemptNumber = None
    wait: Annotated[
        float,
        msgspec.Meta(ge=0, le=LONGEST_WAIT),
        about("With `whole` or `cursor`: seconds to wait for a line if there is none, and the job has not ended."),
    ] = 0.0
