"""An HTTP server inside a loop that belongs to somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from starlette.types import ASGIApp


PATIENCE: Final = 30.0
"""Seconds that a connection has for each request: to send it, and to take the answer."""


class HttpListener:
    """Serves an application on a socket that is bound already; None: on connections that others accept, see `protocol`.

    ``patience`` is in seconds, as ``PATIENCE``.
    """

    def __init__(
        self,
        app: ASGIApp,
        bound: socket.socket | None,
        *,
        patience: float = PATIENCE,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=type("_Impatient", (_Impatient,), {"patience": patience}),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=1,
            limit_concurrency=256,
            h11_max_incomplete_event_size=16 * 1024,
        )
        config.load()
        logging.getLogger("uvicorn.error").addFilter(_of_strangers)
        self._server = _QuietServer(config)
        self._bound = bound
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer; returns when connections are taken."""
        self._task = asyncio.create_task(self._server.serve([] if self._bound is None else [self._bound]), name="http")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the HTTP server ended while it started")
            await asyncio.sleep(0.001)  # uvicorn has no event for this

    def protocol(self) -> asyncio.Protocol:
        """Return what serves one connection."""
        config = self._server.config
        made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=self._server.server_state, app_state=self._server.lifespan.state
        )
        return made

    async def stop(self) -> None:
        """Take no more connections, and end those that are open within about a second."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None


class _QuietServer(uvicorn.Server):
    """Leaves signals to the node."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Impatient(H11Protocol):
    """Ends a connection that takes too long for a request.

    uvicorn limits the time between requests alone: some hundred connections with half of one would keep everybody else out, and
    whoever asks for the health would have the node restarted.
    """

    patience = PATIENCE
    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._end = self.loop.call_later(self.patience, self.transport.abort)


def _of_strangers(record: logging.LogRecord) -> bool:
    """Keep out of the log what strangers could fill it with: requests that cannot be read, or are too many."""
    error = record.exc_info[1] if record.exc_info else None
    return record.levelno >= logging.ERROR and not isinstance(error, h11.ProtocolError)
