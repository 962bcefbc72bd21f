"""The ports of a node: bound before its store opens, listening afterwards."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.access.caller import LOCAL, caller_of_port
from mainspring.errors import SettingsError
from mainspring.faces.gearman.protocol import TLS_REQUIRED
from mainspring.faces.http.connections import Connections
from mainspring.server.addresses import TcpAddress, UnixAddress
from mainspring.server.connection_limits import MIN_CONNECTIONS, connection_limits
from mainspring.server.listener import Handshakes, Listener
from mainspring.server.sockets import PortError, SocketFile, bind, bound_address, keep_alive
from mainspring.server.tls import reload_context, server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from mainspring.access.caller import Caller
    from mainspring.faces.http.connections import Connection
    from mainspring.server.addresses import Address
    from mainspring.server.settings import ServerSettings

    Protocols = Callable[[Connection], asyncio.BaseProtocol]

HTTP_BUSY_PART: Final = 1 / 2
"""The part of the connections for HTTP that may have requests other than health checks under way. The others are idle and can be
closed for new ones, so health checks always get a connection."""
GEARMAN_HTTP_BUSY_PART: Final = 3 / 4
"""The same for gearmand's HTTP protocol."""
SEND_BUFFER: Final = 64 << 10
"""Bytes of an HTTP answer that the system buffers. A small buffer also shows early whether a slow client goes on reading."""

log = structlog.get_logger("mainspring.server")


@dataclass(frozen=True, slots=True)
class Listening:
    """An open port."""

    face: str
    """``gearman``, ``http`` or ``gearman-http``."""
    host: str
    """``unix:PATH`` for a socket in the file system."""
    port: int
    """0 for a socket in the file system."""
    namespace: str | None = None
    """Of a Gearman port: the namespace of all its connections; None: a connection chooses its own."""


