"""Failed attempts to connect."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest
from tests.closed_servers import close_with_connections

from mainspring.engines.postgres import connections
from mainspring.engines.postgres.connections import connect
from mainspring.errors import StoreUnavailableError


@pytest.mark.parametrize("turns", range(1, 12))
def test_a_cancelled_attempt_leaves_no_unretrieved_exception(turns: int) -> None:
    """The server hangs up; the attempt is cancelled after a number of iterations of the loop, at any of its steps."""
    reported: list[object] = []
    accepted: list[asyncio.WriteTransport] = []

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer.transport)
        writer.close()

    async def test() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            attempt = loop.create_task(connect(connections.parse_address(f"postgresql://u@127.0.0.1:{port}/d"), "test"))
            for _ in range(turns):
                await asyncio.sleep(0)
            attempt.cancel()
            with contextlib.suppress(asyncio.CancelledError, StoreUnavailableError):
                await attempt
            del attempt
            for _ in range(5):
                await asyncio.sleep(0)  # the loop closes dropped sockets
            gc.collect()
        finally:
            await close_with_connections(server, lambda: accepted)

    asyncio.run(test())
    assert reported == []
