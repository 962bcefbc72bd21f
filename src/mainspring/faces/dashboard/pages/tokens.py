"""The page of tokens: create, rotate and revoke them. A secret is shown once, in the answer to its form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.tokens import CreatedToken, TokenInfo
from mainspring.faces.dashboard.actions import Action, Field, FormError, read_field
from mainspring.faces.dashboard.calls import NONE, ROOT, Items, RefusedError
from mainspring.faces.dashboard.registry import Page
from mainspring.faces.dashboard.shell import curl

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
ROTATED: Final = f"{TOKENS}/{{token}}/rotate"
REVOKE: Final = Action(
    operation="tokens_revoke",
    label="Revoke",
    done="The token has ended here, and ends at all nodes within 3 seconds, with everything that was signed in with it.",
    path=f"{TOKENS}/{{token}}",
    needs="access",
    method="DELETE",
    permission=Permission.ADMIN,
    command="tokens revoke {token}",
    warning="Everything that uses the token is refused from then on.",
)
ACTIONS: Final = (REVOKE,)


async def tokens(visit: Visit) -> Response:
    """Show all tokens."""
    return await _page(visit)


async def change(visit: Visit, form: Mapping[str, str]) -> Response:
    """Create a token, or give one a new secret, and show the secret. A refused form is shown again."""
    if token := form.get("rotate"):
        answer = await visit.calls.send("POST", ROTATED, {"token": token}, body={})
        return await _page(visit, msgspec.json.decode(answer.body, type=CreatedToken))
    try:
        answer = await visit.calls.send("POST", TOKENS, body=_body(form))
    except FormError as error:
        return await _page(visit, form=form, fault=str(error), fields={error.field: str(error)})
    except RefusedError as refused:
        if refused.status != 422:
            raise
        return await _page(visit, form=form, fault=refused.problem.detail, fields=refused.problem.fields)
    return await _page(visit, msgspec.json.decode(answer.body, type=CreatedToken))


def _body(form: Mapping[str, str]) -> dict[str, Any]:
    values = {one.name: read_field(one, form.get(one.name, "")) for one in FIELDS}
    grant: dict[str, Any] = {"role": values["role"], "payloads": bool(values["payloads"])}
    grant |= {name: values[name] for name in ("namespace", "functions") if values[name]}
    return {"name": values["name"], "grants": [grant], "expires_at": values["expires_at"]}


async def _page(
    visit: Visit,
    created: CreatedToken | None = None,
    *,
    form: Mapping[str, str] = NONE,
    fault: str = "",
    fields: Mapping[str, str] = NONE,
) -> Response:
    query = {"cursor": visit.field("cursor"), "limit": ROWS}
    listed = await visit.calls.get(Items[TokenInfo], TOKENS, query=query)
    return visit.render(
        "tokens.html",
        code=422 if fault else 200,
        listed=listed,
        rows=ROWS,
        fields=FIELDS,
        form=form,
        fault=fault,
        faults=fields,
        created=created,
        revoke=REVOKE,
        curl=curl("POST", visit.api_address(TOKENS), {"name": "NAME", "grants": [{"role": "viewer"}]}),
        rotate_curl=lambda token: curl("POST", visit.api_address(ROTATED, {"token": token})),
    )


PAGES: Final = (
    Page(path=PATH, handler=tokens, post=change, menu="Tokens", permission=Permission.ADMIN, needs="access"),
)
