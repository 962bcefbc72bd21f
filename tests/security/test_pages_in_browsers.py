"""Requests of HTTP, with bodies of its choice, that a page in a browser can send to the ports of its machine."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.access.proxy import HostNames
from mainspring.server.build import open_node
from mainspring.server.engines import build_engine
from mainspring.server.fleet import SystemClock
from mainspring.server.http import HttpPort
from mainspring.server.node import Shutdown
from mainspring.server.settings import ListenSettings, ServerSettings, TcpAddress, parse_store
from mainspring.wire.gearman_protocol import EXTENSION, Type, request
from tests.unit.faces.gearman.a_face import Node, configure
from tests.unit.faces.web.ports import accepting
from tests.unit.faces.web.test_gearmand_http import exchange

HEAD = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:4730\r\nOrigin: http://page.example\r\nContent-Type: text/plain\r\n\r\n"
BODIES = {
    "a line": b"\nshutdown\n",
    "a job": request(Type.SUBMIT_JOB_BG, b"from_a_page", b"", b"[1]"),
    "a token": request(Type.OPTION_REQ, EXTENSION) + request(Type.CALL, b"1", b"tokens.create", b'{"name": "x"}'),
}


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_gearman_port_executes_nothing_of_a_request_of_http(body: bytes, size: int) -> None:
    node = Node()
    configure(node, allow_shutdown=True)
    asked: list[bool] = []
    node.face.shut_down = asked.append
    peer = node.connect()
    data = HEAD + body
    for start in range(0, len(data), size):
        peer.send(data[start : start + size])
    node.commit()
    assert [args[0] for _, args in peer.received()] == ["FOREIGN_PROTOCOL"]
    assert peer.closed
    assert asked == []
    assert node.service.dispatch.queues.get(b"from_a_page") is None


def test_metrics_on_loopback_are_for_those_who_name_this_node() -> None:
    """After DNS rebinding, a page of any site could read the names of all functions: for its browser they are of its own site."""

    async def test() -> None:
        clock = SystemClock()
        listen = ListenSettings(gearman=(), http=TcpAddress("127.0.0.1", 8080), http_hosts=("build.example",))
        settings = ServerSettings(store=parse_store("memory://"), listen=listen)
        built = await open_node(settings, build_engine(settings.store), clock, Shutdown(clock, 1.0))
        try:
            port = HttpPort(built, places=8)
            await port.start()
            async with accepting(port.protocol, 8, 4) as address:
                for host, status in (
                    ("page.example", 421),
                    ("page.example:8080", 421),
                    ("127.0.0.1.page.example", 421),
                    ("127.0.0.1:8080", 200),
                    ("localhost", 200),
                    ("build.example:8080", 200),
                ):
                    reader, writer = await asyncio.open_connection(*address)
                    writer.write(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                    answer = await reader.read()
                    assert int(answer.split()[1]) == status, (host, answer)
                    assert (b"mainspring_ready" in answer) == (status == 200)
                    writer.close()
            await port.stop()
        finally:
            await built.node.close()

    asyncio.run(test())


PAGE = b"Sec-Fetch-Site: cross-site\r\n"
REFUSED = {
    "a page of another site": (PAGE, b"403"),
    "a page of another port": (b"Sec-Fetch-Site: same-site\r\n", b"403"),
    "a page of a browser without Sec-Fetch-Site": (b"Host: localhost\r\nOrigin: http://page.example\r\n", b"403"),
    "an image of a page, on an address that browsers do not trust": (b"User-Agent: Mozilla/5.0 (X11)\r\n", b"403"),
    "another host, as with DNS rebinding": (b"Host: page.example\r\nSec-Fetch-Site: same-origin\r\n", b"421"),
    "no host": (b"Host: \r\n", b"421"),
    "two hosts": (b"Host: localhost\r\nHost: page.example\r\n", b"400"),
}
ACCEPTED = (
    b"",
    b"Host: 127.0.0.1:8080\r\n",
    b"Host: [::1]:8080\r\nUser-Agent: curl/8\r\n",
    b"Host: LOCALHOST\r\n",
    b"Host: build.example.\r\nSec-Fetch-Site: none\r\nUser-Agent: Mozilla/5.0\r\n",
)


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize(("headers", "status"), REFUSED.values(), ids=REFUSED)
def test_gearmands_http_submits_nothing_for_a_page(headers: bytes, status: bytes, method: bytes) -> None:
    answer, submitted = exchange(method + b" /rev HTTP/1.1\r\n" + headers + b"\r\n", hosts=HostNames(["build.example"]))
    assert answer.startswith(b"HTTP/1.0 " + status)
    assert submitted == []


@pytest.mark.parametrize("headers", ACCEPTED)
def test_gearmands_http_submits_for_programs_and_for_the_bar_of_addresses(headers: bytes) -> None:
    answer, submitted = exchange(b"POST /rev HTTP/1.1\r\n" + headers + b"\r\n", hosts=HostNames(["build.example"]))
    assert answer.startswith(b"HTTP/1.0 200")
    assert len(submitted) == 1
