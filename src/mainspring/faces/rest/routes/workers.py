"""Routes about connected workers."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from mainspring.api import workers
from mainspring.api.errors import PAGE_LIMIT, Code
from mainspring.faces.rest.registry import N, Route
from mainspring.faces.rest.replies import Items


class WorkersQuery(msgspec.Struct, kw_only=True):
    """The place in a list of workers."""

    namespace: str
    cursor: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)] = 100


class WorkerId(msgspec.Struct, kw_only=True):
    """A worker."""

    namespace: str
    worker: str


def _drain(verb: str, summary: str) -> Route:
    return Route(
        method="POST",
        path=f"{W}/{verb}",
        request=workers.Drain,
        inputs=WorkerId,
        make=lambda given: workers.Drain(namespace=given.namespace, worker=given.worker, draining=verb == "drain"),
        answer=workers.WorkerInfo,
        status=202,
        summary=summary,
        name=f"workers_{verb}",
        problems=(Code.WORKER_NOT_FOUND,),
    )


W: Final = f"{N}/workers/{{worker}}"

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/workers",
        request=workers.List,
        inputs=WorkersQuery,
        make=lambda query: workers.List(namespace=query.namespace, limit=query.limit, after=query.cursor),
        answer=Items[workers.WorkerInfo],
        reply=lambda listed, _: Items(listed.workers, listed.next),
        summary="List the workers at all nodes",
    ),
    Route(
        method="GET",
        path=W,
        request=workers.Show,
        answer=workers.WorkerDetails,
        summary="Show a worker",
        problems=(Code.WORKER_NOT_FOUND,),
    ),
    _drain("drain", "Give a worker no more jobs of tasks"),
    _drain("undrain", "Give a worker jobs again"),
    Route(
        method="POST",
        path=f"{W}/stop",
        request=workers.Stop,
        inputs=WorkerId,
        make=lambda given: workers.Stop(namespace=given.namespace, worker=given.worker),
        answer=workers.WorkerInfo,
        status=202,
        summary="Ask a worker to stop once its jobs have ended",
        problems=(Code.WORKER_NOT_FOUND, Code.CONFLICT),
    ),
)
