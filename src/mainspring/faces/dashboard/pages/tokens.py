"""The page of tokens: create, rotate and revoke them. A secret is shown once, in the answer to its form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.tokens import CreatedToken, TokenInfo
from mainspring.faces.dashboard.actions import Action, Field, read_field
from mainspring.faces.dashboard.calls import ROOT, Items
from mainspring.faces.dashboard.registry import Page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.faces.dashboard.visit import Response, Visit

ROWS: Final = 100
PATH: Final = "/settings/tokens"
TOKENS: Final = f"{ROOT}/tokens"
ROLES: Final = (
    ("viewer", "viewer: sees everything but payloads"),
    ("operator", "operator: also cancels, retries, pauses, triggers"),
    ("developer", "developer: also submits jobs, changes schedules and limits"),
    ("admin", "admin: also nodes, tokens, audit"),
)
FIELDS: Final = (
    Field(name="name", label="Name", required=True, longest=100, hint="for whom or what it is"),
    Field(name="role", label="Role", kind="choice", choices=ROLES),
    Field(name="namespace", label="Namespace", hint="empty: default; *: all"),
    Field(name="functions", label="Functions", kind="names", hint="names or beginnings such as pay*; empty: all"),
    Field(name="payloads", label="May see arguments, results and logs", kind="flag"),
    Field(name="expires_at", label="Expires", kind="time", hint="empty: never"),
)
REVOKE: Final = Action(
    operation="tokens_revoke",
    label="Revoke",
    done="The token has ended here, and ends at all nodes within 3 seconds, with everything that was signed in with it.",
    path=f"{TOKENS}/{{token}}",
    method="DELETE",
    permission=Permission.ADMIN,
    command="tokens revoke {token}",
    warning="Everything that uses the token is refused from then on.",
)
ACTIONS: Final = (REVOKE,)


async def tokens(visit: Visit) -> Response:
    """Show all tokens."""
    return await _page(visit, None)


async def change(visit: Visit, form: Mapping[str, str]) -> Response:
    """Create a token, or give one a new secret, and show the secret."""
    if token := form.get("rotate"):
        answer = await visit.calls.send("POST", f"{TOKENS}/{{token}}/rotate", {"token": token}, body={})
    else:
        values = {one.name: read_field(one, form.get(one.name, "")) for one in FIELDS}
        grant: dict[str, Any] = {"role": values["role"], "payloads": bool(values["payloads"])}
        grant |= {name: values[name] for name in ("namespace", "functions") if values[name]}
        body = {"name": values["name"], "grants": [grant], "expires_at": values["expires_at"]}
        answer = await visit.calls.send("POST", TOKENS, body=body)
    return await _page(visit, msgspec.json.decode(answer.body, type=CreatedToken))


async def _page(visit: Visit, created: CreatedToken | None) -> Response:
    query = {"cursor": visit.field("cursor"), "limit": ROWS}
    listed = await visit.calls.get(Items[TokenInfo], TOKENS, query=query)
    return visit.render("tokens.html", listed=listed, rows=ROWS, fields=FIELDS, created=created, revoke=REVOKE)


PAGES: Final = (Page(path=PATH, handler=tokens, post=change, menu="Tokens"),)
