from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest
from tests.closed_servers import close_with_connections


@pytest.mark.parametrize("turns", range(8))
def test_a_connection_is_closed_however_late_it_was_accepted(turns: int) -> None:
    """The server closes some iterations of the loop after a client connected, at any step of the acceptance."""
    transports: list[asyncio.WriteTransport] = []

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.WriteTransport)
            transports.append(transport)

    async def test(client: socket.socket) -> None:
        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
        client.connect(server.sockets[0].getsockname())
        for _ in range(turns):
            await asyncio.sleep(0)
        await close_with_connections(server, lambda: transports)

    with warnings.catch_warnings(record=True) as caught, socket.socket() as client:
        warnings.simplefilter("always")
        asyncio.run(test(client))
        transports.clear()
        gc.collect()
    assert [str(each.message) for each in caught] == []
