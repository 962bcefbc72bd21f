"""The pages of listeners: their list, and a listener with its deliveries. The code of Apps adds and changes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainspring.api.jobs import JobInfo
from mainspring.api.listeners import ListenerInfo, PauseListener, RemoveListener, ResumeListener
from mainspring.api.versions import DELIVERIES, SUBSCRIPTIONS, version_of
from mainspring.faces.dashboard.actions import act
from mainspring.faces.dashboard.calls import Items, Problem
from mainspring.faces.dashboard.visit import Page
from mainspring.faces.web.exchange import N

if TYPE_CHECKING:
    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = SUBSCRIPTIONS
LISTENERS: Final = f"{N}/listeners"
LISTENER: Final = f"{LISTENERS}/{{name}}"
PAUSE: Final = act(
    PauseListener, label="Pause", done="The listener is paused: its events wait.", needs="events", fields=("reason",)
)
RESUME: Final = act(
    ResumeListener, label="Resume", done="The listener goes on, with the events of the pause.", needs="events"
)
REMOVE: Final = act(
    RemoveListener,
    label="Remove",
    done="The listener is removed.",
    needs="events",
    then=lambda visit, _, __: visit.url("/listeners"),
    warning="Events that wait for it are not delivered. Code that runs and has it adds it again, for later events.",
)
ACTIONS: Final = (PAUSE, RESUME, REMOVE)


async def listeners(visit: Visit) -> Response:
    """Show all listeners."""
    cursor = visit.field("cursor")
    listed = await visit.calls.get(Items[ListenerInfo], LISTENERS, query={"cursor": cursor, "limit": ROWS})
    version = "" if cursor else version_of(listed.items)
    return visit.render("listeners.html", listed=listed, rows=ROWS, version=version)


async def listener(visit: Visit) -> Response:
    """Show a listener with its newest deliveries, and the newest one that was given up."""
    parameters = dict(visit.parameters)
    query = {"function": parameters["name"], "limit": DELIVERIES}
    shown, deliveries, failed = await asyncio.gather(
        visit.calls.get(ListenerInfo, LISTENER, parameters),
        visit.optional(visit.calls.get(Items[JobInfo], f"{N}/jobs", query=query), "deliveries"),
        visit.optional(
            visit.calls.get(Items[JobInfo], f"{N}/jobs", query={**query, "state": "failed", "limit": 1}), "failed"
        ),
    )
    listed = [] if isinstance(deliveries, Problem) else deliveries.items
    actions = (RESUME if shown.paused else PAUSE, REMOVE)
    return visit.render(
        "listener.html",
        listener=shown,
        deliveries=listed,
        last_failure=None if isinstance(failed, Problem) or not failed.items else failed.items[0],
        actions=[one for one in actions if visit.offers(one, shown.function)],
        version=version_of([shown], listed),
    )


PAGES: Final = (
    Page(path="/listeners", handler=listeners, menu="Listeners", needs="events"),
    Page(path="/listeners/{name}", handler=listener, needs="events"),
)
