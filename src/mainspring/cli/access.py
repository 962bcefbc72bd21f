"""``mainspring tokens``, ``audit``, ``marks`` and ``whoami``: who may do what, and who did what."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from mainspring.api.access import (
    AddMark,
    CreateToken,
    GrantSpec,
    ListActs,
    ListMarks,
    ListTokens,
    RevokeToken,
    RotateToken,
    ShowToken,
    WhoAmI,
)
from mainspring.api.request import PAGE_LIMIT
from mainspring.cli.calls import NOTHING, Given, items, print_answer, takes
from mainspring.cli.display import EXIT_DONE, print_fields, print_json, print_rows, print_table
from mainspring.cli.options import DURATION_OPTION, LOCAL, Json, ServerOptions, plain
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKEN_COLUMNS = ("id", "name", "grants", "created_at", "created_by", "expires_at", "used_at", "note")

Token = Annotated[str, Parameter(help="The token's id; or its name, if no other token has it.")]

tokens = App(name="tokens", help="Create, list, revoke and rotate tokens, and show who may do what.")


@tokens.command
def create(
    *,
    name: Annotated[str, plain("--name", "A name that says who or what uses the token.")],
    role: Annotated[
        Literal["viewer", "operator", "developer", "admin"],
        Parameter(
            name="--role",
            help="viewer: see everything but payloads. operator: also cancel, retry, pause and trigger. developer: also submit"
            " jobs and change schedules and limits. admin: also manage tokens and nodes, and read the audit.",
        ),
    ],
    function: Annotated[
        list[str] | None,
        plain(
            "--function",
            "Only for this function, or for those that begin so: 'pay*'; may be repeated. Without it, for all functions.",
            negative="",
        ),
    ] = None,
    payloads: Annotated[
        bool, plain("--payloads", "Also permit to see arguments, results and logs.", negative="")
    ] = False,
    expires: Annotated[
        float | None, plain("--expires", "The token is valid for this time; without it, for ever.", **DURATION_OPTION)
    ] = None,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Create a token, and print the token alone. Nothing can show it a second time: the store keeps only its SHA-256.

    It is valid in the namespace of --namespace; with --namespace '*', in all.

    EXAMPLES
      mainspring tokens create --name grafana --role viewer
      mainspring tokens create --name ci --role developer --function 'pay*' --expires 30d

    EXIT CODES
      0 created, 2 a value is wrong, or your own token does not permit as much, 3 no server
    """
    ends = None if expires is None else datetime.fromtimestamp(time.time() + expires, UTC)
    grant = GrantSpec(role, server.namespace, function or [], payloads)
    request = CreateToken(name, [grant], expires_at=ends)
    client = replace(server, namespace=DEFAULT).client()
    return print_answer(client, request, lambda token: print(token["token"]), json=json)


@tokens.command(name="list")
def list_tokens(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the tokens that you may revoke, with the times of their last use, exact to a minute."""
    found = list(items(server.client(), ListTokens()))
    print_rows(TOKEN_COLUMNS, found if json else [_shown(token) for token in found], json=json)
    return EXIT_DONE


@tokens.command
def show(token: Token, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show a token, without its secret.

    EXIT CODES
      0 shown, 3 no server, 4 no such token
    """
    return print_answer(server.client(), ShowToken(token), _print, json=json)


@tokens.command
@takes(RevokeToken)
def revoke(token: Token, /, *, given: Given = NOTHING, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Revoke a token: it is refused at once by this node, and by all others within 3 seconds.

    Browsers that signed in with it are signed out, and connections and streams that use it end.

    EXIT CODES
      0 revoked, 3 no server, 4 no such token
    """
    return print_answer(server.client(), RevokeToken(token, **given), _print, json=json)


@tokens.command
@takes(RotateToken)
def rotate(token: Token, /, *, given: Given = NOTHING, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Give a token a new secret, and print it alone. The old one ends as with revoke; name, rights and expiry stay.

    EXIT CODES
      0 rotated, 2 your own token does not permit as much, 3 no server, 4 no such token
    """
    request = RotateToken(token, **given)
    return print_answer(server.client(), request, lambda rotated: print(rotated["token"]), json=json)


def format_grants(grants: Sequence[dict[str, Any]]) -> str:
    """Return grants as text, such as ``operator in default for pay* with payloads``."""
    return ", ".join(
        f"{grant['role']} in {grant['namespace']}"
        + (f" for {' '.join(grant['functions'])}" if grant["functions"] else "")
        + (" with payloads" if grant["payloads"] else "")
        for grant in grants
    )


def _shown(token: dict[str, Any]) -> dict[str, Any]:
    return token | {"grants": format_grants(token["grants"]), "note": "expired" if token["expired"] else None}


def _print(token: dict[str, Any]) -> None:
    print_fields({name: value for name, value in _shown(token).items() if name != "expired"})


ACT_COLUMNS = ("at", "who", "what", "object", "namespace", "reason", "refused")
MARK_COLUMNS = ("at", "label", "who")

Limit = Annotated[int, Parameter(name="--limit", help="The most to list.")]

audit = App(name="audit", help="List who did what, when and why.")
marks = App(name="marks", help="Add and list marks: lines in charts, for events such as deployments.")


@audit.command(name="list")
@takes(ListActs)
def list_acts(
    *,
    given: Given = NOTHING,
    limit: Limit = 100,
    export: Annotated[
        bool, plain("--export", "Print all acts instead, one JSON object on each line.", negative="")
    ] = False,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """List who did what, newest first: acts of operators, developers and administrators, and refusals.

    Submits are not in the audit. A server keeps acts for its --audit-retention, by default 90 days. --json and --export also
    show the values before and after a change, the caller's token, its address and its request.

    EXIT CODES
      0 listed, 2 your token is not an administrator's, 3 no server
    """
    request = ListActs(limit=PAGE_LIMIT, **given)
    found = items(server.client(), request, None if export else limit)
    if export:
        for act in found:
            print_json(act)
    elif json:
        print_json(list(found))
    else:
        print_table(ACT_COLUMNS, list(found))
    return EXIT_DONE


@marks.command(name="list")
def list_marks(*, limit: Limit = 100, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List marks, newest first."""
    print_rows(MARK_COLUMNS, list(items(server.client(), ListMarks(), limit)), json=json)
    return EXIT_DONE


@marks.command
def add(
    label: Annotated[str, Parameter(help="The text of the mark, up to 200 characters.")],
    /,
    *,
    json: Json = False,
    server: ServerOptions = LOCAL,
) -> int:
    """Add a mark now, for example at a deployment.

    EXAMPLE
      mainspring marks add "web 4.2"
    """
    return print_answer(server.client(), AddMark(label), print_fields, json=json)


def whoami(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show who you are for the server, and what you may do."""
    return print_answer(server.client(), WhoAmI(), _print_identity, json=json)


def _print_identity(identity: dict[str, Any]) -> None:
    lacks = " ".join(identity.get("lacks", []))  # an older server lists nothing
    print_fields(identity | {"grants": format_grants(identity["grants"]), "lacks": lacks})
