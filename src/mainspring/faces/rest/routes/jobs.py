"""Routes about jobs."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from mainspring.api import jobs
from mainspring.api.errors import PAGE_LIMIT, Code
from mainspring.api.job_filters import Time  # noqa: TC001 - msgspec reads the annotations
from mainspring.faces.rest.registry import N, Route
from mainspring.faces.rest.replies import Items


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


def _list(query: JobsQuery) -> jobs.List:
    criteria = msgspec.structs.asdict(query)
    return jobs.List(before=criteria.pop("cursor"), partial=True, **criteria)


def _items(listed: jobs.Listed, _: JobsQuery) -> Items[jobs.JobInfo]:
    return Items(listed.jobs, listed.next or None, listed.searched_to or None)


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
    ),
    Route(
        method="GET",
        path=f"{N}/jobs/{{handle}}",
        request=jobs.Show,
        answer=jobs.JobDetails,
        summary="Show a job",
        problems=(Code.JOB_NOT_FOUND,),
    ),
)
