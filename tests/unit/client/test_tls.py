"""Both clients and the worker over TLS, with a certificate asked of the client."""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.client.extension_server import ExtensionServer
from tests.unit.server.certificates import self_signed, signed

from mainspring import App, ConnectionLostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def contexts(tmp_path: Path, require: Callable[[str], str]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    require("openssl")
    authority = self_signed(tmp_path, "authority")
    of_server, of_client = signed(tmp_path, "server", authority), signed(tmp_path, "client", authority)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(of_server.certificate, of_server.key)
    server.load_verify_locations(authority.certificate)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=authority.certificate)
    client.load_cert_chain(of_client.certificate, of_client.key)
    return server, client


def test_submit_and_work(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    with ExtensionServer(tls=contexts[0]) as server:
        app = App(str(server.address), tls=contexts[1])

        @app.task
        def size(data: bytes) -> int:
            return len(data)

        made = threading.Event()
        found: dict[str, Any] = {}

        async def work() -> None:
            found["worker"], found["loop"] = app.worker(), asyncio.get_running_loop()
            made.set()
            await found["worker"].run()

        async def submit() -> int:
            result = await (await size.asubmit(b"x" * 200_000)).aresult(20)
            await app.aclose()
            return result

        thread = threading.Thread(target=asyncio.run, args=[work()])
        thread.start()
        try:
            assert made.wait(10)
            jobs = size.submit_many([b"x" * 100_000] * 30)
            assert list(app.results(jobs, timeout=20)) == [100_000] * 30
            assert asyncio.run(submit()) == 200_000
        finally:
            found["loop"].call_soon_threadsafe(found["worker"].stop)
            thread.join(20)
            app.close()


def test_a_certificate_that_nobody_vouches_for(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    with ExtensionServer(tls=contexts[0]) as server:
        app = App(str(server.address), tls=ssl.create_default_context())
        with pytest.raises(ConnectionLostError, match="certificate verify failed"):
            app.function("f").submit(b"")

        async def submit() -> None:
            try:
                await app.function("f").asubmit(b"")
            finally:
                await app.aclose()

        with pytest.raises(ConnectionLostError, match="certificate verify failed"):
            asyncio.run(submit())
