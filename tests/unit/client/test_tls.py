"""Both clients and the worker over TLS with client certificates, and the variables of the environment for TLS."""

from __future__ import annotations

import asyncio
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.unit.client.extension_server import ExtensionServer
from tests.unit.server.certificates import self_signed, signed

from mainspring import App, ConnectionLostError, SettingsError
from mainspring.client.sockets import TLS_OPTIONS, TLS_VARIABLES, TlsFiles

if TYPE_CHECKING:
    from collections.abc import Callable


class Contexts(NamedTuple):
    server: ssl.SSLContext
    client: ssl.SSLContext
    files: TlsFiles
    """The client's files."""


@pytest.fixture
def contexts(tmp_path: Path, require: Callable[[str], str]) -> Contexts:
    require("openssl")
    authority = self_signed(tmp_path, "authority")
    of_server, of_client = signed(tmp_path, "server", authority), signed(tmp_path, "client", authority)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(of_server.certificate, of_server.key)
    server.load_verify_locations(authority.certificate)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=authority.certificate)
    client.load_cert_chain(of_client.certificate, of_client.key)
    return Contexts(server, client, TlsFiles(*map(str, (authority.certificate, *of_client))))


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAINSPRING_SERVER", *TLS_VARIABLES):
        monkeypatch.delenv(name, raising=False)


def set_variables(monkeypatch: pytest.MonkeyPatch, files: TlsFiles, server: ExtensionServer | None = None) -> None:
    """Name files, and a server, in the environment."""
    for name, path in zip(TLS_VARIABLES, files, strict=True):
        monkeypatch.setenv(name, path or "")
    if server is not None:
        monkeypatch.setenv("MAINSPRING_SERVER", str(server.address))


@pytest.mark.parametrize("named_by", ["the program", "the environment"])
def test_submit_and_work(contexts: Contexts, monkeypatch: pytest.MonkeyPatch, named_by: str) -> None:
    with ExtensionServer(tls=contexts.server) as server:
        app = App() if named_by == "the environment" else App(str(server.address), tls=contexts.client)
        if named_by == "the environment":
            set_variables(monkeypatch, contexts.files, server)

        @app.task
        def size(data: bytes) -> int:
            return len(data)

        created = threading.Event()
        found: dict[str, Any] = {}

        async def work() -> None:
            found["worker"], found["loop"] = app.worker(), asyncio.get_running_loop()
            created.set()
            await found["worker"].run()

        async def submit() -> int:
            result = await (await size.asubmit(b"x" * 200_000)).aresult(20)
            await app.aclose()
            return result

        thread = threading.Thread(target=asyncio.run, args=[work()])
        thread.start()
        try:
            assert created.wait(10)
            jobs = size.submit_many([b"x" * 100_000] * 30)
            assert list(app.results(jobs, timeout=20)) == [100_000] * 30
            assert asyncio.run(submit()) == 200_000
        finally:
            found["loop"].call_soon_threadsafe(found["worker"].stop)
            thread.join(20)
            app.close()


def test_a_certificate_of_an_unknown_authority_is_refused(contexts: Contexts) -> None:
    with ExtensionServer(tls=contexts.server) as server:
        app = App(str(server.address), tls=ssl.create_default_context())
        with pytest.raises(ConnectionLostError, match=r"not from a trusted authority .*--tls-ca"):
            app.function("f").submit(b"")

        async def submit() -> None:
            try:
                await app.function("f").asubmit(b"")
            finally:
                await app.aclose()

        with pytest.raises(ConnectionLostError, match=r"not from a trusted authority .*--tls-ca"):
            asyncio.run(submit())


# The environment.


def test_the_environments_files_apply_to_the_environments_servers(
    contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, contexts.files)
    assert App().tls() is not None
    assert App("plain.example:4730").tls() is None
    assert App(tls=contexts.client).tls() is contexts.client
    late = App()
    late.connect_to("plain.example:4730")
    assert late.tls() is None
    monkeypatch.delenv(TLS_VARIABLES.authority)
    with pytest.raises(SettingsError, match="MAINSPRING_TLS_CERT and MAINSPRING_TLS_KEY need MAINSPRING_TLS_CA"):
        App().function("f").submit(b"")


def test_a_plain_server_needs_no_files() -> None:
    assert App().tls() is None
    assert TlsFiles().context(TLS_OPTIONS) is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (TlsFiles(certificate="c"), "--tls-cert and --tls-key need --tls-ca"),
        (TlsFiles(key="k"), "--tls-cert and --tls-key need --tls-ca"),
        (TlsFiles("a", "c"), "--tls-cert and --tls-key belong together"),
        (TlsFiles("a", key="k"), "--tls-cert and --tls-key belong together"),
        (TlsFiles("/does/not/exist", "c", "k"), "cannot use /does/not/exist, c, k for TLS: No such file"),
    ],
)
def test_unusable_files_are_refused(files: TlsFiles, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        files.context(TLS_OPTIONS)


def test_absolute_paths_keep_symbolic_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewed certificate may be another target of the same link."""
    monkeypatch.chdir(tmp_path)
    Path("current.pem").symlink_to("of-today.pem")
    absolute = TlsFiles("current.pem", None, "/own.key").absolute()
    assert absolute == TlsFiles(str(tmp_path / "current.pem"), None, "/own.key")
