"""Calls about jobs: list, show, cancel, retry, and watch their changes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.roles import Permission
from mainspring.api.job_filters import Time  # noqa: TC001 - msgspec reads the annotations
from mainspring.api.request import Request, Touches
from mainspring.api.submitting import Arguments, has_arguments
from mainspring.jobs.model import FUNCTION_LIMIT, State
from mainspring.sizes import Seconds, Text, Texts, Whole  # noqa: TC001 - msgspec reads the annotations

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


class JobDetails(JobInfo):
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
    numerator: int
    """The former name of ``done``; ``denominator`` is that of ``total``."""
    denominator: int
    tags: list[str]
    text: str | None = None
    """That of the progress."""
    run: str | None = None
    """The key of the run of a workflow for which the job stands, which is its own handle, or to which it belongs."""


class Listed(msgspec.Struct):
    """A page of jobs, newest first."""

    jobs: list[JobInfo]
    next: str | UnsetType | None = UNSET
    """The handle for ``before`` of the next page; None: no older job matches. It is left out in an answer
    that is not partial, unless large rows have made that short."""
    searched_to: str | UnsetType | None = UNSET
    """Only in a partial answer: when the last examined job was submitted; None: there is no older one."""


class Cancelled(msgspec.Struct):
    """The state of a job after a cancel."""

    handle: str
    state: str
    """``cancelled``; ``running`` if its worker was asked to stop; or the state in which the job had already ended."""


class Missed(msgspec.Struct):
    """The number of changes that were left out because the watcher's buffer was full."""

    missed: int


class List(Request[Listed], kw_only=True):
    """Jobs that match all given criteria (`JobCriteria`) and are older than the job ``before``.

    Codes: ``invalid``, ``job_not_found``, ``run_not_found``.
    """

    permission = Permission.READ
    call = "jobs.list"
    rows = "jobs"
    place = "handle"
    only_reads = True
    state: Text | Texts | None = None
    """One state, or several of which any will do."""
    function: Text | None = None
    unique: Text | None = None
    key: Text | None = None
    schedule: Text | None = None
    workflow: Text | None = None
    """A run of a workflow, by its handle or workflow id."""
    error_type: Text | None = None
    tag: Text | None = None
    created_from: Time | None = None
    created_to: Time | None = None
    before: Text | None = None
    limit: Whole = 100
    partial: bool = False
    """Whether the answer may contain fewer jobs than the limit although more match."""


class Show(Request[JobDetails]):
    """One job. Codes: ``job_not_found``."""

    permission = Permission.READ
    call = "jobs.show"
    handle: Text


class Cancel(Request[Cancelled]):
    """Cancel a job. Codes: ``job_not_found``."""

    permission = Permission.OPERATE
    touches = Touches.JOB
    call = "jobs.cancel"
    handle: Text
    reason: Annotated[str, msgspec.Meta(max_length=REASON_LIMIT)] = "cancelled on request"


class Retry(Arguments, Request[JobInfo]):
    """Put a job that ended without success back to pending, or to scheduled for ``delay`` seconds.

    With arguments, it gets these in place of its own: that needs the permission to submit jobs. Codes: ``invalid``,
    ``too_large``, ``unsupported``, ``job_not_found``, ``conflict``.
    """

    permission = Permission.OPERATE
    touches = Touches.JOB
    call = "jobs.retry"
    handle: Text
    delay: Seconds | None = None

    def needs(self) -> Permission:
        """Return the permission to submit jobs for a retry with other arguments."""
        return Permission.DEVELOP if has_arguments(self) else self.permission


class Watch(Request[None]):
    """Send each change of state, optionally of one function or one job only. Codes: ``job_not_found``."""

    permission = Permission.READ
    call = "jobs.watch"
    function: Annotated[str, msgspec.Meta(max_length=FUNCTION_LIMIT)] | None = None
    handle: Text | None = None
