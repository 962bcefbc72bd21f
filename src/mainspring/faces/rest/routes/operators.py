"""Routes for operators: namespaces, nodes, connected workers, operations on many jobs, and tokens with the audit.

The routes about tokens include the caller's own rights, and marks.
"""

from __future__ import annotations

from typing import Final

from mainspring.api import access, namespaces, nodes, operations
from mainspring.api.request import Code
from mainspring.faces.rest.registry import ROOT, N, Route, path_in
from mainspring.faces.rest.replies import Items, Reply

NAMESPACE_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{N}/status",
        request=namespaces.ShowNamespace,
        answer=namespaces.NamespaceStatus,
        summary="Show the numbers of a namespace, with its failing functions and its oldest waiting job",
    ),
    Route(
        method="GET",
        path=f"{N}/nodes",
        request=namespaces.ListNamespaceNodes,
        cursor="after",
        answer=Items[namespaces.NamespaceNode],
        items="nodes",
        summary="List the nodes with the numbers of a namespace",
    ),
    Route(
        method="GET",
        path=f"{N}/nodes/{{node}}",
        request=namespaces.ShowNamespaceNode,
        answer=namespaces.NamespaceNode,
        summary="Show a node with the numbers of a namespace",
        problems=(Code.NODE_NOT_FOUND, Code.AMBIGUOUS_NODE),
    ),
)

ONE_NODE: Final = (Code.NODE_NOT_FOUND, Code.AMBIGUOUS_NODE)

NODE_ROUTES: Final = (
    Route(
        method="GET",
        path=f"{ROOT}/status",
        request=nodes.ShowStatus,
        answer=nodes.NodeStatus,
        summary="Show the node that answers",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/nodes",
        request=nodes.ListNodes,
        cursor="after",
        answer=Items[nodes.NodeInfo],
        items="nodes",
        summary="List the nodes that share the store",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/nodes/{{node}}",
        request=nodes.ShowNode,
        answer=nodes.NodeInfo,
        summary="Show a node",
        problems=ONE_NODE,
    ),
    Route(
        method="POST",
        path=f"{ROOT}/nodes/{{node}}/drain",
        request=nodes.DrainNode,
        fixed={"draining": True},
        answer=nodes.NodeInfo,
        summary="Let a node take no more jobs",
        problems=(*ONE_NODE, Code.ONLY_NODE),
    ),
    Route(
        method="POST",
        path=f"{ROOT}/nodes/{{node}}/undrain",
        request=nodes.DrainNode,
        fixed={"draining": False},
        answer=nodes.NodeInfo,
        summary="Let a node take jobs again",
        name="nodes_undrain",
        problems=(*ONE_NODE, Code.ONLY_NODE),
    ),
    Route(
        method="DELETE",
        path=f"{ROOT}/nodes/{{node}}",
        request=nodes.RemoveNode,
        answer=None,
        summary="Remove a node",
        problems=(*ONE_NODE, Code.NODE_LIVES, Code.ONLY_NODE),
    ),
)


def _drain(verb: str, summary: str) -> Route:
    return Route(
        method="POST",
        path=f"{W}/{verb}",
        request=nodes.DrainWorker,
        fixed={"draining": verb == "drain"},
        answer=nodes.WorkerInfo,
        status=202,
        summary=summary,
        name=f"workers_{verb}",
        problems=(Code.WORKER_NOT_FOUND,),
    )


W: Final = f"{N}/workers/{{worker}}"

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
    Route(
        method="GET",
        path=W,
        request=nodes.ShowWorker,
        answer=nodes.WorkerDetails,
        summary="Show a worker",
        problems=(Code.WORKER_NOT_FOUND,),
    ),
    _drain("drain", "Give a worker no more jobs of tasks"),
    _drain("undrain", "Give a worker jobs again"),
    Route(
        method="POST",
        path=f"{W}/stop",
        request=nodes.StopWorker,
        answer=nodes.WorkerInfo,
        status=202,
        summary="Ask a worker to stop once its jobs have ended",
        problems=(Code.WORKER_NOT_FOUND, Code.CONFLICT),
    ),
)


def _started(started: operations.StartedOperation, request: operations.StartOperation) -> object:
    if started.id is None:
        return started
    return Reply(started, 202, {"Location": path_in(request.namespace, "operations", started.id)})


OPERATION_ROUTES: Final = (
    Route(
        method="POST",
        path=f"{N}/operations",
        request=operations.StartOperation,
        answer=operations.StartedOperation,
        reply=_started,
        summary="Cancel, retry, delete or reschedule many jobs",
        others={202: "The operation has begun"},
        problems=(Code.CONFLICT, Code.RUN_NOT_FOUND, Code.UNSUPPORTED),
        example={"action": "retry", "filter": {"state": "failed", "function": "pay"}, "reason": "the bank is back"},
    ),
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
    Route(
        method="POST",
        path=f"{N}/operations/{{id}}/abort",
        request=operations.AbortOperation,
        answer=operations.OperationInfo,
        summary="End an operation early",
        problems=(Code.OPERATION_NOT_FOUND, Code.UNSUPPORTED),
    ),
)

ONE_TOKEN: Final = (Code.TOKEN_NOT_FOUND, Code.CONFLICT, Code.UNSUPPORTED)

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
        method="POST",
        path=f"{ROOT}/tokens",
        request=access.CreateToken,
        answer=access.CreatedToken,
        shows_secret=True,
        status=201,
        summary="Create a token, which is shown this once",
        problems=(Code.UNSUPPORTED,),
        example={"name": "ci", "grants": [{"role": "developer", "functions": ["pay*"]}]},
    ),
    Route(
        method="GET",
        path=f"{ROOT}/tokens/{{token}}",
        request=access.ShowToken,
        answer=access.TokenInfo,
        summary="Show a token without its secret",
        problems=ONE_TOKEN,
    ),
    Route(
        method="DELETE",
        path=f"{ROOT}/tokens/{{token}}",
        request=access.RevokeToken,
        answer=None,
        summary="Revoke a token, on all nodes within 3 seconds",
        problems=ONE_TOKEN,
    ),
    Route(
        method="POST",
        path=f"{ROOT}/tokens/{{token}}/rotate",
        request=access.RotateToken,
        answer=access.CreatedToken,
        shows_secret=True,
        summary="Give a token a new secret, which is shown this once",
        problems=ONE_TOKEN,
    ),
    Route(
        method="GET",
        path=f"{ROOT}/whoami",
        request=access.WhoAmI,
        answer=access.Identity,
        summary="Show the caller's own name and rights",
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
    Route(
        method="POST",
        path=f"{N}/marks",
        request=access.AddMark,
        answer=access.MarkInfo,
        status=201,
        summary="Add a mark, such as a deployment",
        problems=(Code.UNSUPPORTED,),
        example={"label": "web 4.2"},
    ),
)
