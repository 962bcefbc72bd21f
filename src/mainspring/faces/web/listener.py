"""A node's HTTP server, inside its event loop, on connections that the node's listeners accept.

``/metrics``, ``/healthz`` and ``/readyz``, for monitoring and load balancers, come in front of everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol

import uvicorn
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from mainspring.faces.web import Distribution, Measure
from mainspring.loop_shares import SHARE_IN_SCOPE, Paced, Piece

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator

    from prometheus_client import Metric
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from uvicorn.server import ServerState

    from mainspring.faces.web.connections import Connection
    from mainspring.loop_shares import LoopShare

REQUEST_TIMEOUT: Final = 30.0
"""Seconds that a client has to send a request, and to read each piece of its answer."""
PIECE_SIZE: Final = 16 * 1024
"""Bytes of an answer that are written at a time. The next piece waits until they are sent; TLS buffers some more."""
KEEP_ALIVE: Final = 15
"""Seconds until the first byte of another request."""
HEAD_LIMIT: Final = 16 * 1024
"""Bytes of a request's head."""
FRAMING_LIMIT: Final = 16 * 1024
"""Bytes that the chunks of a body may need in addition to `FRAMING_SHARE` for each byte of the body."""
FRAMING_SHARE: Final = 8
"""A chunk with a single byte has five more."""
SLOWEST_BODY: Final = 4 * 1024
"""Bytes of an incomplete body that have to arrive within each `REQUEST_TIMEOUT`."""

_TOO_MANY_REQUESTS = PlainTextResponse("too many requests are under way: try again\n", 503, {"Connection": "close"})

_STOPPING = PlainTextResponse("this node stops: try again\n", 503, {"Connection": "close", "Retry-After": "1"})


class HttpListener:
    """Serves an application on connections, see `protocol`.

    ``reserved`` are the paths of small answers that are given under any load, such as those of health checks. ``preferred`` are
    paths for which some places are kept free. ``request_timeout`` is in seconds, like ``REQUEST_TIMEOUT``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        reserved: Collection[str] = (),
        preferred: Collection[str] = (),
        request_timeout: float = REQUEST_TIMEOUT,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=1,
        )
        config.load()
        logging.getLogger("uvicorn.error").addFilter(_is_loggable)
        self._server = _QuietServer(config)
        self._reserved = frozenset(reserved)
        self._preferred = frozenset(preferred)
        self._request_timeout = request_timeout
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to serve; return once connections are accepted."""
        self._task = asyncio.create_task(self._server.serve([]), name="http")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the HTTP server ended while it started")
            await asyncio.sleep(0.001)  # uvicorn has no event for this

    def protocol(self, connection: Connection) -> asyncio.Protocol:
        """Return the protocol for one connection."""
        return _Protocol(
            self._server.config,
            self._server.server_state,
            connection,
            reserved=self._reserved,
            preferred=self._preferred,
            request_timeout=self._request_timeout,
        )

    async def stop(self) -> None:
        """Close the open connections within about a second."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None


class _QuietServer(uvicorn.Server):
    """A server that leaves signals to the node."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _RefusedHeadError(Exception):
    """The head of a request is refused with this status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Flow(FlowControl):
    """Reads from a connection while neither uvicorn nor the share of the request's caller has paused that."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._rests = False

    def pause_reading(self) -> None:
        if self._rests:
            self.read_paused = True
        else:
            super().pause_reading()

    def resume_reading(self) -> None:
        if self._rests:
            self.read_paused = False
        else:
            super().resume_reading()

    def rest(self, share: LoopShare, seconds: float) -> None:
        """Read nothing while a caller rests, whose last read has taken so many seconds."""
        if self._rests:
            return
        if not self.read_paused:
            self._transport.pause_reading()
        self._rests = True
        share.when_rested(self._rested, seconds)

    def _rested(self) -> None:
        self._rests = False
        if not self.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()


