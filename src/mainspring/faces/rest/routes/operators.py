"""Routes about operations on many jobs."""

from __future__ import annotations

from typing import Final

from mainspring.api import operations
from mainspring.api.request import Code
from mainspring.faces.rest.registry import N, Route

OPERATION_ROUTES: Final = (
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
)