class Ports:
    """Binds the ports of one node, listens on them, and closes them."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._tls: ssl.SSLContext | None = None
        self._gearman: list[tuple[Address, socket.socket]] = []
        self._http: list[socket.socket] = []
        self._gearman_http: list[socket.socket] = []
        self._files: list[SocketFile] = []
        self._servers: list[asyncio.Server] = []
        self._listeners: list[Listener] = []
        self._monitoring: list[Listener] = []
        self.opened: list[Listening] = []
        """The ports that listen."""

    def bind(self) -> str:
        """Bind all ports, or none; return the address to show at other nodes. Raises PortError or SettingsError."""
        listen = self._settings.listen
        if listen.tls is not None:
            self._tls = server_context(listen.tls)
        try:
            for address in listen.gearman:
                self._gearman += [(address, sock) for sock in self._bind(address)]
            if listen.http is not None:
                self._http = self._bind_http(listen.http)
            if listen.gearman_http is not None:
                self._gearman_http = self._bind(listen.gearman_http)
        except BaseException:
            self.abandon()
            raise
        # Clients on other machines cannot use the address of a socket in the file system.
        return next((str(bound_address(sock)) for at, sock in self._gearman if isinstance(at, TcpAddress)), "")

    def _bind(self, address: Address) -> list[socket.socket]:
        listen = self._settings.listen
        sockets = bind(address, listen.backlog, listen.socket_mode)
        if isinstance(address, UnixAddress):
            if (listen.socket_mode or 0) & 0o002:
                log.warning("every user of this machine may connect to a socket", path=address.path)
            self._files.append(SocketFile(Path(address.path)))
        return sockets

    def _bind_http(self, address: Address) -> list[socket.socket]:
        try:
            return self._bind(address)
        except PortError as error:
            if not self._settings.listen.http_is_default:
                raise
            log.warning("this node has no HTTP port: choose another address with --http, or none", error=str(error))
            return []

    @property
    def has_http(self) -> bool:
        """Return whether there is a port for HTTP."""
        return bool(self._http)

    def abandon(self) -> None:
        """Release all bound ports before any of them listens."""
        for sock in (*(sock for _, sock in self._gearman), *self._http, *self._gearman_http):
            sock.close()
        self.remove_files()

    async def listen_gearman(self, peer: Callable[[str | None, Caller], asyncio.BaseProtocol]) -> None:
        """Listen on Gearman's ports; ``peer`` takes the namespace of the port, if it has one, and the caller of connections."""
        handshakes = connection_limits(self._settings).handshakes // max(1, len(self._gearman))
        for address, sock in self._gearman:
            self._open("gearman", sock, address.namespace)
            caller = LOCAL if address.namespace is None else caller_of_port(address.namespace, address.role)
            await self._listen_gearman(address, sock, partial(peer, address.namespace, caller), handshakes)

    async def _listen_gearman(
        self, address: Address, sock: socket.socket, peer: Callable[[], asyncio.BaseProtocol], handshakes: int
    ) -> None:
        loop = asyncio.get_running_loop()
        keepalive, backlog = self._settings.keepalive, self._settings.listen.backlog
        if isinstance(address, UnixAddress):
            self._servers.append(await loop.create_unix_server(peer, sock=sock, backlog=backlog))
            return
        if keepalive.enabled:
            keep_alive(sock, keepalive)
        if self._tls is not None:
            tls = Handshakes(self._tls, self._settings.limits.handshake_timeout, TLS_REQUIRED)
            places = Connections(max(MIN_CONNECTIONS, handshakes), 0, port="TLS handshakes")
            self._listeners.append(Listener(sock, places, lambda _: peer(), tls, bounded=False))
            self._listeners[-1].start()
        else:
            self._servers.append(await loop.create_server(peer, sock=sock, backlog=backlog))

    @property
    def http_places(self) -> int:
        """Return how many requests may be under way over HTTP."""
        return int(max(connection_limits(self._settings).http, MIN_CONNECTIONS * len(self._http)) * HTTP_BUSY_PART)

    def listen_http(self, protocol: Protocols) -> None:
        """Listen on the ports for HTTP."""
        share = connection_limits(self._settings).http
        self._monitoring += self._bounded("http", self._http, share, HTTP_BUSY_PART, protocol)

    def listen_gearmand_http(self, protocol: Protocols) -> None:
        """Listen on the ports of gearmand's HTTP protocol."""
        share = connection_limits(self._settings).gearman_http
        self._listeners += self._bounded("gearman-http", self._gearman_http, share, GEARMAN_HTTP_BUSY_PART, protocol)

    def _bounded(
        self, face: str, sockets: list[socket.socket], share: int, working: float, protocol: Protocols
    ) -> list[Listener]:
        """Listen on the sockets of a port with ``share`` connections, of which the part ``working`` may be busy."""
        limit = max(share, MIN_CONNECTIONS * len(sockets))
        connections = Connections(limit, int(limit * working), port=face)
        tls = None if self._tls is None else Handshakes(self._tls, self._settings.limits.handshake_timeout)
        listeners = [Listener(sock, connections, protocol, tls) for sock in sockets]
        for sock, listener in zip(sockets, listeners, strict=True):
            self._open(face, sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            listener.start()
        return listeners

    def _open(self, face: str, sock: socket.socket, namespace: str | None = None) -> None:
        address = bound_address(sock)
        if isinstance(address, TcpAddress):
            self.opened.append(Listening(face, address.host, address.port, namespace))
        else:
            self.opened.append(Listening(face, str(address), 0, namespace))

    def reload_tls(self) -> None:
        """Reload the TLS files for new connections."""
        if self._tls is None or self._settings.listen.tls is None:
            return
        try:
            reload_context(self._tls, self._settings.listen.tls)
        except SettingsError as error:
            log.error("the TLS files stay as they were", error=str(error))  # noqa: TRY400 - the message explains the error
        else:
            log.info("TLS files reloaded")

    async def close_for_jobs(self) -> None:
        """Stop accepting connections, except for monitoring."""
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            await listener.close()

    async def close_for_monitoring(self) -> None:
        """Stop accepting connections for monitoring, and remove the files of sockets."""
        for listener in self._monitoring:
            await listener.close()
        self.remove_files()

    def remove_files(self) -> None:
        """Remove the files of sockets."""
        for file in self._files:
            file.remove()
