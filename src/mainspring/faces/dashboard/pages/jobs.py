"""The list of jobs: filters, tabs by state, and the way to a job by its handle or its unique."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.access.roles import Permission
from mainspring.api.jobs import JobInfo
from mainspring.api.namespaces import NamespaceStatus
from mainspring.faces.dashboard.actions import Field, FormError, read_field
from mainspring.faces.dashboard.calls import Items, N, Problem
from mainspring.faces.dashboard.pages import workers
from mainspring.faces.dashboard.pages.job import SUBMIT
from mainspring.faces.dashboard.registry import Page

if TYPE_CHECKING:
    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = 50
SELECTED: Final = "handle"
"""The field of the address for each selected job."""
MOST_SELECTED: Final = 100
"""Jobs of other pages that stay selected: they are in the address, which browsers send twice, once as that of the page before."""
HANDLE: Final = "H:"
"""Handles begin so."""
WORKER: Final = "worker"
FILTERS: Final = (
    Field(name="function", label="Function"),
    Field(name="unique", label="Unique"),
    Field(name="error_type", label="Error type"),
    Field(name="tag", label="Tag"),
    Field(name="key", label="Concurrency key"),
    Field(name="schedule", label="Schedule"),
    Field(name="workflow", label="Workflow"),
    Field(name="created_from", label="Created from", kind="time"),
    Field(name="created_to", label="Created before", kind="time"),
)
"""Fields of the form, and of the address. All that are given must match."""
NAMES: Final = {one.name: one.name for one in FILTERS} | {"state": "state", "error": "error_type"}
"""The fields by their names in the field "Find"."""


WAITING: Final = ("pending", "leased")
"""A job that a node has in its memory, and gives to no worker yet, waits as well."""


class Tab(NamedTuple):
    """A choice of states."""

    text: str
    states: tuple[str, ...]
    number: int | None
    """The number of jobs without any other filter; None: it is not counted."""
    live: str = ""
    """The live number that it is."""


def tabs(status: NamespaceStatus | None) -> list[Tab]:
    """Return all tabs."""
    running, waiting, scheduled, dead = (
        (None, None, None, None)
        if status is None
        else (status.jobs.running, status.jobs.waiting, status.jobs.scheduled, status.dead_letters)
    )
    return [
        Tab("all", (), None),
        Tab("in flight", (*WAITING, "running"), None),
        Tab("failed", ("failed",), dead, "dead_letters"),
        Tab("running", ("running",), running, "running"),
        Tab("waiting", WAITING, waiting, "waiting"),
        Tab("scheduled", ("scheduled",), scheduled, "scheduled"),
        Tab("succeeded", ("succeeded",), None),
        Tab("cancelled", ("cancelled",), None),
        Tab("expired", ("expired",), None),
    ]


async def jobs(visit: Visit) -> Response:
    """Show the newest jobs that match the filter in the address."""
    if text := visit.field("find"):
        return visit.redirect(await _found(visit, text))
    states = visit.fields("state")
    criteria = {one.name: read_field(one, visit.field(one.name)) for one in FILTERS}
    query = {"state": states, **criteria, "limit": ROWS, "cursor": visit.field("cursor")}
    listed, status = await asyncio.gather(
        visit.calls.get(Items[JobInfo], f"{N}/jobs", query=query),
        visit.optional(visit.calls.get(NamespaceStatus, f"{N}/status")),
    )
    is_filtered = bool(states) or any(criteria.values())
    choices = tabs(None if isinstance(status, Problem) else status)
    active = [(one.label, visit.field(one.name)) for one in FILTERS if visit.field(one.name)]
    if all(one.states != tuple(states) for one in choices):
        active.append(("State", " or ".join(states)))
    selected = list(dict.fromkeys(visit.fields(SELECTED)))
    shown = {one.handle for one in listed.items}
    busy = [] if isinstance(status, Problem) else [one.function for one in status.troubled]
    functions = sorted({*busy, *(one.function for one in listed.items)})
    elsewhere = [handle for handle in selected if handle not in shown]
    return visit.render(
        "jobs.html",
        listed=listed,
        rows=ROWS,
        submit=SUBMIT.suggesting("function", functions) if visit.offers(SUBMIT) else None,
        tabs=choices,
        states=tuple(states),
        filters=FILTERS,
        active=active,
        may_change=visit.has("operations") and visit.may(Permission.OPERATE),
        selected=set(selected),
        elsewhere=elsewhere[:MOST_SELECTED],
        here=partial(visit.here, **{SELECTED: None}),  # the script adds the jobs that are selected by then
        unselected=max(len(elsewhere) - MOST_SELECTED, 0),
        is_filtered=is_filtered,
    )


async def _found(visit: Visit, text: str) -> str:
    """Return where a text in the field "Find" leads.

    To a job by its handle or its unique, if one job alone has that; to the workers of a name or id, which show their jobs; or to
    the jobs that match ``name:value`` pairs, with those that are selected. Raises FormError.
    """
    selected = {SELECTED: visit.fields(SELECTED)[: MOST_SELECTED + ROWS]}
    if text.startswith(HANDLE):
        return visit.url("/jobs/{handle}", handle=text)
    pairs = [part.partition(":") for part in text.split()]
    names = {name for name, colon, _ in pairs if colon}
    if WORKER in names and names & NAMES.keys():
        raise FormError(f"Use {WORKER}:NAME alone: it leads to the worker, whose page has its running jobs.")
    if text.startswith(f"{WORKER}:"):
        return await workers.found(visit, text.removeprefix(f"{WORKER}:").strip())
    if all(name in NAMES and value for name, _, value in pairs):
        query: dict[str, list[str]] = {}
        for name, _, value in pairs:
            query.setdefault(NAMES[name], []).append(value)
        return visit.url("/jobs", query | selected)
    found = await visit.optional(visit.calls.get(Items[JobInfo], f"{N}/jobs", query={"unique": text, "limit": 2}))
    if isinstance(found, Items) and len(found.items) == 1:
        return visit.url("/jobs/{handle}", handle=found.items[0].handle)
    return visit.url("/jobs", {"unique": text} | selected)


PAGES: Final = (Page(path="/jobs", handler=jobs, menu="Jobs"),)
