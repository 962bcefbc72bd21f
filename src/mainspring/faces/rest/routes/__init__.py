"""All routes of the HTTP API, by subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.faces.rest.routes import declared, functions, jobs, live, operators, schedules, workflows

if TYPE_CHECKING:
    from mainspring.faces.rest.registry import Route

ROUTES: Final[tuple[Route, ...]] = (
    *declared.ROUTES,
    *schedules.FIRE_ROUTES,
    *functions.ROUTES,
    *jobs.ROUTES,
    *jobs.DATA_ROUTES,
    *jobs.SUBMISSION_ROUTES,
    *live.ROUTES,
    *jobs.LOG_ROUTES,
    *operators.OPERATION_ROUTES,
    *schedules.ROUTES,
    *workflows.ROUTES,
)
