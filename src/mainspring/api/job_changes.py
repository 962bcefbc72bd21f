"""Calls that change single jobs, besides cancel and retry: reschedule, snooze, clone and delete."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.access.roles import Permission
from mainspring.api.job_filters import Time  # noqa: TC001 - msgspec reads the annotations
from mainspring.api.jobs import JobInfo
from mainspring.api.request import Request, Touches
from mainspring.api.submitting import Arguments, PriorityName, Submission
from mainspring.sizes import Text, TextTuple  # noqa: TC001 - msgspec reads the annotations

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Deleted(msgspec.Struct):
    """A job that was deleted."""

    handle: str
    state: Literal["deleted"] = "deleted"


class Update(Request[JobInfo]):
    """Change a job that waits; keys that are left out stay as they are. Codes: ``invalid``, ``job_not_found``, ``conflict``."""

    permission = Permission.OPERATE
    touches = Touches.JOB
    call = "jobs.update"
    handle: Text
    run_at: Time | UnsetType = UNSET
    """When it runs; a past time: at once."""
    priority: PriorityName | UnsetType = UNSET
    expires_at: Time | UnsetType | None = UNSET
    """When it expires if it has not started; null: never."""


class Snooze(Request[JobInfo]):
    """Postpone a job that waits. Codes: ``invalid``, ``job_not_found``, ``conflict``."""

    permission = Permission.OPERATE
    touches = Touches.JOB
    call = "jobs.snooze"
    handle: Text
    delay: Seconds


class Delete(Request[Deleted]):
    """Delete a job that has ended. Codes: ``job_not_found``, ``conflict``."""

    permission = Permission.OPERATE
    touches = Touches.JOB
    call = "jobs.delete"
    handle: Text


class Clone(Arguments, Request[Submission]):
    """Submit a new job like another one, whatever the state of that.

    The new job has the function, the arguments, the priority, the concurrency key, the tags, the retry policy, the time limits
    and the version of the other one, where the request gives no others. It has no unique, and runs at once, unless the request
    says otherwise. Codes: as of `SubmitJob`, ``job_not_found``, and ``not_kept`` if the arguments are not kept.
    """

    permission = Permission.DEVELOP
    touches = Touches.JOB
    call = "jobs.clone"
    handle: Text
    unique: Text = ""
    priority: PriorityName | None = None
    delay: Seconds | None = None
    run_at: Time | None = None
    expires: Seconds | None = None
    concurrency_key: Text | None = None
    tags: TextTuple | None = None
