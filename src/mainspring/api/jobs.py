"""Calls about jobs: list, show, cancel, retry, and watch their changes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.api.request import Request
from mainspring.jobs.model import FUNCTION_LIMIT, State

LONGEST_REASON = 4096
"""Letters of the reason of a cancel: it is stored with the job."""
STATES = {state.name.lower(): state for state in State}


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
    """All that is known about a job."""

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
    """The former name of ``done``, as ``denominator`` is that of ``total``."""
    denominator: int


class Listed(msgspec.Struct):
    """Some jobs, newest first."""

    jobs: list[JobInfo]
    next: str | UnsetType | None = UNSET
    """Of a partial answer: the handle ``before`` which the next one begins; None: no older job matches."""
    searched_to: str | UnsetType | None = UNSET
    """Of a partial answer: when the last job that was looked at was submitted; None: there is no older one."""


class Cancelled(msgspec.Struct):
    """The state of a job after a cancel."""

    handle: str
    state: str
    """``cancelled``; ``running`` where its worker was asked to stop; or the state in which it had ended."""


class Missed(msgspec.Struct):
    """So many changes were left out, because the watcher had no room for them."""

    missed: int


class List(Request[Listed]):
    """Jobs that meet all that is given, those before the job ``before``. Codes: ``invalid``, ``job_not_found``."""

    call = "jobs.list"
    only_reads = True
    state: str | None = None
    function: str | None = None
    unique: str | None = None
    before: str | None = None
    limit: int = 100
    partial: bool = False
    """Whether the answer may come before there are as many jobs as the limit says, though there are more."""


class Show(Request[JobDetails]):
    """One job. Codes: ``job_not_found``."""

    call = "jobs.show"
    handle: str


class Cancel(Request[Cancelled]):
    """Cancel a job. Codes: ``job_not_found``."""

    call = "jobs.cancel"
    handle: str
    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)] = "cancelled on request"


class Retry(Request[JobInfo]):
    """Put a job that ended without success back to pending. Codes: ``job_not_found``, ``conflict``."""

    call = "jobs.retry"
    handle: str


class Watch(Request[None]):
    """Tell of each change of state, of one function's or of one job where that is given. Codes: ``job_not_found``."""

    call = "jobs.watch"
    function: Annotated[str, msgspec.Meta(max_length=FUNCTION_LIMIT)] | None = None
    handle: str | None = None
