"""An HTTP server inside a loop that belongs to somebody else, on connections that others accept."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import h11
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from uvicorn.server import ServerState

    from mainspring.faces.http.connections import Connection


PATIENCE: Final = 30.0
"""Seconds that a client has to send a request, and to take each piece of its answer."""
PIECE: Final = 16 * 1024
"""Bytes of an answer that are written at a time: the next piece waits until they are out. TLS keeps some more from our sight."""
KEEP_ALIVE: Final = 15
"""Seconds until the first byte of another request."""
HEAD_LIMIT: Final = 16 * 1024
"""Bytes of a request's head."""

_TOO_MANY = PlainTextResponse("too many requests are under way: try again\n", 503, {"Connection": "close"})


class HttpListener:
    """Serves an application on connections, see `protocol`.

    ``reserved`` are the paths of small answers that are given at any load, such as those of health checks. ``patience`` is in
    seconds, as ``PATIENCE``.
    """

    def __init__(self, app: ASGIApp, *, reserved: Collection[str] = (), patience: float = PATIENCE) -> None:
        config = uvicorn.Config(
            app,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=HEAD_LIMIT,
        )
        config.load()
        logging.getLogger("uvicorn.error").addFilter(_of_strangers)
        self._server = _QuietServer(config)
        self._reserved = frozenset(reserved)
        self._patience = patience
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer; returns when connections are taken."""
        self._task = asyncio.create_task(self._server.serve([]), name="http")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the HTTP server ended while it started")
            await asyncio.sleep(0.001)  # uvicorn has no event for this

    def protocol(self, connection: Connection) -> asyncio.Protocol:
        """Return what serves one connection."""
        return _Protocol(
            self._server.config, self._server.server_state, connection, reserved=self._reserved, patience=self._patience
        )

    async def stop(self) -> None:
        """End the open connections within about a second."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None


class _QuietServer(uvicorn.Server):
    """Leaves signals to the node."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Protocol(H11Protocol):
    """Says when its connection works and when it is idle, and ends it where its client does not go on.

    uvicorn limits the time between requests alone, and knows no limit on answers that nobody reads.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        connection: Connection,
        *,
        reserved: Collection[str],
        patience: float,
    ) -> None:
        super().__init__(config, state, {})
        self._application, self.app = self.app, self._answer
        self._connection = connection
        self._reserved = reserved
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None
        self._lost = False
        self._unsent = False
        """Whether part of an answer is still here."""
        self._moved = False
        """Whether the client has sent something, or taken a piece, since the last look."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection.begin(transport.abort)
        self._rest()
        transport.set_write_buffer_limits(1, 0)  # so that resume_writing says that all is sent

    def data_received(self, data: bytes) -> None:
        self._moved = True
        super().data_received(data)

    def pause_writing(self) -> None:
        self._unsent = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unsent = False
        self._moved = True
        super().resume_writing()

    def on_response_complete(self) -> None:
        self._rest()  # what may still be here is less than a piece
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._connection.leave()
        super().connection_lost(exc)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose whole head has come."""

        async def in_pieces(message: Message) -> None:
            body = message.get("body", b"")
            last = max(len(body) - 1, 0) // PIECE * PIECE
            for start in range(0, last, PIECE):
                await send({**message, "body": body[start : start + PIECE], "more_body": True})
            await send({**message, "body": body[last:]} if last else message)

        if scope["path"] in self._reserved:
            await self._application(scope, receive, send)
        elif self._connection.work():
            self._moved = True
            self._look()
            await self._application(scope, receive, in_pieces)
        else:
            await _TOO_MANY(scope, receive, send)

    def _rest(self) -> None:
        """The connection is idle, and has a while for its next request."""
        self._connection.rest()
        self._wait(self.transport.abort)

    def _look(self) -> None:
        """A request is under way: end it where it waits for its client, and that has not gone on since the last look."""
        if not self._moved and (self._unsent or self.conn.their_state is h11.SEND_BODY):
            self.transport.abort()
        else:
            self._moved = False
            self._wait(self._look)

    def _wait(self, then: Callable[[], None]) -> None:
        if self._lost:
            return  # a request may come to its answer after its connection has gone
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._patience, then)


def _of_strangers(record: logging.LogRecord) -> bool:
    """Keep out of the log what strangers could fill it with: requests that cannot be read, or are too many."""
    error = record.exc_info[1] if record.exc_info else None
    return record.levelno >= logging.ERROR and not isinstance(error, h11.ProtocolError)
