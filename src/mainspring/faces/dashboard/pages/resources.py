"""The pages of resources: their list, and a resource with its holders and those that wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mainspring.access.caller import Permission
from mainspring.api.resources import DrainResource, FreeResource, ResourceDetails, ResourceInfo
from mainspring.faces.dashboard.actions import act
from mainspring.faces.dashboard.calls import Items
from mainspring.faces.dashboard.visit import Page
from mainspring.faces.web.exchange import N

if TYPE_CHECKING:
    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = 100
RESOURCES: Final = f"{N}/resources"
RESOURCE: Final = f"{RESOURCES}/{{name}}"
DRAIN: Final = act(
    DrainResource,
    label="Drain",
    done="Nobody new gets the drained slots.",
    needs="limits",
    fields=("item", "undo", "reason"),
)
FREE: Final = act(
    FreeResource,
    label="Free",
    done="The slots are free.",
    needs="limits",
    then=lambda visit, parameters, _: visit.url("/resources/{name}", name=parameters["name"]),
)
ACTIONS: Final = tuple(replace(one, of_all_functions=True) for one in (DRAIN, FREE))
_DRAIN, _FREE = ACTIONS


async def resources(visit: Visit) -> Response:
    """Show all resources."""
    query = {"cursor": visit.field("cursor"), "limit": ROWS}
    listed = await visit.calls.get(Items[ResourceInfo], RESOURCES, query=query)
    return visit.render("resources.html", listed=listed, rows=ROWS)


async def resource(visit: Visit) -> Response:
    """Show a resource."""
    shown = await visit.calls.get(ResourceDetails, RESOURCE, dict(visit.parameters))
    return visit.render(
        "resource.html",
        resource=shown,
        drain=_DRAIN if visit.offers(_DRAIN) else None,
        free=_FREE if visit.offers(_FREE) else None,
    )


PAGES: Final = (
    Page(path="/resources", handler=resources, menu="Resources", permission=Permission.READ, needs="limits"),
    Page(path="/resources/{name}", handler=resource, permission=Permission.READ, needs="limits"),
)
