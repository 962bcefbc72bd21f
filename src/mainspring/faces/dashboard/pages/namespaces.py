"""The page that leads to other namespaces: those in which the viewer has rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.access.roles import EVERY_NAMESPACE
from mainspring.faces.dashboard.calls import ROOT, Items
from mainspring.faces.dashboard.registry import Page
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from mainspring.faces.dashboard.visit import Response, Visit

MOST: Final = 500
"""Namespaces on the page; the form leads to the others."""


async def namespaces(visit: Visit) -> Response:
    """Show the namespaces."""
    listed = await visit.calls.get_all(Items[str], f"{ROOT}/namespaces")
    sees_all = any(grant.namespace == EVERY_NAMESPACE for grant in visit.identity.grants)
    found = sorted({*listed.items, *([DEFAULT, visit.namespace] if sees_all else [])})
    return visit.render("namespaces.html", namespaces=found[:MOST], rest=max(len(found) - MOST, 0), sees_all=sees_all)


PAGES: Final = (Page(path="/settings/namespaces", handler=namespaces),)
