"""Routes about one namespace: its status, and the nodes that work for it."""

from __future__ import annotations

from typing import Final

from mainspring.api import namespaces
from mainspring.api.errors import Code
from mainspring.faces.rest.registry import N, Route
from mainspring.faces.rest.replies import Items

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/status",
        request=namespaces.Status,
        answer=namespaces.NamespaceStatus,
        summary="Show the numbers of a namespace, with its failing functions and its oldest waiting job",
    ),
    Route(
        method="GET",
        path=f"{N}/nodes",
        request=namespaces.ListNodes,
        cursor="after",
        answer=Items[namespaces.NamespaceNode],
        items="nodes",
        summary="List the nodes with the numbers of a namespace",
    ),
    Route(
        method="GET",
        path=f"{N}/nodes/{{node}}",
        request=namespaces.ShowNode,
        answer=namespaces.NamespaceNode,
        summary="Show a node with the numbers of a namespace",
        problems=(Code.NODE_NOT_FOUND, Code.AMBIGUOUS_NODE),
    ),
)
