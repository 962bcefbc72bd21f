"""The one place where a node is put together, and its life from the first port to the last commit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from mainspring.engines.memory.engine import MemoryEngine
from mainspring.engines.sqlite.engine import SqliteEngine
from mainspring.engines.sqlite.migrating import migrate_file
from mainspring.errors import SettingsError
from mainspring.faces.gearman.protocol import TLS_REQUIRED, GearmanProtocol
from mainspring.faces.http.connections import Connections
from mainspring.faces.http.gearmand_http import GearmandHttp
from mainspring.nodes.lease import LEASE
from mainspring.server.addresses import TcpAddress, UnixAddress
from mainspring.server.clock import SystemClock
from mainspring.server.http_jobs import NodeHttpJobs
from mainspring.server.keepalive import keep_alive
from mainspring.server.listener import Handshakes, Listener
from mainspring.server.logs import start_logging
from mainspring.server.node import Node
from mainspring.server.settings import parse_store
from mainspring.server.shares import SMALLEST, shares
from mainspring.server.sockets import SocketFile, bind, bound_address
from mainspring.server.stopping import stop_signals
from mainspring.server.tls import reload_context, server_context
from mainspring.version import core, version

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.faces.http.connections import Connection
    from mainspring.faces.http.listener import HttpListener
    from mainspring.nodes.store import Cluster
    from mainspring.server.addresses import Address
    from mainspring.server.logs import LogSink
    from mainspring.server.settings import ServerSettings, StoreSettings
    from mainspring.storage.engine import Engine

WORKING = 1 / 4
"""Of the connections for metrics and health checks: the part that may have another request than a health check under way."""
WORKING_FOR_JOBS = 3 / 4
"""The same for gearmand's HTTP protocol."""
SEND_BUFFER = 64 << 10
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


@contextlib.contextmanager
def _driver_for(settings: StoreSettings) -> Iterator[None]:
    """Import an engine, or say what it lacks."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{settings.shown} needs a driver that is not installed: pip install 'mainspring[{settings.engine}]' ({error})"
        ) from error


def build_engine(settings: StoreSettings, *, lease: float = LEASE) -> Engine:
    """Return the engine that a store's settings name; it is not open yet. A session with an ensemble is as long as the lease."""
    if settings.engine == "memory":
        return MemoryEngine()
    # Only who keeps jobs in a server needs the driver for it.
    if settings.engine == "postgres":
        with _driver_for(settings):
            from mainspring.engines.postgres.engine import PostgresEngine  # noqa: PLC0415
        cluster = None if settings.cluster is None else _build_cluster(settings.cluster, lease)
        return PostgresEngine(settings.url, migrate=settings.migrate, cluster=cluster)
    if settings.engine == "zookeeper":
        with _driver_for(settings):
            from mainspring.engines.zookeeper import opening  # noqa: PLC0415
        return opening.engine(settings.url, lease)
    assert settings.path is not None
    return SqliteEngine(settings.path, synchronous=settings.synchronous, cache_bytes=settings.cache_bytes)


def _build_cluster(url: str, lease: float) -> Cluster:
    """Return the way to a cluster. Raises SettingsError."""
    with _driver_for(parse_store(url)):
        from mainspring.engines.zookeeper import opening  # noqa: PLC0415
    return opening.cluster(url, lease)


async def migrate_store(settings: StoreSettings) -> list[int]:
    """Bring a store's schema up to date; returns the numbers of the steps that were taken.  Raises StoreError."""
    if settings.engine == "postgres":
        with _driver_for(settings):
            from mainspring.engines.postgres import engine  # noqa: PLC0415
        return await engine.migrate_store(settings.url)
    if settings.engine == "zookeeper":
        with _driver_for(settings):
            from mainspring.engines.zookeeper import opening  # noqa: PLC0415
        return await opening.prepare(settings.url)
    assert settings.path is not None
    return migrate_file(settings.path)