class _Protocol(HttpToolsProtocol):
    """Marks its connection as working or idle, and closes it if its client stalls.

    uvicorn only limits the time between requests, not the time that a client takes to read an answer. The parser has no limit for
    the length of a head, and accepts requests without a host.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        connection: Connection,
        *,
        reserved: Collection[str],
        preferred: Collection[str],
        request_timeout: float,
    ) -> None:
        super().__init__(config, state, {})
        self._application, self.app = self.app, self._answer
        self._connection = connection
        self._reserved = reserved
        self._preferred = preferred
        self._request_timeout = request_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._is_lost = False
        self._unsent = False
        """Whether part of an answer is not sent yet."""
        self._has_progress = False
        """Whether the client has read a piece since the last check."""
        self._is_in_head = True
        """Whether the head of a request is not complete."""
        self._head_bytes = 0
        """Bytes of the incomplete head that have arrived."""
        self._messages = 0
        """The number of requests that have begun."""
        self._body_bytes = self._framing_bytes = self._checked_bytes = 0
        """Bytes of the body that have arrived, of what is between its chunks, and of the body at the last check."""
        self._refused: _RefusedHeadError | None = None
        self._share: LoopShare | None = None
        """The share of the caller of the current request; None until it is known."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection.begin(transport.abort)
        self._set_idle()
        transport.set_write_buffer_limits(1, 0)  # so that resume_writing means that everything is sent
        self.flow: _Flow = _Flow(transport)

    def data_received(self, data: bytes) -> None:
        share = self._share
        if share is None:
            self._receive(data)
            return
        piece = Piece(share)
        self._receive(data)
        seconds = piece.end()
        if share.rests(share.shares.monotonic()) and not self.transport.is_closing():
            self.flow.rest(share, seconds)

    def _receive(self, data: bytes) -> None:
        messages, body = self._messages, self._body_bytes
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT:
                self._refuse(_RefusedHeadError(431, f"the head of a request has at most {HEAD_LIMIT} bytes"))
        elif messages == self._messages:
            self._framing_bytes += len(data) - (self._body_bytes - body)
            if self._framing_bytes > FRAMING_LIMIT + FRAMING_SHARE * self._body_bytes:
                self._refuse(_RefusedHeadError(400, "the chunks of the body are larger than their data"))

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._messages += 1
        self._body_bytes = self._framing_bytes = self._checked_bytes = 0
        self._share = None
        super().on_message_begin()
        self.scope[SHARE_IN_SCOPE] = self._use_share  # type: ignore[typeddict-unknown-key]

    def _use_share(self, share: LoopShare) -> None:
        self._share = share

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, but no trailer after the body: a proxy that removes headers of its clients may leave it."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_bytes = 0
        try:
            self._check_head()
        except _RefusedHeadError as refused:
            self._refused = refused
            raise  # so that the parser stops
        super().on_headers_complete()
        if self.parser.should_upgrade():  # the parser stops behind such a request, so a next one would get no answer
            self.cycle.keep_alive = False

    def _check_head(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_LIMIT:
            raise _RefusedHeadError(431, f"the head of a request has at most {HEAD_LIMIT} bytes")
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() != "1.0"):
            raise _RefusedHeadError(400, "a request has one Host header")
        if not self.url.startswith(b"/"):  # an address in place of the path would name a second host
            raise _RefusedHeadError(400, "the target of a request is a path")

    def send_400_response(self, msg: str) -> None:
        """Answer an unreadable request, and close the connection."""
        self._refuse(self._refused or _RefusedHeadError(400, msg))

    def _refuse(self, refused: _RefusedHeadError) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        is_answering = False
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # the application sends no more
            is_answering = cycle.response_started
        if not is_answering:
            text = f"{refused}\n".encode()
            head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(
                text
            )
            self.transport.write(STATUS_LINE[refused.status] + head + text)
        self.transport.close()

    def pause_writing(self) -> None:
        self._unsent = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unsent = False
        self._has_progress = True
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._set_idle()  # less than a piece may still be unsent
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._connection.release()
        super().connection_lost(exc)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose head is complete."""
        is_answering = False

        async def in_pieces(message: Message) -> None:
            nonlocal is_answering
            is_answering = True
            body = message.get("body", b"")
            last = max(len(body) - 1, 0) // PIECE_SIZE * PIECE_SIZE
            for start in range(0, last, PIECE_SIZE):
                await send({**message, "body": body[start : start + PIECE_SIZE], "more_body": True})
            await send({**message, "body": body[last:]} if last else message)

        if scope["path"] in self._reserved:
            await self._application(scope, receive, send)
        elif self._connection.set_working(preferred=scope["path"] in self._preferred):
            self._check_later()
            try:
                await Paced(self._application(scope, receive, in_pieces), lambda: self._share)
            except (
                asyncio.CancelledError
            ):  # the server stops: without an answer, uvicorn would log an error and send a 500
                if not is_answering:
                    await _STOPPING(scope, receive, send)
        else:
            await _TOO_MANY_REQUESTS(scope, receive, send)

    def _set_idle(self) -> None:
        """Mark the connection as idle, and start the timeout for its next request."""
        self._connection.set_idle()
        self._wait(self.transport.abort)

    def _check_progress(self) -> None:
        """Close the connection of the current request if the client has to act and has not done so since the last check."""
        is_slow = self.cycle.more_body and self._body_bytes - self._checked_bytes < SLOWEST_BODY
        if is_slow or (self._unsent and not self._has_progress):
            self.transport.abort()
        else:
            self._check_later()

    def _check_later(self) -> None:
        self._has_progress = False
        self._checked_bytes = self._body_bytes
        self._wait(self._check_progress)

    def _wait(self, then: Callable[[], None]) -> None:
        if self._is_lost:
            return  # a request may be answered after its connection has ended
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._request_timeout, then)


def _is_loggable(record: logging.LogRecord) -> bool:
    """Return whether a record is logged: unreadable and excess requests are not, or clients could fill the log."""
    return record.levelno >= logging.ERROR


HEALTH: Final = ("/healthz", "/readyz")
"""The paths of health checks."""
MONITORING: Final = frozenset({"/metrics", *HEALTH})


class NodeView(Protocol):
    """The state of a node that these pages show. The methods return at once."""

    def healthy(self) -> bool:
        """Return whether the node works at all; False requests a restart."""

    def ready(self) -> bool:
        """Return whether the node accepts new work: False while it starts or drains, or its store refuses writes."""


Figures = Callable[[], "Iterable[Measure | Distribution]"]
"""Returns the current figures, at once."""


Guard = Callable[["Scope", "Receive", "Send", "ASGIApp"], Awaitable[None]]
"""Passes a request to an application, or refuses it."""


def http_app(
    view: NodeView, figures: Figures, *, version: str, others: ASGIApp | None = None, guard: Guard | None = None
) -> ASGIApp:
    """Return the ASGI application of a node's monitoring pages; ``version`` is the server's.

    ``others`` answers all other paths. ``guard`` decides who sees ``/metrics``; by default everybody does.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_NodeCollector(figures, version))

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def healthz(_request: Request) -> Response:
        return _verdict(view.healthy(), "ok", "unhealthy")

    async def readyz(_request: Request) -> Response:
        return _verdict(view.ready(), "ready", "not ready")

    pages = Starlette(routes=[Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz)])
    if others is None:
        return pages

    async def either(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path not in MONITORING:
            await others(scope, receive, send)
        elif guard is not None and path not in HEALTH:
            await guard(scope, receive, send, pages)
        else:
            await pages(scope, receive, send)

    return either


def _verdict(good: bool, yes: str, no: str) -> Response:
    headers = {"Cache-Control": "no-store"}
    return PlainTextResponse(f"{yes if good else no}\n", status_code=200 if good else 503, headers=headers)


class _NodeCollector:
    """Converts a node's figures to Prometheus' metric families at each scrape."""

    def __init__(self, figures: Figures, version: str) -> None:
        self._figures = figures
        self._version = version

    def collect(self) -> Iterator[Metric]:
        build = InfoMetricFamily("mainspring_build", "Version of the server.")
        build.add_metric([], {"version": self._version})
        yield build
        for measure in self._figures():
            if isinstance(measure, Distribution):
                yield _histogram(measure)
                continue
            kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
            family = kind(measure.name, measure.help, labels=[])
            for (
                labels,
                value,
            ) in measure.samples:  # not `add_metric`, which takes the same labels for all: some have a namespace
                family.add_sample(measure.name, dict(labels), value)
            yield family


def _histogram(measure: Distribution) -> Metric:
    family = HistogramMetricFamily(measure.name, measure.help, labels=[])
    bounds = [*(str(float(bound)) for bound in measure.bounds), "+Inf"]
    for labels, counts, total in measure.samples:
        number = 0
        for bound, number in zip(bounds, accumulate(counts), strict=True):
            family.add_sample(f"{measure.name}_bucket", {**labels, "le": bound}, number)
        family.add_sample(f"{measure.name}_count", dict(labels), number)
        family.add_sample(f"{measure.name}_sum", dict(labels), total)
    return family
