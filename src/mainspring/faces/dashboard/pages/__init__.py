"""All pages and what can be done on them, by subject, in the order of the menu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.faces.dashboard.pages import (
    audit,
    functions,
    job,
    jobs,
    namespaces,
    nodes,
    operations,
    overview,
    schedule_form,
    schedules,
    tokens,
    workers,
    workflows,
)

if TYPE_CHECKING:
    from mainspring.faces.dashboard.actions import Action
    from mainspring.faces.dashboard.registry import Page

PAGES: Final[tuple[Page, ...]] = (
    *overview.PAGES,
    *jobs.PAGES,
    *job.PAGES,
    *functions.PAGES,
    *schedules.PAGES,
    *schedule_form.PAGES,
    *workflows.PAGES,
    *workers.PAGES,
    *nodes.PAGES,
    *operations.PAGES,
    *audit.PAGES,
    *tokens.PAGES,
    *namespaces.PAGES,
)
ACTIONS: Final[tuple[Action, ...]] = (
    *job.ACTIONS,
    *functions.ACTIONS,
    *schedules.ACTIONS,
    *workflows.ACTIONS,
    *workers.ACTIONS,
    *nodes.ACTIONS,
    *operations.ACTIONS,
    *audit.ACTIONS,
    *tokens.ACTIONS,
)
