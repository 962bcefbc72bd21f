"""Options of a node that decide who may connect: tokens, and proxies that sign users in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Group, Parameter

from mainspring.access.proxy import ProxyRule, parse_networks, parse_rules, parse_user_header
from mainspring.cli.node_values import mode_text, socket_mode
from mainspring.cli.options import flag, option, reading

PORTS_GROUP = Group("Ports", sort_key=2)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """The options of `serve` and `run` that decide who may connect."""

    trust_proxy: Annotated[
        tuple[Any, ...],
        option(
            "--trust-proxy",
            "The addresses of proxies that sign users in to the HTTP API by --proxy-user-header and X-Forwarded-Groups, several"
            " with commas. The proxies have to remove these headers from requests.",
            metavar="CIDR",
            converter=reading(parse_networks),
            n_tokens=1,
            negative="",
            group=PORTS_GROUP,
            show_default=False,
        ),
    ] = ()
    proxy_role: Annotated[
        tuple[ProxyRule, ...],
        option(
            "--proxy-role",
            "The roles of the users of these proxies, several with commas: ann@example.com=admin, *@example.com=viewer,"
            " group:ops=operator@NAMESPACE+payloads.",
            metavar="NAME=ROLE",
            converter=reading(parse_rules),
            n_tokens=1,
            negative="",
            group=PORTS_GROUP,
            show_default=False,
        ),
    ] = ()
    proxy_user_header: Annotated[
        str,
        option(
            "--proxy-user-header",
            "The only header that names the user of these proxies. Choose one whose value users cannot choose themselves.",
            metavar="NAME",
            converter=reading(parse_user_header),
            n_tokens=1,
            group=PORTS_GROUP,
        ),
    ] = "X-Forwarded-Email"
    socket_mode: Annotated[
        int | None,
        option(
            "--socket-mode",
            "The mode of Unix sockets: 0600, 0660, or 0666 for every user of this machine. Connections to them need no token.",
            metavar="MODE",
            converter=reading(socket_mode),
            n_tokens=1,
            group=PORTS_GROUP,
            show_default=mode_text,
        ),
    ] = None
    require_token: Annotated[
        bool,
        flag(
            "--require-token",
            "Demand a token of workers, clients and commands: MAINSPRING_TOKEN. Connections over a Unix socket and with client"
            " certificates need none; plain Gearman connections without either are refused.",
            group=PORTS_GROUP,
        ),
    ] = False
    allow_shutdown: Annotated[
        bool,
        flag(
            "--allow-shutdown",
            "Accept Gearman's command shutdown from every connection to a loopback address without a token. Without this option"
            " it needs a Unix socket.",
            group=PORTS_GROUP,
        ),
    ] = False


DEFAULT_ACCESS: Final = AccessOptions()
