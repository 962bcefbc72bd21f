"""All pages and what can be done on them, by subject, in the order of the menu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.faces.dashboard.pages import (
    access,
    events,
    fleet,
    functions,
    jobs,
    listeners,
    operations,
    overview,
    resources,
    schedules,
    webhooks,
    workflows,
)

if TYPE_CHECKING:
    from mainspring.faces.dashboard.actions import Action
    from mainspring.faces.dashboard.visit import Page

PAGES: Final[tuple[Page, ...]] = (
    *overview.PAGES,
    *jobs.PAGES,
    *jobs.JOB_PAGES,
    *functions.PAGES,
    *resources.PAGES,
    *schedules.PAGES,
    *schedules.FORM_PAGES,
    *workflows.PAGES,
    *fleet.WORKER_PAGES,
    *fleet.NODE_PAGES,
    *operations.PAGES,
    *events.PAGES,
    *listeners.PAGES,
    *webhooks.PAGES,
    *access.AUDIT_PAGES,
    *access.TOKEN_PAGES,
    *fleet.NAMESPACE_PAGES,
)
ACTIONS: Final[tuple[Action, ...]] = (
    *jobs.JOB_ACTIONS,
    *functions.ACTIONS,
    *resources.ACTIONS,
    *schedules.ACTIONS,
    *workflows.ACTIONS,
    *fleet.WORKER_ACTIONS,
    *fleet.NODE_ACTIONS,
    *operations.ACTIONS,
    *events.ACTIONS,
    *listeners.ACTIONS,
    *webhooks.ACTIONS,
    *access.AUDIT_ACTIONS,
    *access.TOKEN_ACTIONS,
)
