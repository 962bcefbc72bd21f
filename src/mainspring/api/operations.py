"""Calls about operations on many jobs: start, list, show and abort them. A backfill of a schedule is one of them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.declaration import get, post
from mainspring.api.jobs import REASON_LIMIT, JobInfo
from mainspring.api.request import (
    PAGE_LIMIT,
    Code,
    Cursor,
    JobCriteria,
    Limit,
    OperationId,
    Page,
    Request,
    ScheduleName,
    Touches,
)
from mainspring.features import Feature
from mainspring.sizes import Text, Time, about, described

ActionName = Literal["cancel", "retry", "delete", "reschedule"]
StateName = Literal["running", "done", "aborted", "stopped"]
Reason = Annotated[str, msgspec.Meta(max_length=REASON_LIMIT)]
HANDLES_LIMIT = 1000
"""Handles in one operation."""


class OperationInfo(msgspec.Struct):
    """An operation on many jobs; docs/reference/protocol.md explains the keys."""

    id: str
    action: str
    state: StateName
    matched: int
    """The jobs, or the fire times of a backfill, that matched when it was created."""
    at_least: bool
    """Whether more jobs may match, because the count took too long."""
    done: int
    """Those that have had their turn."""
    outcomes: dict[str, int]
    """Their number by outcome."""
    created_at: str | None
    ended_at: str | None
    created_by: str
    reason: str
    why: str | None
    """Why it was aborted or stopped."""


class FailureInfo(msgspec.Struct):
    """A job that an operation could not change."""

    handle: str
    outcome: str
    message: str


class OperationDetails(OperationInfo):
    """An operation with all its details."""

    filter: JobCriteria | None
    handles: int | None
    """The number of its handles; None if it has a filter."""
    schedule: str | None
    """The schedule of a backfill; ``from`` and ``to`` are its range."""
    from_: str | None = msgspec.field(name="from")
    to: str | None
    run_at: str | None
    rate: float | None
    expect: int | None
    failures: list[FailureInfo]
    """The first failures."""


class StartedOperation(msgspec.Struct):
    """The answer to a request for an operation."""

    id: str | None
    """None for a dry run."""
    matched: int
    at_least: bool
    sample: list[JobInfo]
    """The first five jobs that match."""


class TouchedJob(msgspec.Struct):
    """A job of an operation, with its outcome."""

    handle: str
    outcome: str


PerSecond = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class StartOperation(Request[StartedOperation]):
    """Cancel, retry, delete or reschedule all jobs that match a filter, or that have one of some handles."""

    permission = Permission.OPERATE
    requires = Feature.OPERATIONS
    touches = Touches.EACH
    keeps_answer = True
    call = "operations.start"
    http = post(
        "operations",
        status=202,
        location="operations/{id}",
        others={200: "It was a dry run."},
        problems=(Code.CONFLICT, Code.RUN_NOT_FOUND),
        example={"action": "retry", "filter": {"state": "failed", "function": "pay"}, "reason": "the bank is back"},
    )
    action: Annotated[ActionName, about("The change.")]
    filter: Annotated[JobCriteria | None, about("All jobs that meet these criteria.")] = None
    handles: Annotated[
        Annotated[list[Text], msgspec.Meta(max_length=HANDLES_LIMIT)] | None,
        about("The jobs with these handles, in place of `filter`."),
    ] = None
    dry_run: Annotated[bool, described("Only count the jobs that match, and show five.")] = False
    expect: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None,
        described("Change nothing if more jobs match than this.", metavar="JOBS", label="At most so many jobs"),
    ] = None
    reason: Annotated[Reason, described("A text to store with the operation.")] = ""
    rate: Annotated[
        PerSecond | None,
        described("Change at most this many jobs per second.", metavar="JOBS", label="Jobs per second"),
    ] = None
    run_at: Annotated[
        Time | None, described("For reschedule: when the jobs run; at once if it is past.", "--run-at", "--at")
    ] = None


class ListOperations(Request[Page[OperationInfo]]):
    """List operations on many jobs, newest first."""

    permission = Permission.READ
    requires = Feature.OPERATIONS
    call = "operations.list"
    http = get("operations")
    cursor: Cursor = None
    limit: Limit = 100


class ShowOperation(Request[OperationDetails]):
    """Show an operation."""

    permission = Permission.READ
    requires = Feature.OPERATIONS
    touches = Touches.OPERATION
    reads_object = True
    call = "operations.show"
    id: OperationId


class FollowOperation(Request[OperationInfo]):
    """Follow the progress of an operation until it ends, as the event ``operation``."""

    permission = Permission.READ
    requires = Feature.OPERATIONS
    touches = Touches.OPERATION
    reads_object = True
    name_in_audit = "operations.follow"
    id: OperationId


class ListOperationJobs(Request[Page[TouchedJob]]):
    """List the jobs of an operation with their outcomes, in the order of their turns."""

    permission = Permission.READ
    requires = Feature.OPERATIONS
    touches = Touches.OPERATION
    reads_object = True
    call = "operations.jobs"
    http = get("operations/{id}/jobs", problems=(Code.OPERATION_NOT_FOUND,))
    id: OperationId
    cursor: Cursor = None
    limit: Limit = PAGE_LIMIT


class AbortOperation(Request[OperationInfo]):
    """End an operation early. Jobs that have had their turn stay changed."""

    permission = Permission.OPERATE
    requires = Feature.OPERATIONS
    touches = Touches.OPERATION
    call = "operations.abort"
    http = post("operations/{id}/abort")
    is_small = True
    id: OperationId
    reason: Annotated[Reason, described("A text to store with the operation.")] = ""


class StartedBackfill(msgspec.Struct):
    """The answer to a request for a backfill."""

    id: str | None
    """The operation that fires the times; None for a dry run."""
    matched: int
    """The fire times in the range, whether they have run already or not."""
    at_least: bool
    """Whether there may be more, because the count took too long."""
    times: list[str | None]
    """The first ten of them."""


class Backfill(Request[StartedBackfill], kw_only=True):
    """Run a schedule for its past fire times that have not run, each once, in an operation."""

    permission = Permission.OPERATE
    requires = Feature.OPERATIONS
    touches = Touches.SCHEDULE
    keeps_answer = True
    call = "schedules.backfill"
    http = post(
        "schedules/{name}/backfill",
        status=202,
        location="operations/{id}",
        others={200: "It was a dry run."},
        problems=(Code.CONFLICT,),
        example={
            "from": "2030-01-01T00:00:00Z",
            "to": "2030-01-31T00:00:00Z",
            "max": 31,
            "reason": "the bank was down",
        },
    )
    name: ScheduleName
    from_: Annotated[Time, described("The first time that may run, such as 2030-01-31T12:00:00Z.", label="From")] = (
        msgspec.field(name="from")
    )
    to: Annotated[Time | None, described("The last time that may run; by default now.")] = None
    max: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None,
        described("Run nothing if the range has more times than this.", metavar="TIMES", label="At most so many times"),
    ] = None
    dry_run: Annotated[bool, described("Only count the times in the range, and show ten.")] = False
    reason: Annotated[Reason, described("A text to store with the operation.")] = ""
    rate: Annotated[
        PerSecond | None,
        described("Run at most this many times per second.", metavar="TIMES", label="Times per second"),
    ] = None
