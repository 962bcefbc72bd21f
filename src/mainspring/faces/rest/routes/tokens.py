"""Routes about tokens, the caller's own rights, the audit and marks."""

from __future__ import annotations

from typing import Final

from mainspring.api import audit, tokens
from mainspring.api.errors import Code
from mainspring.faces.rest.registry import ROOT, N, Route
from mainspring.faces.rest.replies import Items

ONE: Final = (Code.TOKEN_NOT_FOUND, Code.CONFLICT, Code.UNSUPPORTED)

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{ROOT}/tokens",
        request=tokens.List,
        cursor="after",
        answer=Items[tokens.TokenInfo],
        items="tokens",
        summary="List the tokens that the caller may revoke",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="POST",
        path=f"{ROOT}/tokens",
        request=tokens.Create,
        answer=tokens.CreatedToken,
        shows_secret=True,
        status=201,
        summary="Create a token, which is shown this once",
        problems=(Code.UNSUPPORTED,),
        example={"name": "ci", "grants": [{"role": "developer", "functions": ["pay*"]}]},
    ),
    Route(
        method="GET",
        path=f"{ROOT}/tokens/{{token}}",
        request=tokens.Show,
        answer=tokens.TokenInfo,
        summary="Show a token without its secret",
        problems=ONE,
    ),
    Route(
        method="DELETE",
        path=f"{ROOT}/tokens/{{token}}",
        request=tokens.Revoke,
        answer=None,
        summary="Revoke a token, on all nodes within 3 seconds",
        problems=ONE,
    ),
    Route(
        method="POST",
        path=f"{ROOT}/tokens/{{token}}/rotate",
        request=tokens.Rotate,
        answer=tokens.CreatedToken,
        shows_secret=True,
        summary="Give a token a new secret, which is shown this once",
        problems=ONE,
    ),
    Route(
        method="GET",
        path=f"{ROOT}/whoami",
        request=tokens.WhoAmI,
        answer=tokens.Identity,
        summary="Show the caller's own name and rights",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/roles",
        request=tokens.ListRoles,
        answer=Items[tokens.RoleInfo],
        items="roles",
        summary="List the roles, the weakest first",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/namespaces",
        request=tokens.ListNamespaces,
        cursor="after",
        answer=Items[str],
        items="namespaces",
        summary="List the namespaces in which the caller has rights",
    ),
    Route(
        method="GET",
        path=f"{N}/audit",
        request=audit.ListActs,
        cursor="after",
        answer=Items[audit.ActInfo],
        items="acts",
        summary="List who did what in a namespace, or with `everywhere` in all, newest first",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="GET",
        path=f"{N}/marks",
        request=audit.ListMarks,
        cursor="after",
        answer=Items[audit.MarkInfo],
        items="marks",
        summary="List marks, newest first",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="POST",
        path=f"{N}/marks",
        request=audit.AddMark,
        answer=audit.MarkInfo,
        status=201,
        summary="Add a mark, such as a deployment",
        problems=(Code.UNSUPPORTED,),
        example={"label": "web 4.2"},
    ),
)
