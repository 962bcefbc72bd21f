"""An HTTP server inside a loop that belongs to somebody else."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Generator

    from starlette.types import ASGIApp


class HttpListener:
    """Serves an application on a socket that is bound already."""

    def __init__(self, app: ASGIApp, bound: socket.socket, *, tls: ssl.SSLContext | None = None) -> None:
        config = uvicorn.Config(
            app,
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
        config.ssl = tls
        self._server = _QuietServer(config)
        self._bound = bound
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer; returns when connections are taken."""
        self._task = asyncio.create_task(self._server.serve([self._bound]), name="http")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the HTTP server ended while it started")
            await asyncio.sleep(0.001)  # uvicorn has no event for this

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
