"""Sockets of clients and workers."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING

from mainspring.client.addresses import DESCRIPTORS, SOCKET_PATH_BYTES

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable, Iterator

    from mainspring.client.addresses import Address

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
