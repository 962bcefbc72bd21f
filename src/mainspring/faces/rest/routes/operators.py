"""Routes for operators: namespaces, nodes, connected workers, operations on many jobs, and tokens with the audit.

The routes about tokens include the caller's own rights, and marks.
"""

from __future__ import annotations

from typing import Final

from mainspring.api import access, namespaces, nodes, operations
from mainspring.api.request import Code, Page
from mainspring.faces.rest.registry import ROOT, N, Route

NAMESPACE_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/nodes",
        request=namespaces.ListNamespaceNodes,
        answer=Page[namespaces.NamespaceNode],
        summary="List the nodes with the numbers of a namespace",
    ),
)

NODE_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{ROOT}/nodes",
        request=nodes.ListNodes,
        answer=Page[nodes.NodeInfo],
        summary="List the nodes that share the store",
    ),
)


WORKER_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/workers",
        request=nodes.ListWorkers,
        answer=Page[nodes.WorkerInfo],
        summary="List the workers at all nodes",
    ),
)


OPERATION_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/operations",
        request=operations.ListOperations,
        answer=Page[operations.OperationInfo],
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
        answer=Page[operations.TouchedJob],
        summary="List the jobs of an operation with their outcomes",
        problems=(Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
)

TOKEN_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{ROOT}/tokens",
        request=access.ListTokens,
        answer=Page[access.TokenInfo],
        summary="List the tokens that the caller may revoke",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="GET",
        path=f"{ROOT}/roles",
        request=access.ListRoles,
        answer=Page[access.RoleInfo],
        summary="List the roles, the weakest first",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/namespaces",
        request=access.ListNamespaces,
        answer=Page[str],
        summary="List the namespaces in which the caller has rights",
    ),
    Route(
        method="GET",
        path=f"{N}/audit",
        request=access.ListActs,
        answer=Page[access.ActInfo],
        summary="List who did what in a namespace, or with `everywhere` in all, newest first",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="GET",
        path=f"{N}/marks",
        request=access.ListMarks,
        answer=Page[access.MarkInfo],
        summary="List marks, newest first",
        problems=(Code.UNSUPPORTED,),
    ),
)
