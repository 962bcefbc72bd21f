"""``mainspring tokens``: create, list, show, revoke and rotate tokens."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from mainspring.api.tokens import Create, GrantSpec, List, Revoke, Rotate, Show
from mainspring.cli.calls import items, print_answer
from mainspring.cli.display import print_fields, print_rows
from mainspring.cli.failures import EXIT_DONE
from mainspring.cli.options import DURATION_OPTION, LOCAL, Json, ServerOptions, plain
from mainspring.namespaces import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = ("id", "name", "grants", "created_at", "created_by", "expires_at", "used_at", "note")

Token = Annotated[str, Parameter(help="The token's id; or its name, if no other token has it.")]
Reason = Annotated[str, plain("--reason", "Why, for the audit.")]

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
    request = Create(name, [grant], expires_at=ends)
    client = replace(server, namespace=DEFAULT).client()
    return print_answer(client, request, lambda token: print(token["token"]), json=json)


@tokens.command(name="list")
def list_tokens(*, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """List the tokens that you may revoke, with the times of their last use, exact to a minute."""
    found = list(items(server.client(), List(), "tokens"))
    print_rows(COLUMNS, found if json else [_shown(token) for token in found], json=json)
    return EXIT_DONE


@tokens.command
def show(token: Token, /, *, json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Show a token, without its secret.

    EXIT CODES
      0 shown, 3 no server, 4 no such token
    """
    return print_answer(server.client(), Show(token), _print, json=json)


@tokens.command
def revoke(token: Token, /, *, reason: Reason = "", json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Revoke a token: it is refused at once by this node, and by all others within 3 seconds.

    Browsers that signed in with it are signed out, and connections and streams that use it end.

    EXIT CODES
      0 revoked, 3 no server, 4 no such token
    """
    return print_answer(server.client(), Revoke(token, reason), _print, json=json)


@tokens.command
def rotate(token: Token, /, *, reason: Reason = "", json: Json = False, server: ServerOptions = LOCAL) -> int:
    """Give a token a new secret, and print it alone. The old one ends as with revoke; name, rights and expiry stay.

    EXIT CODES
      0 rotated, 2 your own token does not permit as much, 3 no server, 4 no such token
    """
    request = Rotate(token, reason)
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
