"""A server process: one node and its ports, from the first bind to the last commit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from functools import partial
from typing import TYPE_CHECKING

import structlog

from mainspring.errors import StoreError
from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.features import Feature
from mainspring.server.build import gearmand_http, open_node
from mainspring.server.engines import build_engine
from mainspring.server.fleet import SystemClock
from mainspring.server.logs import start_logging
from mainspring.server.node import Shutdown
from mainspring.server.ports import Ports
from mainspring.server.process import stop_signals
from mainspring.version import core

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.faces.web.gearmand_http import GearmandHttp
    from mainspring.server.http import HttpPort
    from mainspring.server.logs import LogSink
    from mainspring.server.node import Node
    from mainspring.server.ports import Listening
    from mainspring.server.settings import ServerSettings

log = structlog.get_logger("mainspring.server")


class Server:
    """A node and its ports."""

    def __init__(self, settings: ServerSettings, log_sink: LogSink) -> None:
        self._settings = settings
        self._log_sink = log_sink
        self._clock = SystemClock()
        fleet = settings.fleet
        self._engine = build_engine(settings.store, lease=fleet.lease, rest=fleet.rest, workflows=settings.workflows)
        self._ports = Ports(settings)
        self._http: HttpPort | None = None
        self._gearmand_http: GearmandHttp | None = None
        self.shutdown = Shutdown(self._clock, settings.process.grace)
        self.address = ""
        """The address of its Gearman port that other nodes show; empty if other machines cannot reach it."""
        self.node: Node
        """Set by `start`."""

    async def start(self) -> Sequence[Listening]:
        """Bind the ports, open the store and listen; close the ports if the store cannot be opened."""
        # Ports first: if one is in use, the store need not start.
        self.address = self._ports.bind()
        try:
            built = await open_node(self._settings, self._engine, self._clock, self.shutdown, address=self.address)
        except BaseException:
            self._ports.abandon()
            raise
        node = self.node = built.node
        await self._ports.listen_gearman(partial(GearmanProtocol, node.face))
        if self._ports.has_http:
            # Imported here: the HTTP framework loads slowly, and only nodes with this port need it.
            from mainspring.server.http import HttpPort  # noqa: PLC0415

            self._http = HttpPort(built, places=self._ports.http_places)
            await self._http.start()
            self._ports.listen_http(self._http.protocol)
        if self._settings.listen.gearman_http is not None:
            self._gearmand_http = gearmand_http(built)
            self._ports.listen_gearmand_http(self._gearmand_http.protocol)
        return self._ports.opened

    async def sign_in_link(self) -> str | None:
        """Return an address that signs a browser in once; None if the node has no HTTP port with an API."""
        port = next((port for port in self._ports.opened if port.face == "http" and port.port), None)
        return None if self._http is None or port is None else await self._http.sign_in_link(port.host, port.port)

    async def token_of_start(self) -> str | None:
        """Return a new token for the HTTP API; None if the store keeps tokens, or the node has no HTTP port."""
        if self._http is None or Feature.ACCESS not in self._engine.lacks:
            return None
        return await self._http.token_of_start()

    def reload(self) -> None:
        """Reopen the log and reload the TLS files, at SIGHUP."""
        self._log_sink.reopen()
        self._ports.reload_tls()

    async def stop(self) -> None:
        """Stop: end streams; accept no connections; end or release running jobs; commit; close connections; close the store.

        All of it in this order. The HTTP port answers until everything is committed.
        """
        if self._http is not None:
            self._http.end_streams()
        await self._ports.close_for_jobs()
        await self.node.drain()
        await self._ports.close_for_monitoring()
        if self._gearmand_http is not None:
            await self._gearmand_http.close()
        if self._http is not None:
            await self._http.stop()
        await self.node.close()


async def serve(
    settings: ServerSettings,
    *,
    ready: Callable[[Sequence[Listening]], None],
    stopping: Callable[[], None] = lambda: None,
    show_sign_in: Callable[[str], None] | None = None,
    show_token: Callable[[str], None] = lambda _: None,
) -> int:
    """Run a node until a signal stops it; return the exit code.

    ``ready`` is called when all ports are open. Afterwards, if the node has an HTTP port, ``show_sign_in`` is called with an
    address that signs a browser in once, and ``show_token`` with a token, if the store keeps none. ``stopping`` is called when
    the node begins to stop.

    Raises SettingsError, PortError or StoreError if the node cannot start, and StoreBrokenError if its disk fails: acknowledged
    jobs are safe, but the node can accept no more.
    """
    settings.check()
    server = Server(settings, start_logging(settings.log))
    loop = asyncio.get_running_loop()
    shutdown = server.shutdown
    with contextlib.ExitStack() as signals:
        signals.enter_context(stop_signals(shutdown))
        for number, function in (
            (signal.SIGUSR1, lambda: shutdown.stop(graceful=True)),
            (signal.SIGHUP, server.reload),
        ):
            loop.add_signal_handler(number, function)
            signals.callback(loop.remove_signal_handler, number)
        ports = await _started(server)
        if ports is None:
            log.info("stopped before it had started")
            return 0
        _tune_collector()
        ready(ports)
        if show_sign_in is not None:
            await _show_sign_in(server, show_sign_in)
        if (token := await server.token_of_start()) is not None:
            show_token(token)
        if not settings.jobs.schedules:
            log.info("this node fires no schedules")
        log.info("started", node=settings.name, term=server.node.term, store=settings.store.shown, core=core())
        await shutdown.requested.wait()
        stopping()
        await server.stop()
    if shutdown.broken is not None:
        raise shutdown.broken
    log.info("stopped")
    return 0


async def _show_sign_in(server: Server, show: Callable[[str], None]) -> None:
    try:
        link = await server.sign_in_link()
    except StoreError as error:
        log.warning("there is no link to sign in, because the store could not keep it", error=str(error))
    else:
        if link is not None:
            show(link)


async def _started(server: Server) -> Sequence[Listening] | None:
    """Start a server, which waits for a store that is away; return None if a stop was requested meanwhile."""
    starting = asyncio.create_task(server.start())
    stopping = asyncio.create_task(server.shutdown.requested.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
        return None if starting.cancelled() else starting.result()
    finally:
        stopping.cancel()


def _tune_collector() -> None:
    """Collect garbage rarely: a node creates many jobs, and they form no reference cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
