"""Ports that stay reserved while no process listens on them."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 10_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def steady_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on, below those that the kernel gives to outgoing connections.

    A server that is down for a while gets its port back: of the kernel's own range, a client that reconnects in the
    meantime could be given the very port that it wants to reach, and be connected with itself.
    """
    above = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    while True:
        port = random.randrange(min(LOWEST, above - 1_000), above)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
