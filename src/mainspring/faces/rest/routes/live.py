"""The route of live pages: one stream with all that a page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from mainspring.api import jobs, namespaces, operations
from mainspring.api.request import ApiError, Code
from mainspring.faces.rest.registry import N, Route
from mainspring.sizes import Text  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.api.request import Request


class LiveQuery(msgspec.Struct, kw_only=True):
    """The subjects of a stream."""

    namespace: Text
    overview: bool = False
    """Whether to send the numbers of the namespace."""
    functions: bool = False
    """Whether to send these, and the numbers of each function."""
    job: Text | None = None
    """The handle of a job whose states and progress are sent."""
    logs: Text | None = None
    """The handle of a job whose log is sent, from its last 200 lines on."""
    after: Text | None = None
    """The id of the last event with lines, to go on after it; ``Last-Event-ID`` replaces it."""
    operation: Text | None = None
    """The id of an operation whose progress is sent."""
    troubles: bool = False
    """The versions of the first page, and the numbers of the functions that it shows."""
    schedules: bool = False
    """Whether to send the versions of the list of schedules."""
    workers: bool = False
    """Whether to send those of the list of workers."""
    nodes: bool = False
    """Whether to send those of the list of nodes."""
    runs: bool = False
    """Whether to send those of the list of runs of workflows."""
    schedule: Text | None = None
    """The name of a schedule whose versions are sent."""
    worker: Text | None = None
    """The id of a worker whose versions are sent."""
    run: Text | None = None
    """The key of a run of a workflow whose versions are sent."""


def _follows(query: LiveQuery) -> list[Request[Any]]:
    found: list[Request[Any]] = []
    if query.overview or query.functions:
        numbers = namespaces.FollowNumbers(
            namespace=query.namespace, functions=query.functions, troubled=query.troubles
        )
        found.append(numbers)
    if query.job is not None:
        found.append(jobs.FollowJob(query.job, namespace=query.namespace))
    if query.logs is not None:
        found.append(jobs.FollowLogs(query.logs, namespace=query.namespace, after=query.after))
    if query.operation is not None:
        found.append(operations.FollowOperation(query.operation, namespace=query.namespace))
    versions = [namespaces.FollowVersion(*subject, namespace=query.namespace) for subject in _versions(query)]
    if len(versions) > 1:
        one, other = versions[:2]
        raise ApiError(Code.INVALID, f"a stream has the versions of {one.subject} or of {other.subject}, not of both")
    found += versions
    if not found:
        raise ApiError(
            Code.INVALID,
            "choose what to follow: overview, functions, troubles, schedules, workers, nodes or runs (each =true), or job,"
            " logs, operation, schedule, worker or run in the query",
        )
    return found


def _versions(query: LiveQuery) -> Iterator[tuple[Any, ...]]:
    """Yield the subjects whose versions are wanted, with the name of the object that a subject may have."""
    for subject in get_args(namespaces.VersionedSubject):
        wanted = getattr(query, subject)
        if wanted:
            yield (subject,) if wanted is True else (subject, wanted)


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/live",
        request=namespaces.FollowNumbers,
        inputs=LiveQuery,
        follows=_follows,
        answer=None,
        stream=True,
        resume="after",
        name="live",
        summary="Follow numbers, lists and single objects of a namespace in one stream",
        problems=(
            Code.JOB_NOT_FOUND,
            Code.OPERATION_NOT_FOUND,
            Code.SCHEDULE_NOT_FOUND,
            Code.WORKER_NOT_FOUND,
            Code.RUN_NOT_FOUND,
            Code.CONFLICT,
            Code.UNSUPPORTED,
        ),
    ),
)
