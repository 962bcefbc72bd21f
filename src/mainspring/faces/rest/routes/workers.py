"""Routes about connected workers."""

from __future__ import annotations

from typing import Final

from mainspring.api import workers
from mainspring.api.errors import Code
from mainspring.faces.rest.registry import N, Route
from mainspring.faces.rest.replies import Items


def _drain(verb: str, summary: str) -> Route:
    return Route(
        method="POST",
        path=f"{W}/{verb}",
        request=workers.Drain,
        fixed={"draining": verb == "drain"},
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
        cursor="after",
        answer=Items[workers.WorkerInfo],
        items="workers",
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
        answer=workers.WorkerInfo,
        status=202,
        summary="Ask a worker to stop once its jobs have ended",
        problems=(Code.WORKER_NOT_FOUND, Code.CONFLICT),
    ),
)
