"""Routes about operations on many jobs."""

from __future__ import annotations

from typing import Final

from mainspring.api import operations
from mainspring.api.errors import Code
from mainspring.faces.rest.registry import N, Route, path_in
from mainspring.faces.rest.replies import Items, Reply


def _started(started: operations.Started, request: operations.Start) -> object:
    if started.id is None:
        return started
    return Reply(started, 202, {"Location": path_in(request.namespace, "operations", started.id)})


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
        cursor="before",
        answer=Items[operations.OperationInfo],
        items="operations",
        summary="List operations on many jobs, newest first",
        problems=(Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="GET",
        path=f"{N}/operations/{{id}}",
        request=operations.Show,
        waits=True,
        watch=lambda query: operations.Follow(query.id, namespace=query.namespace),
        answer=operations.OperationDetails,
        summary="Show an operation; with wait and If-None-Match, once it has changed",
        problems=(Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="GET",
        path=f"{N}/operations/{{id}}/jobs",
        request=operations.Jobs,
        cursor="after",
        answer=Items[operations.TouchedJob],
        items="jobs",
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
