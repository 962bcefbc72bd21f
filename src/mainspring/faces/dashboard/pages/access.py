"""The pages about access: tokens, and the audit: who did what, to what, and why.

Tokens are created, rotated and revoked. A secret is shown once, in the answer to its form.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mainspring.access.caller import Permission
from mainspring.api.access import ActInfo, AddMark, CreatedToken, RevokeToken, TokenInfo
from mainspring.faces.dashboard.actions import Field, FormError, act, read_field
from mainspring.faces.dashboard.calls import NONE, Items, RefusedError
from mainspring.faces.dashboard.rendering import curl
from mainspring.faces.dashboard.visit import NAMESPACE, Page
from mainspring.faces.dashboard.words import duration, number
from mainspring.faces.web.exchange import ROOT, N

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainspring.faces.dashboard.visit import Response, Visit

AUDIT_ROWS: Final = 50
HANDLE: Final = "H:"
"""Handles of jobs begin so."""
ACTS: Final = 20
"""Newest acts on the page of an object."""
_LONGEST: Final = 300
"""Characters of a value."""
MOST_VALUES: Final = 3
"""Values of a new or a removed object that are not folded."""
_SECONDS: Final = frozenset(
    {
        "every",
        "jitter",
        "timeout",
        "expires",
        "misfire_after",
        "initial",
        "maximum",
        "heartbeat",
        "keep_unique",
        "delay",
        "per",
    }
)
"""Numbers of seconds, by their names."""

_PAGES: Final = {
    ("jobs", ""): "/jobs/{name}",
    ("operations", ""): "/operations/{name}",
    ("nodes", ""): "/nodes",
    ("tokens", ""): "/settings/tokens",
    ("functions", ""): "/functions/{name}",
    ("schedules", ""): "/schedules/{name}",
    ("schedules", "declare"): "",
    ("listeners", ""): "/listeners/{name}",
    ("webhooks", ""): "/webhooks/{name}",
    ("events", ""): "/events",
    ("workers", ""): "/workers/{name}",
    ("workflows", ""): "/workflows/{name}",
    ("workflows", "start"): "",
    ("workflows", "signal"): "",
    ("workflows", "remove"): "",
}
"""The pages of objects, by the two parts of an act's name; an empty second part stands for all others.

The object of ``schedules.declare`` is the name of an App, that of ``workflows.remove`` a version of a type, and those of refused
starts and signals the type and the name of the signal.
"""

MARK: Final = act(
    AddMark,
    label="Add a mark",
    done="The mark is a line in all drawings over time.",
    needs="access",
    fields=(Field(name="label", label="Label", required=True, longest=200, hint="such as: web 4.2"),),
    command="marks add {label}",
)
AUDIT_ACTIONS: Final = (MARK,)


class Change(NamedTuple):
    """A value that an act has changed, in words; empty: there was none, or is none."""

    name: str
    """Empty: the act has one value."""
    before: str
    after: str


class Changes(NamedTuple):
    """The values that an act has changed."""

    kind: str
    """``edited``; ``made`` or ``removed``, so that all values are of one side."""
    values: list[Change]


def changes_of(act: ActInfo) -> Changes:
    """Return the values that an act has changed, given to a new object, or removed with an old one."""
    kind = "edited" if act.before and act.after else "removed" if act.before else "made"
    if not isinstance(act.before or {}, dict) or not isinstance(act.after or {}, dict):
        return Changes(kind, [Change("", in_words("", act.before), in_words("", act.after))])
    before, after = act.before or {}, act.after or {}
    repeated = {"reason": act.reason, "namespace": act.namespace, "name": act.object}  # other columns have them
    found = [
        Change(_title(name), *texts)
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
        and (before.get(name) or after.get(name)) != repeated.get(name, ...)
        and any(texts := (in_words(name, before.get(name)), in_words(name, after.get(name))))
    ]
    return Changes(kind, found)


def in_words(name: str, value: Any) -> str:
    """Return a value with a name as short text for people; empty for none."""
    text = _words(name, value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _words(name: str, value: Any) -> str:
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return duration(value) if name in _SECONDS else number(int(value) if value == int(value) else value)
    if isinstance(value, list):
        return "; ".join(filter(None, (_words(name, one) for one in value)))
    if isinstance(value, dict):
        # The jitter of a schedule is a time, that of a retry a part.
        pairs = ((_title(key), _words("" if key == "jitter" else key, one)) for key, one in value.items())
        return ", ".join(f"{key} {words}" for key, words in pairs if words)
    return str(value)


def _title(name: str) -> str:
    return name.replace("_", " ")


def address_of(visit: Visit, what: str, name: str, namespace: str) -> str:
    """Return the address of the page of an act's object; empty if there is none."""
    kind, _, verb = what.partition(".")
    path = _PAGES.get((kind, verb), _PAGES.get((kind, ""), ""))
    if kind == "jobs" and not name.startswith(HANDLE):  # the function of a refused job
        path = "/functions/{name}"
    return visit.url(path, {NAMESPACE: namespace}, name=name) if path and name else ""


