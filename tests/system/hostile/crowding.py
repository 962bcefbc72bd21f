"""Attacks by connections to the HTTP port that stay idle."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.system.servers import eventually

from .watching import get, watched

if TYPE_CHECKING:
    from tests.system.servers import Server


def idle_connections(server: Server, *, count: int) -> None:
    """Open more connections than the server may have open files: health checks and Gearman must still be served."""
    with ExitStack() as stack, watched(server):
        for _ in range(count):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.http), 10))
        for _ in range(3):
            assert get(server.http, "/healthz") == (200, b"ok\n")
            assert get(server.http, "/readyz") == (200, b"ready\n")
            with server.peer() as newcomer:
                newcomer.sync()
    eventually(lambda: get(server.http, "/readyz")[0] == 200, "it is ready when the connections have ended")
