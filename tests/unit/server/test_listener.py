"""The listener on the loops that a node may run on."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import structlog
import uvloop

from mainspring.faces.web.connections import Connection, Connections
from mainspring.server import ports as module
from mainspring.server.ports import Handshakes, Listener
from mainspring.server.settings import TlsSettings
from mainspring.server.sockets import server_context

from .certificates import Pair, self_signed, signed

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")

Pki = tuple[Pair, Pair, Pair]
PLAIN = b"this port speaks TLS"
OWN = 6
"""Descriptors of the loop, of its thread, and of the client that is served."""


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    directory = tmp_path_factory.mktemp("pki")
    authority = self_signed(directory, "authority")
    return authority, signed(directory, "server", authority), signed(directory, "client", authority)


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's by class.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def listen(
    pki: Pki, loop: Callable[[], asyncio.AbstractEventLoop], client: Callable[[int], object], timeout: float = 10.0
) -> tuple[object, list[str]]:
    """Run a blocking client against a listener; return its value, and the reasons in the log."""
    authority, server, _ = pki
    bound = socket.create_server(("127.0.0.1", 0))
    bound.setblocking(False)
    port: int = bound.getsockname()[1]

    async def run() -> object:
        context = server_context(TlsSettings(*server, authority.certificate))
        connections = Connections(8, 0, port="test")
        listener = Listener(bound, connections, lambda _: Echo(), Handshakes(context, timeout, PLAIN), bounded=False)
        listener.start()
        try:
            return await asyncio.get_running_loop().run_in_executor(None, client, port)
        finally:
            await listener.close()
            assert len(connections) == 0

    with structlog.testing.capture_logs() as lines, asyncio.Runner(loop_factory=loop) as runner:
        value = runner.run(run())
    assert all(line["event"] == "tls handshake refused" for line in lines)
    assert all(line["peer"].startswith("127.0.0.1:") for line in lines)
    return value, [line["reason"] for line in lines]


def context(pki: Pki, *, with_certificate: bool) -> ssl.SSLContext:
    tls = ssl.create_default_context(cafile=pki[0].certificate)
    if with_certificate:
        tls.load_cert_chain(*pki[2])
    return tls


def greeting(tls: ssl.SSLContext) -> Callable[[int], object]:
    """Return a client that sends a word and returns the answer, or the reason of the alert."""

    def greet(port: int) -> object:
        with socket.create_connection(("127.0.0.1", port), 20) as plain:
            try:
                with tls.wrap_socket(plain, server_hostname="localhost") as wrapped:
                    wrapped.sendall(b"hello")
                    return wrapped.recv(100)
            except ssl.SSLError as error:
                return error.reason

    return greet


loops = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@loops
def test_a_defect_while_a_connection_is_accepted_does_not_close_the_port(
    pki: Pki, loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ACCEPT_RETRY_DELAY", 0.0)
    accept, defects = Listener._next, [ValueError("a defect")]  # noqa: SLF001 - the loop's own method cannot be replaced

    async def defective(listener: Listener) -> Any:
        if defects:
            raise defects.pop()
        return await accept(listener)

    monkeypatch.setattr(Listener, "_next", defective)
    monkeypatch.setattr(module.log, "exception", lambda *_: None)
    assert listen(pki, loop, greeting(context(pki, with_certificate=True))) == (b"hello", [])
    assert defects == []


@loops
def test_clients_with_a_certificate_are_served(pki: Pki, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    assert listen(pki, loop, greeting(context(pki, with_certificate=True))) == (b"hello", [])


@loops
@pytest.mark.parametrize(
    ("version", "alert"),
    [
        (ssl.TLSVersion.TLSv1_3, "TLSV13_ALERT_CERTIFICATE_REQUIRED"),
        (ssl.TLSVersion.TLSv1_2, "SSLV3_ALERT_HANDSHAKE_FAILURE"),
    ],
)
def test_a_client_without_a_certificate_gets_the_reason(
    pki: Pki, loop: Callable[[], asyncio.AbstractEventLoop], version: ssl.TLSVersion, alert: str
) -> None:
    tls = context(pki, with_certificate=False)
    tls.maximum_version = version
    assert listen(pki, loop, greeting(tls)) == (alert, ["the client showed no certificate"])


@loops
def test_a_client_without_tls_gets_an_answer(pki: Pki, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    def greet(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), 20) as plain:
            plain.sendall(b"\0REQ\0\0\0\x10\0\0\0\0")
            return plain.recv(100)

    assert listen(pki, loop, greet) == (PLAIN, ["the client does not speak TLS"])


@loops
def test_a_client_that_disconnects_causes_no_line(pki: Pki, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    def look(port: int) -> object:
        socket.create_connection(("127.0.0.1", port), 20).close()
        return greeting(context(pki, with_certificate=True))(port)

    assert listen(pki, loop, look) == (b"hello", [])


@loops
def test_a_silent_client_is_ended(pki: Pki, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    def wait(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), 20) as silent:
            return silent.recv(100)

    assert listen(pki, loop, wait, timeout=0.2) == (b"", ["the handshake took longer than 200ms"])


class Held(Echo):
    """A connection that stays idle."""

    def __init__(self, place: Connection) -> None:
        self.place = place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.place.begin(self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.place.release()


@loops
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_idle_connections_use_no_more_descriptors_than_places(
    pki: Pki, loop: Callable[[], asyncio.AbstractEventLoop], tls: bool
) -> None:
    """A hundred connections wait in the backlog when the port starts to listen; a later one is served."""
    bound = socket.create_server(("127.0.0.1", 0), backlog=200)
    bound.setblocking(False)
    client = greeting(context(pki, with_certificate=True)) if tls else talk
    handshakes = Handshakes(server_context(TlsSettings(*pki[1], pki[0].certificate)), 10.0) if tls else None

    async def run() -> tuple[object, int]:
        before, most, held = descriptors(), 0, list[Held]()

        def protocol(place: Connection) -> Held:
            nonlocal most
            most = max(most, descriptors() - before)
            held.append(Held(place))
            return held[-1]

        listener = Listener(bound, Connections(8, 2, port="test"), protocol, handshakes)
        listener.start()
        try:
            return await asyncio.get_running_loop().run_in_executor(None, client, bound.getsockname()[1]), most
        finally:
            await listener.close()
            for one in held:
                one.place.end()

    with contextlib.ExitStack() as silent, asyncio.Runner(loop_factory=loop) as runner:
        for _ in range(100):
            silent.enter_context(socket.create_connection(bound.getsockname()))
        answer, most = runner.run(run())
    assert answer == b"hello"
    assert most <= 8 * (2 if tls else 1) + OWN


def talk(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 20) as plain:
        plain.sendall(b"hello")
        return plain.recv(100)


def descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())