async def acts_on(visit: Visit, *names: str) -> Items[ActInfo] | None:
    """Return the newest acts on an object for the macro ``acts``; None without the right to see them, or without an answer.

    ``names`` are those by which callers name the object.
    """
    if not (visit.may(Permission.ADMIN) and visit.has("access")):
        return None

    async def read(name: str) -> Items[ActInfo]:
        return await visit.calls.get(Items[ActInfo], f"{N}/audit", query={"object": name, "limit": ACTS})

    lists = await asyncio.gather(*(visit.optional(read(name), "acts") for name in names))
    found = [one for one in lists if isinstance(one, Items)]
    if len(found) < len(lists):
        return None
    acts = sorted((act for one in found for act in one.items), key=lambda act: -act.number)
    following = next((one.next for one in found if one.next), None) or ("more" if len(acts) > ACTS else None)
    return Items(acts[:ACTS], following)


async def audit(visit: Visit) -> Response:
    """Show acts, newest first."""
    query: dict[str, Any] = {name: visit.field(name) for name in ("who", "what", "object", "cursor")}
    is_everywhere = visit.field("everywhere") == "true"
    query["everywhere"] = is_everywhere
    listed = await visit.calls.get(Items[ActInfo], f"{N}/audit", query={**query, "limit": AUDIT_ROWS})
    return visit.render(
        "audit.html",
        listed=listed,
        rows=AUDIT_ROWS,
        changes_of=changes_of,
        most_values=MOST_VALUES,
        address_of=partial(address_of, visit),
        is_everywhere=is_everywhere,
        may_everywhere=visit.may_everywhere(Permission.ADMIN),
        filters=[query["who"], query["what"], query["object"]],
        actions=[MARK] if visit.offers(MARK) else [],
    )


AUDIT_PAGES: Final = (Page(path="/audit", handler=audit, menu="Audit", permission=Permission.ADMIN, needs="access"),)

TOKEN_ROWS: Final = 100
TOKENS_PATH: Final = "/settings/tokens"
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
REVOKE: Final = act(
    RevokeToken,
    label="Revoke",
    done="The token has ended here, and ends at all nodes within 3 seconds, with everything that was signed in with it.",
    needs="access",
    warning="Everything that uses the token is refused from then on.",
)
TOKEN_ACTIONS: Final = (REVOKE,)


async def tokens(visit: Visit) -> Response:
    """Show all tokens."""
    return await _token_page(visit)


async def change_token(visit: Visit, form: Mapping[str, str]) -> Response:
    """Create a token, or give one a new secret, and show the secret. A refused form is shown again."""
    if token := form.get("rotate"):
        answer = await visit.calls.send("POST", ROTATED, {"token": token}, body={})
        return await _token_page(visit, msgspec.json.decode(answer.body, type=CreatedToken))
    try:
        answer = await visit.calls.send("POST", TOKENS, body=_body(form))
    except FormError as error:
        return await _token_page(visit, form=form, fault=str(error), fields={error.field: str(error)})
    except RefusedError as refused:
        if refused.status != 422:
            raise
        return await _token_page(visit, form=form, fault=refused.problem.detail, fields=refused.problem.fields)
    return await _token_page(visit, msgspec.json.decode(answer.body, type=CreatedToken))


def _body(form: Mapping[str, str]) -> dict[str, Any]:
    values = {one.name: read_field(one, form.get(one.name, "")) for one in FIELDS}
    grant: dict[str, Any] = {"role": values["role"], "payloads": bool(values["payloads"])}
    grant |= {name: values[name] for name in ("namespace", "functions") if values[name]}
    return {"name": values["name"], "grants": [grant], "expires_at": values["expires_at"]}


async def _token_page(
    visit: Visit,
    created: CreatedToken | None = None,
    *,
    form: Mapping[str, str] = NONE,
    fault: str = "",
    fields: Mapping[str, str] = NONE,
) -> Response:
    query = {"cursor": visit.field("cursor"), "limit": TOKEN_ROWS}
    listed = await visit.calls.get(Items[TokenInfo], TOKENS, query=query)
    return visit.render(
        "tokens.html",
        code=422 if fault else 200,
        listed=listed,
        rows=TOKEN_ROWS,
        fields=FIELDS,
        form=form,
        fault=fault,
        faults=fields,
        created=created,
        revoke=REVOKE,
        curl=curl("POST", visit.api_address(TOKENS), {"name": "NAME", "grants": [{"role": "viewer"}]}),
        rotate_curl=lambda token: curl("POST", visit.api_address(ROTATED, {"token": token})),
    )


TOKEN_PAGES: Final = (
    Page(
        path=TOKENS_PATH, handler=tokens, post=change_token, menu="Tokens", permission=Permission.ADMIN, needs="access"
    ),
)
