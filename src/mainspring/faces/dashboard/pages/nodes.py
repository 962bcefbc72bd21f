"""The page of the nodes that share the store."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Final

from mainspring.access.roles import Permission
from mainspring.api.namespaces import NamespaceNode
from mainspring.api.nodes import NodeInfo
from mainspring.api.versions import sees_all, version_of
from mainspring.faces.dashboard.actions import Action
from mainspring.faces.dashboard.calls import ROOT, Items, N
from mainspring.faces.dashboard.drawings.fleet import Node, Recovery, by_need, fleet
from mainspring.faces.dashboard.registry import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.faces.dashboard.visit import Response, Visit

NODE: Final = f"{ROOT}/nodes/{{node}}"
DRAIN: Final = Action(
    operation="nodes_drain",
    label="Drain",
    done="The node takes no more jobs.",
    path=f"{NODE}/drain",
    permission=Permission.ADMIN,
    command="nodes drain {node}",
)
UNDRAIN: Final = Action(
    operation="nodes_undrain",
    label="Let it work again",
    done="The node takes jobs again.",
    path=f"{NODE}/undrain",
    permission=Permission.ADMIN,
    command="nodes drain {node} --off",
)
REMOVE: Final = Action(
    operation="nodes_remove",
    label="Remove",
    done="The node was removed. Other nodes run its jobs.",
    path=NODE,
    method="DELETE",
    permission=Permission.ADMIN,
    command="nodes remove {node}",
    warning="Other nodes take its jobs at once. If its process still runs, it drops them and joins again.",
)
ACTIONS: Final = (DRAIN, UNDRAIN, REMOVE)
MOST_RECOVERIES: Final = 20
MOST_NAMES: Final = 3
"""Of the nodes of one version, in a sentence."""


def shown_node(node: NodeInfo | NamespaceNode) -> Node:
    """Return what is shown of a node; those of a namespace have the numbers of that alone."""
    address, jobs, share, prefetch = None, 0, "", None
    if isinstance(node, NodeInfo):
        address, jobs, prefetch = node.address, node.jobs, node.prefetch
        share = f"{node.strategy or 'unknown'}, weight {node.weight}"
    else:
        jobs = node.running
    return Node(
        node.name,
        node.term,
        node.state,
        address,
        node.version,
        jobs,
        node.slots,
        node.lease,
        node.lease_left,
        node.started_at,
        share,
        prefetch,
    )


def recovered(nodes: Sequence[NodeInfo]) -> list[Recovery]:
    """Return the recoveries of all nodes, the newest first."""
    found = [
        Recovery(
            ended=", ".join(f"{name} term {term}" for name, term in zip(one.nodes, one.terms, strict=True)),
            jobs=one.jobs,
            at=one.at,
            by=node.name,
        )
        for node in nodes
        for one in node.recoveries
    ]
    return sorted(found, key=lambda one: dt.datetime.fromisoformat(one.at), reverse=True)[:MOST_RECOVERIES]


def different_versions(nodes: Sequence[Node | NamespaceNode]) -> str:
    """Return a sentence with the versions of the nodes and some of their names; empty if all have the same one."""
    by_version: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: (node.version, node.name)):
        by_version.setdefault(node.version, []).append(node.name)
    if len(by_version) < 2:
        return ""
    parts = [f"{version} ({_some(names)})" for version, names in by_version.items()]
    return f"Nodes have different versions: {', '.join(parts)}."


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


async def nodes(visit: Visit) -> Response:
    """Show all nodes: with all of their work, or with that of the namespace if the viewer may see no more."""
    everything, of_namespace = await asyncio.gather(
        visit.optional(visit.calls.get_all(Items[NodeInfo], f"{ROOT}/nodes")),
        visit.calls.get_all(Items[NamespaceNode], f"{N}/nodes"),
    )
    shown: Sequence[NodeInfo | NamespaceNode] = of_namespace.items
    recoveries: list[Recovery] = []
    is_whole = isinstance(everything, Items) and sees_all(everything.items)
    if isinstance(everything, Items) and is_whole:
        shown = everything.items
        recoveries = recovered(everything.items)
    rows = sorted(map(shown_node, shown), key=by_need)

    def actions_of(node: Node) -> list[Action]:
        if not (is_whole and visit.may(Permission.ADMIN)) or (len(rows) == 1 and node.lease_left is None):
            return []  # the node of a store for one node alone refuses to drain
        return [REMOVE if node.state == "dead" else UNDRAIN if node.state == "draining" else DRAIN]

    return visit.render(
        "nodes.html",
        nodes=rows,
        sees_all=is_whole,
        drawing=fleet(rows, recoveries),
        recoveries=recoveries,
        actions_of=actions_of,
        different_versions=different_versions(rows),
        version=version_of(shown) if isinstance(everything, Items) else "",
    )


PAGES: Final = (Page(path="/nodes", handler=nodes, menu="Nodes"),)
