"""Many clients of streams that read nothing, on real connections."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.faces.rest.streams import Streams
from mainspring.faces.web.connections import Connections
from mainspring.faces.web.listener import HEALTH, HttpListener
from mainspring.server.ports import Listener
from mainspring.worker.processes import resident_bytes

from .a_client import serving
from .test_streams import ROUTES, Follow, Subject, Thing

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

READERS = 500
MEMORY = 64 << 20
"""Bytes by which all of them may increase the memory of the node."""
REQUEST = b"GET /api/v1/namespaces/default/thing%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer viewer\r\n\r\n"


@pytest.fixture(autouse=True)
def _files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 3 * READERS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * READERS), hard))


async def ask(address: Any, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


def test_readers_that_never_read_cost_little_and_harm_nobody() -> None:
    """Streams beyond the limit are refused, the others keep the newest state alone, and all other requests are answered."""

    async def test() -> None:
        subject, limit = Subject(), 169  # the share of one caller
        streams = Streams()
        async with serving(ROUTES, streams=streams) as (client, node):
            node.api.add({Thing: subject.show})
            node.api.add_streams({Follow: subject.follow})

            async def app(scope: Scope, receive: Receive, send: Send) -> None:
                if scope["path"] in HEALTH:
                    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
                    await send({"type": "http.response.body", "body": b""})
                else:
                    await client.app(scope, receive, send)

            http = HttpListener(app, reserved=HEALTH, request_timeout=30)
            await http.start()
            bound = socket.create_server(("127.0.0.1", 0), backlog=READERS)
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 13)
            listener = Listener(bound, Connections(1024, 512, port="test"), http.protocol)
            listener.start()
            silent = []
            before = resident_bytes()
            try:
                for _ in range(READERS):
                    one = socket.socket()
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
                    one.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(one, bound.getsockname())
                    await asyncio.get_running_loop().sock_sendall(one, REQUEST % b"/stream")
                    silent.append(one)
                while len(subject.feeds) < limit:
                    subject.begun.clear()
                    await subject.begun.wait()
                blob = "x" * 10_000
                for number in range(100):
                    for feed in subject.feeds:
                        feed.replace("thing", {"number": number, "text": blob})
                    await asyncio.sleep(0)
                assert len(subject.feeds) == limit
                assert resident_bytes() - before < MEMORY
                assert (await ask(bound.getsockname(), b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(
                    b"HTTP/1.1 200"
                )
                assert b" 200 OK" in await ask(bound.getsockname(), REQUEST % b"")
                refused = await ask(bound.getsockname(), REQUEST % b"/stream")
                assert b" 503 " in refused
                assert b"retry-after: 5" in refused
                assert max(feed.unsent for feed in streams.feeds) <= 10_100, "only the newest state waits"
            finally:
                for one in silent:
                    one.close()
                await listener.close()
                streams.end()
                await http.stop()

    asyncio.run(test())
