"""The audit: who did what, to what, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.audit import ActInfo
from mainspring.faces.dashboard.actions import Action, Field
from mainspring.faces.dashboard.calls import Items, N
from mainspring.faces.dashboard.registry import Page

if TYPE_CHECKING:
    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = 50
ACTS: Final = 20
"""Newest acts on the page of an object."""
_LONGEST: Final = 300
"""Characters of a value."""

MARK: Final = Action(
    operation="marks_add",
    label="Add a mark",
    done="The mark is a line in all drawings over time.",
    path=f"{N}/marks",
    needs="access",
    permission=Permission.OPERATE,
    fields=(Field(name="label", label="Label", required=True, longest=200, hint="such as: web 4.2"),),
    command="marks add {label}",
)
ACTIONS: Final = (MARK,)


def brief(value: Any) -> str:
    """Return a value of an act as short text."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


async def acts_on(visit: Visit, name: str) -> Items[ActInfo] | None:
    """Return the newest acts on an object for the macro ``acts``; None without the right to see them, or without an answer."""
    if not (visit.may(Permission.ADMIN) and visit.has("access")):
        return None
    query = {"object": name, "limit": ACTS}
    found = await visit.optional(visit.calls.get(Items[ActInfo], f"{N}/audit", query=query), "acts")
    return found if isinstance(found, Items) else None


async def audit(visit: Visit) -> Response:
    """Show acts, newest first."""
    query = {name: visit.field(name) for name in ("who", "what", "object", "cursor")}
    listed = await visit.calls.get(Items[ActInfo], f"{N}/audit", query={**query, "limit": ROWS})
    return visit.render(
        "audit.html",
        listed=listed,
        rows=ROWS,
        brief=brief,
        filters=[query["who"], query["what"], query["object"]],
        actions=[MARK] if visit.offers(MARK) else [],
    )


PAGES: Final = (Page(path="/audit", handler=audit, menu="Audit", permission=Permission.ADMIN, needs="access"),)