class Server:
    """A node and its ports."""

    def __init__(self, settings: ServerSettings, log_sink: LogSink) -> None:
        self.settings = settings
        self._log_sink = log_sink
        self.node = Node(settings, build_engine(settings.store, lease=settings.fleet.lease), SystemClock())
        self._tls: ssl.SSLContext | None = None
        self._servers: list[asyncio.Server] = []
        self._listeners: list[Listener] = []
        self._monitoring: list[Listener] = []
        self._files: list[SocketFile] = []
        self._http: HttpListener | None = None
        self._gearmand_http: GearmandHttp | None = None

    async def start(self) -> list[Listening]:
        """Bind the ports, open the store, and begin to listen; nothing is left open where that fails."""
        listen = self.settings.listen
        if listen.tls is not None:
            self._tls = server_context(listen.tls)
        # Ports first: a port in use should not cost the start of a store.
        bound = [(address, sock) for address in listen.gearman for sock in bind(address, listen.backlog)]
        http = list(bind(listen.http, listen.backlog)) if listen.http is not None else []
        legacy = list(bind(listen.gearman_http, listen.backlog)) if listen.gearman_http is not None else []
        self._files = [SocketFile(Path(at.path)) for at in self.settings.addresses() if isinstance(at, UnixAddress)]
        # A socket in the file system leads nobody here who reads of it elsewhere.
        self.node.address = next((str(bound_address(sock)) for at, sock in bound if isinstance(at, TcpAddress)), "")
        try:
            await self.node.open()
        except BaseException:
            for sock in (*(sock for _, sock in bound), *http, *legacy):
                sock.close()
            self._remove_files()
            raise
        handshakes = shares(self.settings).handshakes // max(1, len(bound))
        opened = [await self._listen_gearman(address, sock, handshakes) for address, sock in bound]
        if http:
            opened += await self._listen_http(http)
        if legacy:
            opened += self._listen_gearmand_http(legacy)
        return opened

    async def _listen_gearman(self, address: Address, sock: socket.socket, handshakes: int) -> Listening:
        loop = asyncio.get_running_loop()
        keepalive = self.settings.keepalive

        def peer() -> GearmanProtocol:
            return GearmanProtocol(self.node.face)

        listening = _listening("gearman", sock)
        if isinstance(address, UnixAddress):
            self._servers.append(await loop.create_unix_server(peer, sock=sock, backlog=self.settings.listen.backlog))
            return listening
        if keepalive.enabled:
            keep_alive(sock, keepalive)
        if self._tls is not None:
            tls = Handshakes(self._tls, self.settings.limits.handshake_timeout, TLS_REQUIRED)
            places = Connections(max(SMALLEST, handshakes), 0, port="TLS handshakes")
            self._listeners.append(Listener(sock, places, lambda _: peer(), tls, bounded=False))
            self._listeners[-1].start()
        else:
            self._servers.append(await loop.create_server(peer, sock=sock, backlog=self.settings.listen.backlog))
        return listening

    async def _listen_http(self, sockets: Sequence[socket.socket]) -> list[Listening]:
        # An HTTP server and its framework: slow to load, and for nodes with such a port alone.
        from mainspring.faces.http.app import HEALTH, http_app  # noqa: PLC0415
        from mainspring.faces.http.listener import HttpListener  # noqa: PLC0415

        self._http = HttpListener(http_app(self.node, version=version()), reserved=HEALTH)
        await self._http.start()
        self._monitoring = self._bounded("http", sockets, shares(self.settings).http, WORKING, self._http.protocol)
        return [_listening("http", sock) for sock in sockets]

    def _listen_gearmand_http(self, sockets: Sequence[socket.socket]) -> list[Listening]:
        self._gearmand_http = GearmandHttp(
            NodeHttpJobs(self.node),
            banner=self.node.face.settings.version,
            max_payload=self.settings.limits.max_packet,
            read_timeout=self.settings.limits.packet_timeout,
        )
        share = shares(self.settings).gearman_http
        self._listeners += self._bounded("gearman-http", sockets, share, WORKING_FOR_JOBS, self._gearmand_http.protocol)
        return [_listening("gearman-http", sock) for sock in sockets]

    def _bounded(
        self,
        face: str,
        sockets: Sequence[socket.socket],
        share: int,
        working: float,
        protocol: Callable[[Connection], asyncio.BaseProtocol],
    ) -> list[Listener]:
        """Listen on the sockets of a port that has a share of the descriptors, a part of which may be ``working``."""
        limit = max(share, SMALLEST * len(sockets))
        connections = Connections(limit, int(limit * working), port=face)
        tls = None if self._tls is None else Handshakes(self._tls, self.settings.limits.handshake_timeout)
        listeners = [Listener(sock, connections, protocol, tls) for sock in sockets]
        for sock, listener in zip(sockets, listeners, strict=True):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            listener.start()
        return listeners

    def reload(self) -> None:
        """SIGHUP: open the log again, and read the TLS files again."""
        self._log_sink.reopen()
        if self._tls is not None and self.settings.listen.tls is not None:
            try:
                reload_context(self._tls, self.settings.listen.tls)
            except SettingsError as error:
                log.error(  # noqa: TRY400 - the sentence says all
                    "the TLS files stay as they were", error=str(error)
                )
            else:
                log.info("TLS files read again")

    async def stop(self) -> None:
        """End, in this order: no new connections; running jobs end or go back; all is committed; connections end; the store.

        The port for monitoring answers until all is committed.
        """
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            await listener.close()
        await self.node.drain()
        for listener in self._monitoring:
            await listener.close()
        self._remove_files()
        if self._gearmand_http is not None:
            await self._gearmand_http.close()
        if self._http is not None:
            await self._http.stop()
        await self.node.close()

    def _remove_files(self) -> None:
        """Leave no files of sockets behind that lead nowhere."""
        for file in self._files:
            file.remove()


