"""TCP keepalive on a listening socket; accepted connections inherit it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.server.settings import KeepaliveSettings


def keep_alive(sock: socket.socket, settings: KeepaliveSettings) -> None:
    """Find peers that vanished without a word, by the operating system's probes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", settings.idle),
        ("TCP_KEEPINTVL", settings.interval),
        ("TCP_KEEPCNT", settings.count),
    ):
        number = getattr(socket, option, None)
        if number is not None and value is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
