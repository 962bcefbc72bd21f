"""Routes about jobs: lists, and single jobs with their changes. `job_data` has those with users' data."""

from __future__ import annotations

from typing import Any, Final

from mainspring.api import job_changes, job_data, jobs
from mainspring.api.errors import Code
from mainspring.faces.rest.registry import N, Route
from mainspring.faces.rest.replies import Items
from mainspring.sizes import Texts

JOB: Final = f"{N}/jobs/{{handle}}"
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


def _watch(query: Any) -> job_data.Follow:
    return job_data.Follow(query.handle, namespace=query.namespace)


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/jobs",
        request=jobs.List,
        cursor="before",
        types={"state": Texts | None},
        fixed={"partial": True},
        answer=Items[jobs.JobInfo],
        items="jobs",
        summary="List jobs, newest first",
        problems=(Code.RUN_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path=JOB,
        request=jobs.Show,
        waits=True,
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