def _listening(face: str, sock: socket.socket) -> Listening:
    address = bound_address(sock)
    if isinstance(address, TcpAddress):
        return Listening(face, address.host, address.port)
    return Listening(face, str(address), 0)


async def serve(settings: ServerSettings, *, ready: Callable[[Sequence[Listening]], None]) -> int:
    """Be a node until a signal; returns the exit code.

    ``ready`` is called once all ports are open. Raises SettingsError, PortError or StoreError where the node cannot start, and
    StoreBrokenError where its disk fails: what was acknowledged is safe, and nothing more can be promised.
    """
    settings.check()
    server = Server(settings, start_logging(settings.log))
    loop = asyncio.get_running_loop()
    node = server.node
    with contextlib.ExitStack() as signals:
        signals.enter_context(stop_signals(node))
        for number, function in ((signal.SIGUSR1, lambda: node.stop(graceful=True)), (signal.SIGHUP, server.reload)):
            loop.add_signal_handler(number, function)
            signals.callback(loop.remove_signal_handler, number)
        ports = await _started(server)
        if ports is None:
            log.info("stopped before it had started")
            return 0
        _tune_collector()
        ready(ports)
        if not settings.jobs.schedules:
            log.info("this node fires no schedules")
        log.info("started", node=settings.name, term=node.term, store=settings.store.shown, core=core())
        await node.stopping.wait()
        await server.stop()
    if node.broken is not None:
        raise node.broken
    log.info("stopped")
    return 0


async def _started(server: Server) -> list[Listening] | None:
    """Start a server; None where it was asked to end before: a store that is away is waited for."""
    starting = asyncio.create_task(server.start())
    asked = asyncio.create_task(server.node.stopping.wait())
    try:
        await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
        return None if starting.cancelled() else starting.result()
    finally:
        asked.cancel()


def _tune_collector() -> None:
    """Collect garbage rarely: jobs are many, and make no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
