"""Routes about jobs: lists, and single jobs with their changes. `job_data` has those with users' data."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.api import job_changes, job_data, jobs
from mainspring.api.errors import PAGE_LIMIT, Code
from mainspring.api.job_filters import Time  # noqa: TC001 - msgspec reads the annotations
from mainspring.api.submitting import PriorityName  # noqa: TC001 - msgspec reads the annotations
from mainspring.faces.rest.registry import N, Route
from mainspring.faces.rest.replies import Items

JOB: Final = f"{N}/jobs/{{handle}}"
LONGEST_WAIT: Final = 60.0
Wait = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT)]
"""Seconds of a long poll."""
FOUND: Final = (Code.JOB_NOT_FOUND,)
CHANGED: Final = (Code.JOB_NOT_FOUND, Code.CONFLICT, Code.UNSUPPORTED)
INFO: Final[dict[str, Any]] = {
    "handle": "H:node:1000000000001",
    "function": "thumbnail",
    "unique": "",
    "state": "pending",
    "priority": "normal",
    "attempt": 0,
    "created_at": "2030-01-31T12:00:00.000000Z",
    "started_at": None,
    "ended_at": None,
    "error": None,
}


class JobsQuery(msgspec.Struct, kw_only=True):
    """The filter of a list of jobs."""

    namespace: str
    state: list[str] | None = None
    function: str | None = None
    unique: str | None = None
    key: str | None = None
    schedule: str | None = None
    workflow: str | None = None
    error_type: str | None = None
    tag: str | None = None
    created_from: Time | None = None
    created_to: Time | None = None
    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100


class JobQuery(msgspec.Struct, kw_only=True):
    """One job, at once or once it has changed."""

    namespace: str
    handle: str
    wait: Wait = 0.0


class JobChange(msgspec.Struct, kw_only=True):
    """Changes of a waiting job."""

    namespace: str
    handle: str
    run_at: Time | UnsetType = UNSET
    priority: PriorityName | UnsetType = UNSET
    expires_at: Time | UnsetType | None = UNSET


def _list(query: JobsQuery) -> jobs.List:
    criteria = msgspec.structs.asdict(query)
    return jobs.List(before=criteria.pop("cursor"), partial=True, **criteria)


def _items(listed: jobs.Listed, _: JobsQuery) -> Items[jobs.JobInfo]:
    return Items(listed.jobs, listed.next or None, listed.searched_to or None)


def _show(query: JobQuery) -> jobs.Show:
    return jobs.Show(query.handle, namespace=query.namespace)


def _watch(query: JobQuery) -> job_data.Follow:
    return job_data.Follow(query.handle, namespace=query.namespace)


def _update(change: JobChange) -> job_changes.Update:
    return job_changes.Update(**msgspec.structs.asdict(change))


def _nothing(_deleted: job_changes.Deleted, _request: job_changes.Delete) -> None:
    return None


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/jobs",
        request=jobs.List,
        inputs=JobsQuery,
        make=_list,
        answer=Items[jobs.JobInfo],
        reply=_items,
        summary="List jobs, newest first",
        problems=(Code.RUN_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path=JOB,
        request=jobs.Show,
        inputs=JobQuery,
        make=_show,
        watch=_watch,
        answer=jobs.JobDetails,
        summary="Show a job; with wait and If-None-Match, once it has changed",
        problems=FOUND,
    ),
    Route(
        method="GET",
        path=f"{JOB}/stream",
        request=job_data.Follow,
        answer=jobs.JobInfo,
        stream=True,
        name="jobs_stream",
        summary="Stream the states and the progress of a job until it ends",
        problems=FOUND,
    ),
    Route(
        method="PATCH",
        path=JOB,
        request=job_changes.Update,
        inputs=JobChange,
        make=_update,
        answer=jobs.JobInfo,
        summary="Change the time, the priority or the expiry of a waiting job",
        problems=CHANGED,
        example={"priority": "high", "run_at": "2030-01-31T12:00:00Z"},
        answered=INFO | {"state": "scheduled", "priority": "high"},
    ),
    Route(
        method="DELETE",
        path=JOB,
        request=job_changes.Delete,
        answer=None,
        reply=_nothing,
        status=204,
        summary="Delete a job that has ended",
        problems=CHANGED,
    ),
    Route(
        method="POST",
        path=f"{JOB}/cancel",
        request=jobs.Cancel,
        answer=jobs.Cancelled,
        summary="Cancel a job",
        problems=FOUND,
        example={"reason": "not needed any more"},
        answered={"handle": "H:node:1000000000001", "state": "cancelled"},
    ),
    Route(
        method="POST",
        path=f"{JOB}/retry",
        request=jobs.Retry,
        answer=jobs.JobInfo,
        summary="Retry a job that ended without success",
        problems=(*CHANGED, Code.TOO_LARGE),
        example={"delay": 60, "args": [17]},
        answered=INFO | {"state": "scheduled"},
    ),
    Route(
        method="POST",
        path=f"{JOB}/snooze",
        request=job_changes.Snooze,
        answer=jobs.JobInfo,
        summary="Postpone a waiting job",
        problems=CHANGED,
        example={"delay": 3600},
        answered=INFO | {"state": "scheduled"},
    ),
)
