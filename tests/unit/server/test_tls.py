from __future__ import annotations

import shutil
import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pytest

from mainspring.errors import SettingsError
from mainspring.server.settings import TlsSettings
from mainspring.server.sockets import reload_context, server_context

from .certificates import Pair, self_signed, signed

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


Pki = tuple[Pair, Pair, Pair]

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    directory = tmp_path_factory.mktemp("pki")
    authority = self_signed(directory, "authority")
    return authority, signed(directory, "server", authority), signed(directory, "client", authority)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, str | None]:
    """Return the subject of the certificate that the client got; raise the error of either side."""
    ours, theirs = socket.socketpair()
    failures: list[OSError] = []

    def serve() -> None:
        try:
            with server.wrap_socket(ours, server_side=True) as wrapped:
                wrapped.sendall(b"x")
        except OSError as error:
            failures.append(error)
            ours.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(theirs, server_hostname="localhost") as wrapped:
            wrapped.recv(1)
            seen: Any = wrapped.getpeercert()
            version = wrapped.version()
    finally:
        theirs.close()
        thread.join()
    if failures:
        raise failures[0]
    return dict(entry[0] for entry in seen["subject"])["commonName"], version


def client_context(authority: Pair, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


def test_tls_without_clients_certificates(pki: Pki) -> None:
    authority, server, _ = pki
    name, version = handshake(server_context(TlsSettings(*server)), client_context(authority))
    assert (name, version) == ("server", "TLSv1.3")


def test_client_certificates_are_required_with_an_authority(pki: Pki) -> None:
    authority, server, client = pki
    context = server_context(TlsSettings(*server, client_ca=authority.certificate))
    assert handshake(context, client_context(authority, client))[0] == "server"
    with pytest.raises(OSError, match="certificate"):
        handshake(context, client_context(authority))


def test_old_versions_are_refused(pki: Pki) -> None:
    authority, server, _ = pki
    old = client_context(authority)
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):
        handshake(server_context(TlsSettings(*server)), old)


def test_a_reload_uses_new_files_and_keeps_the_old_ones_if_they_are_broken(pki: Pki, tmp_path: Path) -> None:
    authority, server, client = pki
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    shutil.copy(server.certificate, certificate)
    shutil.copy(server.key, key)
    settings = TlsSettings(certificate, key)
    context = server_context(settings)
    shutil.copy(client.certificate, certificate)
    with pytest.raises(SettingsError, match="does not match the certificate"):
        reload_context(context, settings)
    assert handshake(context, client_context(authority))[0] == "server"
    shutil.copy(client.key, key)
    reload_context(context, settings)
    assert handshake(context, client_context(authority))[0] == "client"


def test_broken_files_are_named(pki: Pki, tmp_path: Path) -> None:
    authority, server, client = pki
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    missing = tmp_path / "missing.pem"
    for settings, words in [
        (TlsSettings(missing, server.key), "cannot read the certificate .*missing.pem: No such file"),
        (TlsSettings(server.certificate, missing), "cannot read the key .*missing.pem"),
        (TlsSettings(*server, client_ca=missing), "cannot read the clients' authority"),
        (TlsSettings(rubbish, server.key), "rubbish.pem .* hold no certificate and key in PEM form"),
        (TlsSettings(server.certificate, client.key), "client.key does not match the certificate .*server.pem"),
        (TlsSettings(*server, client_ca=rubbish), "rubbish.pem holds no certificate"),
    ]:
        with pytest.raises(SettingsError, match=words):
            server_context(settings)
    assert authority
