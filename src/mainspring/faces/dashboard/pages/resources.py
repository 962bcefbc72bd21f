"""The pages of resources: their list, and a resource with its holders and those that wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mainspring.access.caller import Permission
from mainspring.api.resources import DrainResource, FreeResource, ResourceDetails, ResourceInfo, TakeResource
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
TAKE: Final = act(
    TakeResource,
    label="Take away",
    done="The slots are free, and the job's attempt was stopped.",
    needs="limits",
    fields=("job", "cancel", "reason"),
    warning="The attempt of the job is stopped at once.",
    command="resources free {name}",
)
ACTIONS: Final = tuple(replace(one, of_all_functions=True) for one in (DRAIN, FREE, TAKE))
_DRAIN, _FREE, _TAKE = ACTIONS


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
        take=_TAKE.suggesting("job", [one.holder for one in shown.holds if one.kind == "job"])
        if visit.offers(_TAKE)
        else None,
    )


PAGES: Final = (
    Page(path="/resources", handler=resources, menu="Resources", permission=Permission.READ, needs="limits"),
    Page(path="/resources/{name}", handler=resource, permission=Permission.READ, needs="limits"),
)
