"""Certificates for tests, created with the openssl command."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Pair(NamedTuple):
    certificate: Path
    key: Path


def self_signed(directory: Path, name: str) -> Pair:
    """Create an authority, which is its own certificate."""
    pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"),
        *("-subj", f"/CN={name}", "-keyout", str(pair.key), "-out", str(pair.certificate)),
    )
    return pair


def signed(directory: Path, name: str, authority: Pair) -> Pair:
    """Create a certificate for localhost that an authority has signed."""
    pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    request, extensions = directory / f"{name}.csr", directory / f"{name}.ext"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", str(pair.key), "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(authority.certificate), "-CAkey", str(authority.key)),
        *("-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", str(pair.certificate)),
    )
    return pair


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
