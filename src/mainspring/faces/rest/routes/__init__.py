"""All routes of the HTTP API, by subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.faces.rest.routes import (
    fires,
    functions,
    job_data,
    job_records,
    jobs,
    live,
    logs,
    namespaces,
    nodes,
    operations,
    schedules,
    submissions,
    tokens,
    workers,
    workflows,
)

if TYPE_CHECKING:
    from mainspring.faces.rest.registry import Route

ROUTES: Final[tuple[Route, ...]] = (
    *fires.ROUTES,
    *functions.ROUTES,
    *jobs.ROUTES,
    *job_records.ROUTES,
    *job_data.ROUTES,
    *submissions.ROUTES,
    *live.ROUTES,
    *logs.ROUTES,
    *namespaces.ROUTES,
    *nodes.ROUTES,
    *operations.ROUTES,
    *schedules.ROUTES,
    *tokens.ROUTES,
    *workers.ROUTES,
    *workflows.ROUTES,
)
