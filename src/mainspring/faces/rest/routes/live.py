"""The route of live numbers: one stream with all that a page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.api import job_data, live, logs, operations
from mainspring.api.errors import ApiError, Code
from mainspring.faces.rest.registry import N, Route

if TYPE_CHECKING:
    from mainspring.api.request import Request


class LiveQuery(msgspec.Struct, kw_only=True):
    """The subjects of a stream."""

    namespace: str
    overview: bool = False
    """The numbers of the namespace."""
    functions: bool = False
    """These, and the numbers of each function."""
    job: str | None = None
    """The handle of a job whose states and progress are sent."""
    logs: str | None = None
    """The handle of a job whose log is sent, from its last 200 lines on."""
    after: str | None = None
    """The id of the last event with lines, to go on after it; ``Last-Event-ID`` replaces it."""
    operation: str | None = None
    """The id of an operation whose progress is sent."""


def _follows(query: LiveQuery) -> list[Request[Any]]:
    found: list[Request[Any]] = []
    if query.overview or query.functions:
        found.append(live.Follow(namespace=query.namespace, functions=query.functions))
    if query.job is not None:
        found.append(job_data.Follow(query.job, namespace=query.namespace))
    if query.logs is not None:
        found.append(logs.FollowLogs(query.logs, namespace=query.namespace, after=query.after))
    if query.operation is not None:
        found.append(operations.Follow(query.operation, namespace=query.namespace))
    if not found:
        raise ApiError(
            Code.INVALID, "choose what to follow: overview=true, functions=true, job, logs or operation in the query"
        )
    return found


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/live",
        request=live.Follow,
        inputs=LiveQuery,
        follows=_follows,
        answer=None,
        stream=True,
        resume="after",
        name="live",
        summary="Follow the numbers of a namespace, a job, its log and an operation in one stream",
        problems=(Code.JOB_NOT_FOUND, Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
)
