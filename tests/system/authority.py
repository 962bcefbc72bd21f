"""Certificates of all kinds, created with the openssl command."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

CONFIGURATION = """
[ca]
default_ca = own
[own]
dir = {directory}
database = {directory}/index
serial = {directory}/serial
new_certs_dir = {directory}
default_md = sha256
policy = any
unique_subject = no
copy_extensions = copy
[any]
commonName = supplied
"""
KEY_OPTIONS = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
KEY_USAGE = "keyUsage=critical,keyCertSign,cRLSign"
"""Python 3.13 and newer refuse an authority whose certificate has no key usage."""
CURRENT_VALIDITY = ("20200101000000Z", "20491231000000Z")
EXPIRED_VALIDITY = ("20200101000000Z", "20200102000000Z")


class Pair(NamedTuple):
    """A certificate and its key, in PEM files."""

    certificate: Path
    key: Path

    def options(self) -> tuple[str, ...]:
        """Return the server's options for this pair."""
        return "--tls-cert", str(self.certificate), "--tls-key", str(self.key)


class Authority:
    """Signs certificates for 127.0.0.1."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory / name
        self._directory.mkdir()
        self.pair = Pair(self._directory / "ca.pem", self._directory / "ca.key")
        (self._directory / "index").touch()
        (self._directory / "serial").write_text("01\n")
        (self._directory / "configuration").write_text(CONFIGURATION.format(directory=self._directory))
        key, certificate = str(self.pair.key), str(self.pair.certificate)
        subject = ("-subj", f"/CN={name}", "-addext", KEY_USAGE)
        _openssl("req", "-x509", *KEY_OPTIONS, "-days", "2", *subject, "-keyout", key, "-out", certificate)

    def sign(self, name: str, validity: tuple[str, str] = CURRENT_VALIDITY) -> Pair:
        """Create a certificate that is valid between two times."""
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        request = str(self._directory / f"{name}.csr")
        address = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        _openssl("req", *KEY_OPTIONS, "-subj", f"/CN={name}", *address, "-keyout", str(pair.key), "-out", request)
        _openssl(
            *("ca", "-batch", "-notext", "-config", str(self._directory / "configuration")),
            *("-cert", str(self.pair.certificate), "-keyfile", str(self.pair.key), "-in", request),
            *("-startdate", validity[0], "-enddate", validity[1], "-out", str(pair.certificate)),
        )
        return pair


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
