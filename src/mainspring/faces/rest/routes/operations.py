"""Routes about operations on many jobs."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from mainspring.api import operations
from mainspring.api.errors import PAGE_LIMIT, ApiError, Code
from mainspring.faces.rest.registry import ROOT, N, Route
from mainspring.faces.rest.replies import Items, Reply
from mainspring.faces.rest.routes.jobs import Wait  # noqa: TC001 - msgspec reads the annotation


class ListQuery(msgspec.Struct, kw_only=True):
    """A page of a list of operations."""

    namespace: str
    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100


class OperationQuery(msgspec.Struct, kw_only=True):
    """One operation, at once or once it has changed."""

    namespace: str
    id: str
    wait: Wait = 0.0


class JobsQuery(msgspec.Struct, kw_only=True):
    """A page of the jobs of an operation."""

    namespace: str
    id: str
    cursor: str | None = None


def _list(query: ListQuery) -> operations.List:
    return operations.List(namespace=query.namespace, limit=query.limit, before=query.cursor)


def _started(started: operations.Started, request: operations.Start) -> object:
    if started.id is None:
        return started
    return Reply(started, 202, {"Location": f"{ROOT}/namespaces/{request.namespace}/operations/{started.id}"})


def _jobs(query: JobsQuery) -> operations.Jobs:
    cursor = query.cursor or "0"
    if not cursor.isdecimal() or len(cursor) > 18:
        raise ApiError(Code.INVALID, "the cursor is not of this list: take it from next in the previous page")
    return operations.Jobs(namespace=query.namespace, id=query.id, after=int(cursor))


def _touched(page: operations.TouchedJobs, _: JobsQuery) -> Items[operations.TouchedJob]:
    return Items(page.jobs, None if page.next is None else str(page.next))


ROUTES: Final = (
    Route(
        method="POST",
        path=f"{N}/operations",
        request=operations.Start,
        answer=operations.Started,
        reply=_started,
        summary="Cancel, retry, delete or reschedule many jobs",
        others={202: "The operation has begun"},
        problems=(Code.CONFLICT, Code.RUN_NOT_FOUND, Code.UNSUPPORTED),
        example={"action": "retry", "filter": {"state": "failed", "function": "pay"}, "reason": "the bank is back"},
    ),
    Route(
        method="GET",
        path=f"{N}/operations",
        request=operations.List,
        inputs=ListQuery,
        make=_list,
        answer=Items[operations.OperationInfo],
        reply=lambda listed, _: Items(listed.operations, listed.next),
        summary="List operations on many jobs, newest first",
        problems=(Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="GET",
        path=f"{N}/operations/{{id}}",
        request=operations.Show,
        inputs=OperationQuery,
        make=lambda query: operations.Show(query.id, namespace=query.namespace),
        watch=lambda query: operations.Follow(query.id, namespace=query.namespace),
        answer=operations.OperationDetails,
        summary="Show an operation; with wait and If-None-Match, once it has changed",
        problems=(Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="GET",
        path=f"{N}/operations/{{id}}/jobs",
        request=operations.Jobs,
        inputs=JobsQuery,
        make=_jobs,
        answer=Items[operations.TouchedJob],
        reply=_touched,
        summary="List the jobs of an operation with their outcomes",
        problems=(Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="POST",
        path=f"{N}/operations/{{id}}/abort",
        request=operations.Abort,
        answer=operations.OperationInfo,
        summary="End an operation early",
        problems=(Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
)
