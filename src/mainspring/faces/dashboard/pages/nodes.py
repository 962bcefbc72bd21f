"""The page of the nodes that share the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.access.roles import Permission
from mainspring.api.nodes import NodeInfo
from mainspring.faces.dashboard.actions import Action
from mainspring.faces.dashboard.calls import ROOT, Items
from mainspring.faces.dashboard.registry import Page

if TYPE_CHECKING:
    from mainspring.faces.dashboard.visit import Response, Visit

DRAIN: Final = Action(
    operation="nodes_drain",
    label="Drain",
    done="The node takes no more jobs.",
    path=f"{ROOT}/nodes/{{node}}/drain",
    permission=Permission.ADMIN,
    command="nodes drain {node}",
)
UNDRAIN: Final = Action(
    operation="nodes_undrain",
    label="Let it work again",
    done="The node takes jobs again.",
    path=f"{ROOT}/nodes/{{node}}/undrain",
    permission=Permission.ADMIN,
    command="nodes drain {node} --off",
)
ACTIONS: Final = (DRAIN, UNDRAIN)


async def nodes(visit: Visit) -> Response:
    """Show all nodes."""
    listed = await visit.calls.get(Items[NodeInfo], f"{ROOT}/nodes")

    def actions_of(node: NodeInfo) -> list[Action]:
        return [UNDRAIN if node.state == "draining" else DRAIN] if visit.may(Permission.ADMIN) else []

    return visit.render("nodes.html", nodes=listed.items, actions_of=actions_of)


PAGES: Final = (Page(path="/nodes", handler=nodes, menu="Nodes"),)
