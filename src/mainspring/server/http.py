"""The HTTP port of a node: monitoring, and the API and the pages for callers with a token or a session."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from mainspring.access.caller import Shares
from mainspring.access.proxy import TrustedProxies
from mainspring.callbacks import awaited
from mainspring.faces.dashboard.app import Dashboard, all_assets
from mainspring.faces.rest.app import RestApp
from mainspring.faces.rest.routes import ROUTES, with_document
from mainspring.faces.rest.security import Doorkeeper, Hosts, Login
from mainspring.faces.rest.streams import LIMIT, Streams
from mainspring.faces.web.exchange import LOGIN
from mainspring.faces.web.listener import HEALTH, MONITORING, HttpListener, http_app
from mainspring.features import Feature
from mainspring.server.settings import TcpAddress, is_local
from mainspring.version import version

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from mainspring.faces.web.connections import Connection
    from mainspring.server.build import Built

ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - read, not listened on
"""The address for a browser on this machine, for a port that is open on all addresses."""


def token_knower(built: Built) -> Callable[[str], Awaitable[bool]]:
    """Return a function that returns whether a text is a completion token of the node's store."""
    completions = built.node.service.completions

    async def knows(token: str) -> bool:
        if Feature.COMPLETIONS in built.api.lacks:
            return False
        return await awaited(completions.of_token(token)) is not None

    return knows


class HttpPort:
    """Serves HTTP on the connections that the node's listeners accept.

    ``places`` is the number of requests under way.
    """

    def __init__(self, built: Built, *, places: int) -> None:
        listen = built.node.settings.listen
        assert listen.http is not None
        self._access = built.access
        self._prefix = listen.http_prefix
        self._scheme = "http" if listen.tls is None else "https"
        self._streams = Streams(Shares(min(LIMIT, places * 3 // 5), "streams", built.refusals))
        hosts = [*listen.http_hosts, socket.gethostname()]
        if isinstance(listen.http, TcpAddress):
            hosts.append(listen.http.host)
        self._api = api = RestApp(
            built.api,
            with_document(ROUTES, version=version(), prefix=self._prefix),
            Doorkeeper(
                built.access,
                Hosts(hosts),
                TrustedProxies(listen.proxies, listen.proxy_rules, listen.proxy_user_header),
                prefix=self._prefix,
            ),
            Login(
                built.access,
                prefix=self._prefix,
                style=self._prefix + all_assets().path("style.css"),
                keeps_tokens=Feature.ACCESS not in built.api.lacks,
            ),
            built.access.replies,
            self._streams,
            knows_token=token_knower(built),
            prefix=self._prefix,
            shares=Shares(places, "requests", built.refusals),
        )
        certified = listen.tls is not None and listen.tls.client_ca is not None
        is_open = certified or listen.insecure or is_local(listen.http)
        guard = None if is_open else api.guard  # the names of functions are for nobody else
        if is_open and not certified and isinstance(listen.http, TcpAddress) and is_local(listen.http):
            guard = api.host_guard  # a page that a browser of this machine shows reaches it, too
        dashboard = Dashboard(api, now=built.clock.wall, version=version(), prefix=self._prefix)
        answers = http_app(built.node, built.metrics.figures, version=version(), others=dashboard, guard=guard)
        self._listener = HttpListener(answers, reserved=HEALTH, preferred=MONITORING)

    async def start(self) -> None:
        """Start to serve; return once connections are accepted."""
        await self._listener.start()

    def protocol(self, connection: Connection) -> asyncio.Protocol:
        """Return the protocol for one connection."""
        return self._listener.protocol(connection)

    async def sign_in_link(self, host: str, port: int) -> str:
        """Return a new address that signs a browser in, once and within 10 minutes."""
        address = TcpAddress(ANY_HOST.get(host, host), port)
        return f"{self._scheme}://{address}{self._prefix}{LOGIN}?link={await self._access.new_link()}"

    async def token_of_start(self) -> str:
        """Return a new token that is valid until the node stops."""
        return await self._access.token_of_start()

    def end_streams(self) -> None:
        """End all streams, before the node drains: their clients connect to other nodes."""
        self._streams.end()

    async def stop(self) -> None:
        """Answer the clients that wait for jobs, and close the open connections within about a second."""
        self._api.end_waits()
        await self._listener.stop()
