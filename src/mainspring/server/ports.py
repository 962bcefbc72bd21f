"""The ports of a node: bound before its store opens, listening afterwards, with limits of connections, with TLS or without."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.access.caller import LOCAL, caller_of_port
from mainspring.errors import SettingsError
from mainspring.faces.gearman.protocol import TLS_REQUIRED
from mainspring.faces.web.connections import Connections
from mainspring.log_limit import LogLimit
from mainspring.quantities import format_duration
from mainspring.server.process import MIN_CONNECTIONS, connection_limits
from mainspring.server.settings import TcpAddress, UnixAddress
from mainspring.server.sockets import (
    HandshakeRefusedError,
    PortError,
    SocketFile,
    bind,
    bound_address,
    keep_alive,
    reload_context,
    server_context,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from mainspring.access.caller import Caller
    from mainspring.faces.web.connections import Connection
    from mainspring.server.settings import Address, ServerSettings

ACCEPT_RETRY_DELAY: Final = 1.0
"""Seconds without new connections after the system refused one, for example for lack of descriptors; as in asyncio."""
REFUSAL_LOG_INTERVAL: Final = 5.0
"""Seconds between two log lines about handshakes that are refused for one reason."""
ACCEPT_LOG_INTERVAL: Final = 60.0
"""Seconds between two log lines about connections that cannot be accepted."""
CLOSE_TIMEOUT: Final = 1.0
"""Seconds for which a refused client may go on sending: an earlier close could reset the connection before it reads why."""

NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""OpenSSL's reasons, which depend on its version, for bytes that are not TLS. OpenSSL sends no alert for them."""
log = structlog.get_logger("mainspring.server")


@dataclass(frozen=True, slots=True)
class Handshakes:
    """TLS settings of a port: the seconds that a handshake may last, and the answer to clients that do not use TLS."""

    context: ssl.SSLContext
    timeout: float
    plain_answer: bytes = b""


class Listener:
    """Accepts connections on a listening socket, and closes that socket at the end.

    Each connection gets a place of ``connections``, and a protocol from ``protocol``. The protocol sets how its
    connection is ended, and leaves the place when the connection has ended. ``bounded`` is False if only connections
    whose handshake is under way occupy places.
    """

    def __init__(
        self,
        listening: socket.socket,
        connections: Connections,
        protocol: Callable[[Connection], asyncio.BaseProtocol],
        tls: Handshakes | None = None,
        *,
        bounded: bool = True,
    ) -> None:
        self._socket = listening
        self._connections = connections
        self._protocol = protocol
        self._tls = tls
        self._bounded = bounded
        self._limits: dict[str, LogLimit] = {}  # by reason; OpenSSL has a limited number of them
        self._stopped = LogLimit(ACCEPT_LOG_INTERVAL)
        self._greetings: set[asyncio.Task[bool]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to accept connections on the running loop."""
        self._accepting = asyncio.create_task(self._accept(), name="accept connections")

    async def close(self) -> None:
        """Stop accepting and end connections that are not established yet; the others go on."""
        tasks = [*self._greetings, *([self._accepting] if self._accepting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            place = await self._connections.place()
            try:
                connection, address = await self._next()
            except asyncio.CancelledError:
                place.release()
                raise
            except Exception:
                place.release()
                log.exception("a defect: a connection was not accepted")
                await asyncio.sleep(ACCEPT_RETRY_DELAY)
                continue
            self._greet_in_task(loop, place, connection, address)
            await asyncio.sleep(0)  # one connection for each turn of the loop, so that other tasks run too

    async def _next(self) -> tuple[socket.socket, tuple[str, int]]:
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.sock_accept(self._socket)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if self._stopped.left_out(loop.time()) is not None:
                    log.warning("connections are not accepted", error=str(error), seconds=ACCEPT_RETRY_DELAY)
                await asyncio.sleep(ACCEPT_RETRY_DELAY)

    def _greet_in_task(
        self, loop: asyncio.AbstractEventLoop, place: Connection, connection: socket.socket, address: tuple[str, int]
    ) -> None:
        greeting = loop.create_task(self._greet(place, connection, address))

        def greeted(_: object) -> None:
            self._greetings.discard(greeting)
            if greeting.cancelled() or not greeting.result():
                connection.close()  # a cancelled task may not have started
                place.release()
            elif not self._bounded:
                place.release()

        self._greetings.add(greeting)
        greeting.add_done_callback(greeted)
        place.begin(greeting.cancel)

    async def _greet(self, place: Connection, connection: socket.socket, address: tuple[str, int]) -> bool:
        """Establish a connection, which then belongs to its protocol; return False if it has ended."""
        if self._tls is not None:
            return await self._shake_hands(self._tls, place, connection, address)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self._protocol(place), connection)
        except OSError:
            return False  # the client has disconnected
        return True

    async def _shake_hands(
        self, tls: Handshakes, place: Connection, connection: socket.socket, address: tuple[str, int]
    ) -> bool:
        try:
            spare = connection.dup()  # the loop closes its own when the handshake fails
        except OSError:
            return False
        with spare:
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: self._protocol(place), connection, ssl=tls.context, ssl_handshake_timeout=tls.timeout
                )
            except HandshakeRefusedError as error:
                self._log_refusal(address, error.why)
                await _close_politely(spare, error.alert or (tls.plain_answer if error.reason in NOT_TLS else b""))
            except ConnectionAbortedError:
                self._log_refusal(address, f"the handshake took longer than {format_duration(tls.timeout)}")
            except OSError:
                pass  # the client has disconnected, as port checks of load balancers do all the time
            else:
                return True
        return False

    def _log_refusal(self, address: tuple[str, int], reason: str) -> None:
        limit = self._limits.setdefault(reason, LogLimit(REFUSAL_LOG_INTERVAL))
        left_out = limit.left_out(asyncio.get_running_loop().time())
        if left_out is not None:
            more = {"left_out": left_out} if left_out else {}
            log.warning("tls handshake refused", peer=_shown(address), reason=reason, **more)


def _shown(address: tuple[str, int] | str) -> str:
    if isinstance(address, str):
        return "unix"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _close_politely(connection: socket.socket, last: bytes) -> None:
    """Send the last bytes and wait until the client ends the connection, at most `CLOSE_TIMEOUT`."""
    loop = asyncio.get_running_loop()
    connection.setblocking(False)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT):
            if last:
                await loop.sock_sendall(connection, last)
            connection.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(connection, 4096):
                pass


if TYPE_CHECKING:
    Protocols = Callable[[Connection], asyncio.BaseProtocol]

HTTP_BUSY_PART: Final = 1 / 2
"""The part of the connections for HTTP that may have requests other than health checks under way. The others are idle and can be
closed for new ones, so health checks always get a connection."""
GEARMAN_HTTP_BUSY_PART: Final = 3 / 4
"""The same for gearmand's HTTP protocol."""
SEND_BUFFER: Final = 64 << 10
"""Bytes of an HTTP answer that the system buffers. A small buffer also shows early whether a slow client goes on reading."""


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
