"""Routes about tokens, the caller's own rights, the audit and marks."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - msgspec reads the annotation
from typing import Annotated, Final

import msgspec

from mainspring.api import audit, tokens
from mainspring.api.errors import PAGE_LIMIT, ApiError, Code
from mainspring.faces.rest.registry import ROOT, N, Route
from mainspring.faces.rest.replies import Items

Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)]


class Page(msgspec.Struct, kw_only=True):
    """The place in a list."""

    cursor: str | None = None
    limit: Limit = 100


class TokenInput(msgspec.Struct, kw_only=True):
    """A new token."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=tokens.NAME_LIMIT)]
    grants: Annotated[list[tokens.GrantSpec], msgspec.Meta(min_length=1, max_length=tokens.MOST_GRANTS)]
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class TokenName(msgspec.Struct, kw_only=True):
    """A token: its id; or its name, if no other token has it."""

    token: str


class Nothing(msgspec.Struct, kw_only=True):
    """No inputs."""


class ActsQuery(Page, kw_only=True):
    """A filter of the acts in a namespace."""

    namespace: str
    who: str | None = None
    what: str | None = None


class MarksQuery(Page, kw_only=True):
    """The place in the marks of a namespace."""

    namespace: str


class MarkInput(msgspec.Struct, kw_only=True):
    """A new mark."""

    namespace: str
    label: Annotated[str, msgspec.Meta(min_length=1, max_length=audit.LABEL_LIMIT)]


def _number(cursor: str | None) -> int | None:
    """Return the number of an act in a cursor."""
    if cursor is None:
        return None
    if not cursor.isdecimal() or len(cursor) > 18:
        raise ApiError(Code.INVALID, "the cursor is no place in this list: take it from next in the previous page")
    return int(cursor)


def _acts(given: ActsQuery) -> audit.ListActs:
    after = _number(given.cursor)
    return audit.ListActs(namespace=given.namespace, who=given.who, what=given.what, limit=given.limit, after=after)


def _acts_page(listed: audit.Listed, _: object) -> Items[audit.ActInfo]:
    return Items(listed.acts, None if listed.next is None else str(listed.next), listed.searched_to)


def _marks_page(listed: audit.Marks, _: object) -> Items[audit.MarkInfo]:
    return Items(listed.marks, None if listed.next is None else str(listed.next))


ONE: Final = (Code.TOKEN_NOT_FOUND, Code.CONFLICT, Code.UNSUPPORTED)

ROUTES: Final = (
    Route(
        method="GET",
        path=f"{ROOT}/tokens",
        request=tokens.List,
        inputs=Page,
        make=lambda given: tokens.List(limit=given.limit, after=given.cursor),
        answer=Items[tokens.TokenInfo],
        reply=lambda listed, _: Items(listed.tokens, listed.next),
        summary="List the tokens that the caller may revoke",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="POST",
        path=f"{ROOT}/tokens",
        request=tokens.Create,
        inputs=TokenInput,
        make=lambda given: tokens.Create(given.name, given.grants, given.expires_at),
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
        inputs=TokenName,
        make=lambda given: tokens.Show(given.token),
        answer=tokens.TokenInfo,
        summary="Show a token without its secret",
        problems=ONE,
    ),
    Route(
        method="DELETE",
        path=f"{ROOT}/tokens/{{token}}",
        request=tokens.Revoke,
        inputs=TokenName,
        make=lambda given: tokens.Revoke(given.token),
        answer=None,
        reply=lambda _, __: None,
        summary="Revoke a token, on all nodes within 3 seconds",
        problems=ONE,
    ),
    Route(
        method="POST",
        path=f"{ROOT}/tokens/{{token}}/rotate",
        request=tokens.Rotate,
        inputs=TokenName,
        make=lambda given: tokens.Rotate(given.token),
        answer=tokens.CreatedToken,
        shows_secret=True,
        summary="Give a token a new secret, which is shown this once",
        problems=ONE,
    ),
    Route(
        method="GET",
        path=f"{ROOT}/whoami",
        request=tokens.WhoAmI,
        inputs=Nothing,
        make=lambda _: tokens.WhoAmI(),
        answer=tokens.Identity,
        summary="Show the caller's own name and rights",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/roles",
        request=tokens.ListRoles,
        inputs=Nothing,
        make=lambda _: tokens.ListRoles(),
        answer=Items[tokens.RoleInfo],
        reply=lambda listed, _: Items(listed.roles),
        summary="List the roles, the weakest first",
    ),
    Route(
        method="GET",
        path=f"{ROOT}/namespaces",
        request=tokens.ListNamespaces,
        inputs=Nothing,
        make=lambda _: tokens.ListNamespaces(),
        answer=Items[str],
        reply=lambda listed, _: Items(listed.namespaces),
        summary="List the namespaces in which the caller has rights",
    ),
    Route(
        method="GET",
        path=f"{N}/audit",
        request=audit.ListActs,
        inputs=ActsQuery,
        make=_acts,
        answer=Items[audit.ActInfo],
        reply=_acts_page,
        summary="List who did what in a namespace, newest first",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="GET",
        path=f"{N}/marks",
        request=audit.ListMarks,
        inputs=MarksQuery,
        make=lambda given: audit.ListMarks(namespace=given.namespace, limit=given.limit, after=_number(given.cursor)),
        answer=Items[audit.MarkInfo],
        reply=_marks_page,
        summary="List marks, newest first",
        problems=(Code.UNSUPPORTED,),
    ),
    Route(
        method="POST",
        path=f"{N}/marks",
        request=audit.AddMark,
        inputs=MarkInput,
        make=lambda given: audit.AddMark(given.label, namespace=given.namespace),
        answer=audit.MarkInfo,
        status=201,
        summary="Add a mark, such as a deployment",
        problems=(Code.UNSUPPORTED,),
        example={"label": "web 4.2"},
    ),
)
