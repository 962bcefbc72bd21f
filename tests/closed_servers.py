"""The end of an asyncio server in a test: no connection is left, not even the one that was accepted last."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ITERATIONS_TO_A_PROTOCOL = 4
"""Iterations of the loop from the accepted socket of a connection until its protocol has its transport."""
ITERATIONS_TO_THE_END = 2
"""Iterations from ``abort`` until the socket is closed."""


async def close_with_connections(
    server: asyncio.Server, transports: Callable[[], Iterable[asyncio.WriteTransport]]
) -> None:
    """Close a server and the transports of its protocols.

    A connection gets its protocol some iterations of the loop after it was accepted. In between, ``server.close()`` would
    leave its socket to a collection of garbage, and the test that is running then would fail. So the server stops to accept
    first. ``transports`` is called when each accepted connection has its protocol.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    for _ in range(ITERATIONS_TO_A_PROTOCOL):
        await asyncio.sleep(0)
    server.close()
    for transport in [*transports()]:
        transport.abort()
    for _ in range(ITERATIONS_TO_THE_END):
        await asyncio.sleep(0)
    await server.wait_closed()
