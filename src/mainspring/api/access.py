"""Calls about access: tokens, the caller's own rights, and the audit with its marks.

Marks are lines in charts for events such as deployments.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.declaration import delete, get, post
from mainspring.api.request import PAGE_LIMIT, Code, Cursor, Limit, Page, Request, TokenName, Touches
from mainspring.features import Feature
from mainspring.namespaces import DEFAULT
from mainspring.sizes import (
    Text,
    Time,
    about,
    described,
)

RoleName = Literal["viewer", "operator", "developer", "admin"]
NAME_LIMIT = 100
"""Characters in the name of a token."""
MOST_GRANTS = 20
MOST_FUNCTIONS = 20
"""Patterns in one grant."""


class GrantSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A role in a namespace, optionally for some functions alone."""

    role: Annotated[RoleName, about("The role.")]
    namespace: Annotated[Text, about("A namespace, or `*` for all of them.")] = DEFAULT
    functions: Annotated[
        list[Text],
        msgspec.Meta(max_length=MOST_FUNCTIONS),
        about("Names, or beginnings of names with a final `*`; none: all functions."),
    ] = []
    payloads: Annotated[bool, about("Whether it also permits to see arguments, results and logs.")] = False


class TokenInfo(msgspec.Struct):
    """A token; docs/reference/protocol.md explains the keys."""

    id: str
    name: str
    grants: list[GrantSpec]
    created_at: str | None
    created_by: str
    expires_at: str | None
    expired: bool
    used_at: str | None
    """About when it was last used, exact to a minute."""


class CreatedToken(TokenInfo):
    """A token with its secret, which nothing shows a second time."""

    token: str


class CreateToken(Request[CreatedToken]):
    """Create a token, which is shown this once. It permits no more than the caller's."""

    permission = Permission.ADMIN
    requires = Feature.ACCESS
    touches = Touches.EACH
    in_any_namespace = True
    call = "tokens.create"
    http = post(
        "/tokens",
        status=201,
        secret=True,
        example={"name": "ci", "grants": [{"role": "developer", "functions": ["pay*"]}]},
    )
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LIMIT), about("The name of the token, for people.")]
    grants: Annotated[
        list[GrantSpec], msgspec.Meta(min_length=1, max_length=MOST_GRANTS), about("The roles of the token.")
    ]
    expires_at: Annotated[Time | None, about("When it ends. By default it does not.")] = None


class ListTokens(Request[Page[TokenInfo]]):
    """List the tokens that the caller may revoke, by their ids."""

    permission = Permission.ADMIN
    requires = Feature.ACCESS
    touches = Touches.EACH
    in_any_namespace = True
    call = "tokens.list"
    http = get("/tokens")
    cursor: Cursor = None
    limit: Limit = 100


ONE_TOKEN = (Code.CONFLICT,)
"""The problems of requests that name a token."""


class ShowToken(Request[TokenInfo]):
    """Show a token without its secret."""

    permission = Permission.ADMIN
    requires = Feature.ACCESS
    touches = Touches.TOKEN
    in_any_namespace = True
    call = "tokens.show"
    http = get("/tokens/{token}", problems=ONE_TOKEN)
    token: TokenName


class RevokeToken(Request[TokenInfo]):
    """Revoke a token, on all nodes within 3 seconds. All that was signed in with it ends, too."""

    permission = Permission.ADMIN
    requires = Feature.ACCESS
    touches = Touches.TOKEN
    in_any_namespace = True
    call = "tokens.revoke"
    http = delete("/tokens/{token}", problems=ONE_TOKEN)
    token: TokenName
    reason: Annotated[Text, described("Why, for the audit.")] = ""


class RotateToken(Request[CreatedToken]):
    """Give a token a new secret, which is shown this once, and end the old one."""

    permission = Permission.ADMIN
    requires = Feature.ACCESS
    touches = Touches.TOKEN
    in_any_namespace = True
    call = "tokens.rotate"
    http = post("/tokens/{token}/rotate", secret=True, problems=ONE_TOKEN)
    token: TokenName
    reason: Annotated[Text, described("Why, for the audit.")] = ""


class Identity(msgspec.Struct):
    """The caller, and its rights."""

    name: str
    token: str | None
    """The id of its token; None without one."""
    grants: list[GrantSpec]
    lacks: list[str] = []
    """Features that the store of the node does not have, and that are refused to everybody: words of `features.Feature`,
    such as ``workflows``, ``limits`` (also pauses of functions) and ``job_changes`` (all but cancels and plain retries)."""
    server: str | None = None
    """The address of the node's Gearman port, for the option ``--server`` of commands; None: it has none."""


class WhoAmI(Request[Identity]):
    """Show the caller's own name and rights."""

    permission = Permission.SIGNED_IN
    call = "whoami"
    http = get("/whoami")
    is_small = True


class RoleInfo(msgspec.Struct):
    """A role."""

    role: RoleName
    permits: str


class ListRoles(Request[Page[RoleInfo]]):
    """List the roles, the weakest first. Each permits all that the previous one permits."""

    permission = Permission.SIGNED_IN
    call = "roles.list"
    http = get("/roles")


class ListNamespaces(Request[Page[str]]):
    """List the namespaces in which the caller has rights.

    For a caller with rights in all of them, these are the ones with functions on this node.
    """

    permission = Permission.SIGNED_IN
    about_nodes = True
    call = "namespaces.list"
    http = get("/namespaces")
    cursor: Cursor = None
    limit: Limit = PAGE_LIMIT


LABEL_LIMIT = 200
"""Characters in the label of a mark."""
MARK = "marks.add"
"""The act of a new mark: marks are acts."""


class ActInfo(msgspec.Struct):
    """An act in the audit; docs/reference/protocol.md explains the keys."""

    number: int
    at: str | None
    what: str
    who: str
    object: str
    namespace: str | None
    token: str | None
    address: str | None
    request: str | None
    before: Any
    after: Any
    reason: str
    refused: str | None
    """Why the caller was refused; None for an act that was done."""


class ListActs(Request[Page[ActInfo]]):
    """List who did what in a namespace, or in all of them, newest first."""

    permission = Permission.ADMIN
    requires = Feature.ACCESS
    touches = Touches.EACH
    call = "audit.list"
    http = get("audit")
    only_reads = True
    everywhere: Annotated[bool, described("Acts in all namespaces, and those outside, such as on nodes.")] = False
    who: Annotated[Text | None, described("Only acts of the token or user with this name.")] = None
    what: Annotated[Text | None, described("Only acts of this kind, such as jobs.cancel.")] = None
    object: Annotated[Text | None, described("Only acts on this object, such as the handle of a job.")] = None
    cursor: Cursor = None
    limit: Limit = 100


class MarkInfo(msgspec.Struct):
    """A mark."""

    label: str
    at: str | None
    who: str


class ListMarks(Request[Page[MarkInfo]]):
    """List marks, newest first."""

    permission = Permission.READ
    requires = Feature.ACCESS
    call = "marks.list"
    http = get("marks")
    only_reads = True
    cursor: Cursor = None
    limit: Limit = 100


class AddMark(Request[MarkInfo]):
    """Add a mark, such as a deployment."""

    permission = Permission.OPERATE
    requires = Feature.ACCESS
    touches = Touches.NONE
    call = MARK
    http = post("marks", status=201, example={"label": "web 4.2"})
    label: Annotated[
        str, msgspec.Meta(min_length=1, max_length=LABEL_LIMIT), about("The text beside the line in charts.")
    ]
