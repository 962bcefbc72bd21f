"""Routes for operators: namespaces, nodes, connected workers, operations on many jobs, and tokens with the audit.

The routes about tokens include the caller's own rights, and marks.
"""

from __future__ import annotations

from typing import Final

from mainspring.api import access, namespaces, nodes, operations
from mainspring.api.request import Code
from mainspring.faces.rest.registry import ROOT, N, Route
from mainspring.faces.rest.replies import Items

NAMESPACE_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/nodes",
        request=namespaces.ListNamespaceNodes,
        cursor="after",
        answer=Items[namespaces.NamespaceNode],
        items="nodes",
        summary="List the nodes with the numbers of a namespace",
    ),
)

NODE_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{ROOT}/nodes",
        request=nodes.ListNodes,
        cursor="after",
        answer=Items[nodes.NodeInfo],
        items="nodes",
        summary="List the nodes that share the store",
    ),
)


WORKER_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/workers",
        request=nodes.ListWorkers,
        cursor="after",
        answer=Items[nodes.WorkerInfo],
        items="workers",
        summary="List the workers at all nodes",
    ),
)


OPERATION_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/operations",
        request=operations.ListOperations,
        cursor="before",
        answer=Items[operations.OperationInfo],
        items="operations",
        summary="List operations on many jobs, newest first",
        problems=(Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="GET",
        path=f"{N}/operations/{{id}}",
        request=operations.ShowOperation,
        waits=True,
        watch=lambda query: operations.FollowOperation(query.id, namespace=query.namespace),
        answer=operations.OperationDetails,
        summary="Show an operation; with wait and If-None-Match, once it has changed",
        problems=(Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
    Route(
        method="GET",
        path=f"{N}/operations/{{id}}/jobs",
        request=operations.ListOperationJobs,
        cursor="after",
        answer=Items[operations.TouchedJob],
        items="jobs",
        summary="List the jobs of an operation with their outcomes",
        problems=(Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
)

TOKEN_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{ROOT}/tokens",
        request=access.ListTokens,
        cursor="after",
        answer=Items[access.TokenInfo],
        items="tokens",
        summary="List the tokens that the caller may revoke",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="GET",
        path=f"{ROOT}/roles",
        request=access.ListRoles,
        answer=Items[access.RoleInfo],
        items="roles",
        summary="List the roles, the weakest first",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/namespaces",
        request=access.ListNamespaces,
        cursor="after",
        answer=Items[str],
        items="namespaces",
        summary="List the namespaces in which the caller has rights",
    ),
    Route(
        method="GET",
        path=f"{N}/audit",
        request=access.ListActs,
        cursor="after",
        answer=Items[access.ActInfo],
        items="acts",
        summary="List who did what in a namespace, or with `everywhere` in all, newest first",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="GET",
        path=f"{N}/marks",
        request=access.ListMarks,
        cursor="after",
        answer=Items[access.MarkInfo],
        items="marks",
        summary="List marks, newest first",
        problems=(Code.UNSUPPORTED,),
    ),
)
