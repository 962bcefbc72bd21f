"""Sockets of clients and workers, and the TLS files for them, which the command line or the environment names."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.client import environment
from mainspring.client.environment import DESCRIPTORS, SOCKET_PATH_BYTES, TLS_VARIABLES_OF_FILES
from mainspring.errors import SettingsError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from mainspring.client.environment import Address


class TlsFiles(NamedTuple):
    """The paths of PEM files; without an authority, connections do not use TLS."""

    authority: str | None = None
    """The authority that signed the server's certificate."""

    certificate: str | None = None
    """The certificate that the server checks."""

    key: str | None = None

    def absolute(self, directory: Path | None = None) -> TlsFiles:
        """Return the same files with absolute paths; symbolic links are not resolved.

        Relative paths begin in ``directory``, by default in the working directory.
        """
        start = Path() if directory is None else directory
        return TlsFiles(*(None if path is None else str((start / path).absolute()) for path in self))

    def context(self, names: TlsNames) -> ssl.SSLContext | None:
        """Read the files; return None for no TLS.  Raises SettingsError with the options' names in ``names``."""
        if self.authority is None:
            if self.certificate is not None or self.key is not None:
                raise SettingsError(
                    f"{names.certificate} and {names.key} need {names.authority}, the authority of the server's certificate"
                )
            return None
        if (self.certificate is None) != (self.key is None):
            raise SettingsError(f"{names.certificate} and {names.key} belong together: give both")
        try:
            context = ssl.create_default_context(cafile=self.authority)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(path for path in self if path is not None)
            raise SettingsError(f"cannot use {files} for TLS: {error.strerror or error}") from error
        return context


class TlsNames(NamedTuple):
    """The names of the options or variables for the files."""

    authority: str
    certificate: str
    key: str


TLS_OPTIONS: Final = TlsNames("--tls-ca", "--tls-cert", "--tls-key")
TLS_VARIABLES: Final = TlsNames(*TLS_VARIABLES_OF_FILES)


def tls_of_environment(directory: Path | None = None) -> ssl.SSLContext | None:
    """Return a context of the files that the environment names; None: no TLS.  Raises SettingsError."""
    files = TlsFiles(*(environment.variable(name) for name in TLS_VARIABLES))
    return (files if directory is None else files.absolute(directory)).context(TLS_VARIABLES)


KEEPALIVE_IDLE = 30
KEEPALIVE_INTERVAL = 10
KEEPALIVE_PROBES = 3


def tune(sock: socket.socket) -> None:
    """Configure a socket to send small packets at once, and to detect within about a minute that a peer's machine is gone."""
    if sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def reset(sock: socket.socket) -> None:
    """Let the end of a connection reset it: the peer then knows that nobody waits for its answers, and half-closed ones do."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """Yield a path of a Unix socket that the system accepts: an open descriptor replaces a long directory. Raises OSError."""
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        yield path
        return
    directory, name = os.path.split(path)
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{DESCRIPTORS}/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def open_socket(address: Address, tls: ssl.SSLContext | None, timeout: float) -> socket.socket:
    """Connect a blocking socket to a server; Unix sockets have no TLS.  Raises OSError."""
    if address.path is not None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            with short_path(address.path) as path:
                sock.connect(path)
        except OSError:
            sock.close()
            raise
        return sock
    sock = socket.create_connection(address, timeout)
    tune(sock)
    if tls is None:
        return sock
    try:
        return tls.wrap_socket(sock, server_hostname=address.host)
    except OSError:
        sock.close()
        raise


async def connect(address: Address, protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None) -> None:
    """Connect a protocol of the running loop to a server; Unix sockets have no TLS.  Raises OSError."""
    from asyncio import get_running_loop  # noqa: PLC0415 - slow to import; callers with a loop have imported it

    loop = get_running_loop()
    if address.path is not None:
        with short_path(address.path) as path:
            await loop.create_unix_connection(protocol, path)
    else:
        await loop.create_connection(protocol, address.host, address.port, ssl=tls)
