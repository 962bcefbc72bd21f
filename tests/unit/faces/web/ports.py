"""Ports for faces over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from mainspring.faces.web.connections import Connections
from mainspring.server.ports import Listener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from mainspring.faces.web.connections import Connection

    Connect = Callable[..., Awaitable[asyncio.StreamReader]]


@contextlib.asynccontextmanager
async def accepting(
    protocol: Callable[[Connection], asyncio.BaseProtocol], limit: int, working: int
) -> AsyncIterator[tuple[str, int]]:
    """Accept connections on a free port until the end of the block. Yield its address."""
    bound = socket.create_server(("127.0.0.1", 0))
    bound.setblocking(False)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
    listener = Listener(bound, Connections(limit, working, port="test"), protocol)
    listener.start()
    try:
        yield bound.getsockname()
    finally:
        await listener.close()


@contextlib.asynccontextmanager
async def connecting(address: tuple[str, int]) -> AsyncIterator[Connect]:
    """Yield a function that connects and sends bytes. All connections are closed at the end of the block.

    They have small buffers, so that the server soon detects unread data.
    """
    writers: list[asyncio.StreamWriter] = []

    async def connect(data: bytes = b"") -> asyncio.StreamReader:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, address)
        reader, writer = await asyncio.open_connection(sock=plain, limit=1 << 14)
        writers.append(writer)
        writer.write(data)
        return reader

    try:
        yield connect
    finally:
        for writer in writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
