"""Options of a node that decide who may connect: tokens, and proxies that sign users in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Group, Parameter

from mainspring.access.proxy import ProxyRule, parse_networks, parse_rules
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
            "The addresses of proxies that sign users in to the HTTP API by the headers X-Forwarded-Email, X-Forwarded-User and"
            " X-Forwarded-Groups, several with commas. The proxies have to remove these headers from requests.",
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
            "Accept Gearman's command shutdown from every connection to 127.0.0.1 or ::1 without a token. Without this option it"
            " needs a Unix socket.",
            group=PORTS_GROUP,
        ),
    ] = False


DEFAULT_ACCESS: Final = AccessOptions()
