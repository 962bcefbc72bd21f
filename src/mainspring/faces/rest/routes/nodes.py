"""Routes about nodes."""

from __future__ import annotations

from typing import Final

from mainspring.api import nodes, status
from mainspring.api.errors import Code
from mainspring.faces.rest.registry import ROOT, Route
from mainspring.faces.rest.replies import Items

ONE: Final = (Code.NODE_NOT_FOUND, Code.AMBIGUOUS_NODE)

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{ROOT}/status",
        request=status.Show,
        answer=status.NodeStatus,
        summary="Show the node that answers",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/nodes",
        request=nodes.List,
        cursor="after",
        answer=Items[nodes.NodeInfo],
        items="nodes",
        summary="List the nodes that share the store",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/nodes/{{node}}",
        request=nodes.Show,
        answer=nodes.NodeInfo,
        summary="Show a node",
        problems=ONE,
    ),
    Route(
        method="POST",
        path=f"{ROOT}/nodes/{{node}}/drain",
        request=nodes.Drain,
        fixed={"draining": True},
        answer=nodes.NodeInfo,
        summary="Let a node take no more jobs",
        problems=(*ONE, Code.ONLY_NODE),
    ),
    Route(
        method="POST",
        path=f"{ROOT}/nodes/{{node}}/undrain",
        request=nodes.Drain,
        fixed={"draining": False},
        answer=nodes.NodeInfo,
        summary="Let a node take jobs again",
        name="nodes_undrain",
        problems=(*ONE, Code.ONLY_NODE),
    ),
    Route(
        method="DELETE",
        path=f"{ROOT}/nodes/{{node}}",
        request=nodes.Remove,
        answer=None,
        summary="Remove a node",
        problems=(*ONE, Code.NODE_LIVES, Code.ONLY_NODE),
    ),
)
