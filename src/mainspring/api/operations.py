"""Calls about operations on many jobs: start, list, show and abort them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.errors import PAGE_LIMIT
from mainspring.api.job_filters import JobCriteria, Time  # noqa: TC001 - msgspec reads the annotations
from mainspring.api.jobs import REASON_LIMIT, JobInfo
from mainspring.api.request import Request, Touches
from mainspring.sizes import Seconds, Text, Whole  # noqa: TC001 - msgspec reads the annotations

ActionName = Literal["cancel", "retry", "delete", "reschedule"]
StateName = Literal["running", "done", "aborted", "stopped"]
Reason = Annotated[str, msgspec.Meta(max_length=REASON_LIMIT)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)]
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


class Started(msgspec.Struct):
    """The answer to a request for an operation."""

    id: str | None
    """None for a dry run."""
    matched: int
    at_least: bool
    sample: list[JobInfo]
    """The first five jobs that match."""


class Listed(msgspec.Struct):
    """A page of operations, newest first."""

    operations: list[OperationInfo]
    next: str | None
    """The value of ``before`` for the next page; None on the last one."""


class TouchedJob(msgspec.Struct):
    """A job of an operation, with its outcome."""

    handle: str
    outcome: str


class TouchedJobs(msgspec.Struct):
    """A page of the jobs of an operation, in the order of their turns."""

    jobs: list[TouchedJob]
    next: int | None
    """The value of ``after`` for the next page; None: there are no more jobs now."""


class Start(Request[Started]):
    """Change all jobs that match a filter, or that have one of some handles.

    Codes: ``invalid``, ``conflict``, ``run_not_found``, ``unsupported``.
    """

    permission = Permission.OPERATE
    touches = Touches.EACH
    call = "operations.start"
    action: ActionName
    filter: JobCriteria | None = None
    handles: Annotated[list[Text], msgspec.Meta(max_length=HANDLES_LIMIT)] | None = None
    dry_run: bool = False
    """Only count the jobs."""
    expect: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    """The most jobs that may match. If more do, the request fails and nothing changes."""
    reason: Reason = ""
    rate: Seconds | None = None
    """The most jobs per second; None: as fast as other work allows."""
    run_at: Time | None = None
    """For ``reschedule``: when the jobs run. A past time lets them run at once."""


class List(Request[Listed]):
    """The operations of a namespace. Codes: ``invalid``, ``unsupported``."""

    permission = Permission.READ
    call = "operations.list"
    rows = "operations"
    limit: Limit = 100
    before: Text | None = None
    """List only operations that were started before this one."""


class Show(Request[OperationDetails]):
    """One operation. Codes: ``operation_not_found``, ``unsupported``."""

    permission = Permission.READ
    call = "operations.show"
    id: Text


class Follow(Request[OperationInfo]):
    """The progress of one operation until it ends, as the event ``operation``.

    Codes: ``operation_not_found``, ``unsupported``.
    """

    permission = Permission.READ
    name_in_audit = "operations.follow"
    id: Text


class Jobs(Request[TouchedJobs]):
    """The jobs that an operation has changed or could not change. Codes: ``operation_not_found``, ``unsupported``."""

    permission = Permission.READ
    call = "operations.jobs"
    id: Text
    after: Whole = 0


class Abort(Request[OperationInfo]):
    """End an operation early; jobs that have had their turn stay changed. Codes: ``operation_not_found``, ``unsupported``."""

    permission = Permission.OPERATE
    touches = Touches.OPERATION
    call = "operations.abort"
    is_small = True
    id: Text
    reason: Reason = ""
