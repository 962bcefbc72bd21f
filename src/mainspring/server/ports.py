"""A node's ports: bound before its store is open, listening after that."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.errors import SettingsError
from mainspring.faces.gearman.protocol import TLS_REQUIRED
from mainspring.faces.http.connections import Connections
from mainspring.server.addresses import TcpAddress, UnixAddress
from mainspring.server.listener import Handshakes, Listener
from mainspring.server.shares import SMALLEST, shares
from mainspring.server.sockets import SocketFile, bind, bound_address, keep_alive
from mainspring.server.tls import reload_context, server_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from mainspring.faces.http.connections import Connection
    from mainspring.server.addresses import Address
    from mainspring.server.settings import ServerSettings

    Protocols = Callable[[Connection], asyncio.BaseProtocol]

WORKING: Final = 1 / 4
"""Of the connections for metrics and health checks: the part that may have another request than a health check under way."""
WORKING_FOR_JOBS: Final = 3 / 4
"""The same for gearmand's HTTP protocol."""
SEND_BUFFER: Final = 64 << 10
"""Bytes that the system holds of an answer over HTTP. It also shows soon whether a slow client goes on reading."""

log = structlog.get_logger("mainspring.server")


@dataclass(frozen=True, slots=True)
class Listening:
    """An open port."""

    face: str
    """``gearman``, ``http`` or ``gearman-http``."""
    host: str
    """``unix:PATH`` for a socket in the file system."""
    port: int
    """0 where there is none."""


class Ports:
    """The ports of one node: they are bound, they listen, they are closed."""

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
        """Those that listen."""

    def bind(self) -> str:
        """Take all ports; returns the address that other nodes get. Raises PortError or SettingsError."""
        listen = self._settings.listen
        if listen.tls is not None:
            self._tls = server_context(listen.tls)
        self._gearman = [(address, sock) for address in listen.gearman for sock in bind(address, listen.backlog)]
        self._http = list(bind(listen.http, listen.backlog)) if listen.http is not None else []
        if listen.gearman_http is not None:
            self._gearman_http = list(bind(listen.gearman_http, listen.backlog))
        self._files = [SocketFile(Path(at.path)) for at in self._settings.addresses() if isinstance(at, UnixAddress)]
        # A socket in the file system leads nobody here who reads of it elsewhere.
        return next((str(bound_address(sock)) for at, sock in self._gearman if isinstance(at, TcpAddress)), "")

    def abandon(self) -> None:
        """Give the ports back that have been bound, before any of them listens."""
        for sock in (*(sock for _, sock in self._gearman), *self._http, *self._gearman_http):
            sock.close()
        self.remove_files()

    async def listen_gearman(self, peer: Callable[[], asyncio.BaseProtocol]) -> None:
        """Listen on Gearman's ports."""
        handshakes = shares(self._settings).handshakes // max(1, len(self._gearman))
        for address, sock in self._gearman:
            await self._listen_gearman(address, sock, peer, handshakes)

    async def _listen_gearman(
        self, address: Address, sock: socket.socket, peer: Callable[[], asyncio.BaseProtocol], handshakes: int
    ) -> None:
        loop = asyncio.get_running_loop()
        keepalive, backlog = self._settings.keepalive, self._settings.listen.backlog
        self._open("gearman", sock)
        if isinstance(address, UnixAddress):
            self._servers.append(await loop.create_unix_server(peer, sock=sock, backlog=backlog))
            return
        if keepalive.enabled:
            keep_alive(sock, keepalive)
        if self._tls is not None:
            tls = Handshakes(self._tls, self._settings.limits.handshake_timeout, TLS_REQUIRED)
            places = Connections(max(SMALLEST, handshakes), 0, port="TLS handshakes")
            self._listeners.append(Listener(sock, places, lambda _: peer(), tls, bounded=False))
            self._listeners[-1].start()
        else:
            self._servers.append(await loop.create_server(peer, sock=sock, backlog=backlog))

    def listen_http(self, protocol: Protocols) -> None:
        """Listen on the ports for monitoring."""
        share = shares(self._settings).http
        self._monitoring += self._bounded("http", self._http, share, WORKING, protocol)

    def listen_gearmand_http(self, protocol: Protocols) -> None:
        """Listen on the ports of gearmand's HTTP protocol."""
        share = shares(self._settings).gearman_http
        self._listeners += self._bounded("gearman-http", self._gearman_http, share, WORKING_FOR_JOBS, protocol)

    def _bounded(
        self, face: str, sockets: list[socket.socket], share: int, working: float, protocol: Protocols
    ) -> list[Listener]:
        """Listen on the sockets of a port that has a share of the descriptors, a part of which may be ``working``."""
        limit = max(share, SMALLEST * len(sockets))
        connections = Connections(limit, int(limit * working), port=face)
        tls = None if self._tls is None else Handshakes(self._tls, self._settings.limits.handshake_timeout)
        listeners = [Listener(sock, connections, protocol, tls) for sock in sockets]
        for sock, listener in zip(sockets, listeners, strict=True):
            self._open(face, sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            listener.start()
        return listeners

    def _open(self, face: str, sock: socket.socket) -> None:
        address = bound_address(sock)
        if isinstance(address, TcpAddress):
            self.opened.append(Listening(face, address.host, address.port))
        else:
            self.opened.append(Listening(face, str(address), 0))

    def reload_tls(self) -> None:
        """Read the TLS files again, for connections to come."""
        if self._tls is None or self._settings.listen.tls is None:
            return
        try:
            reload_context(self._tls, self._settings.listen.tls)
        except SettingsError as error:
            log.error("the TLS files stay as they were", error=str(error))  # noqa: TRY400 - the sentence says all
        else:
            log.info("TLS files read again")

    async def close_for_jobs(self) -> None:
        """Take no more connections, except for monitoring."""
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            await listener.close()

    async def close_for_monitoring(self) -> None:
        """Take no connections at all."""
        for listener in self._monitoring:
            await listener.close()
        self.remove_files()

    def remove_files(self) -> None:
        """Leave no files of sockets behind that lead nowhere."""
        for file in self._files:
            file.remove()
