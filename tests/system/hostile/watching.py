"""Measures the effect of an attack on other clients: their round-trip times and the server's memory."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from typing import TYPE_CHECKING, Final

from tests.interop.packets import Kind, packet_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.extension import ExtensionPeer
    from tests.system.servers import Server

MIB: Final = 2**20
LONGEST_PING: Final = 1.0
"""Limit in seconds for a ping of another client during an attack: generous, for a machine that is busy with other tests."""
MEMORY_LIMIT: Final = 128 * MIB
"""Bytes by which a node's memory may grow during one attack."""


class Watch(threading.Thread):
    """Pings a server continuously and samples its memory."""

    def __init__(self, server: Server) -> None:
        super().__init__(name="watch", daemon=True)
        self.server = server
        self.before = server.rss()
        self.peak = self.before
        """The highest memory usage seen, in bytes."""
        self.longest = 0.0
        """The longest ping, in seconds."""
        self.failure: Exception | None = None
        self._peer = server.peer()
        self._over = threading.Event()

    def run(self) -> None:
        try:
            with self._peer:
                while not self._over.wait(0.01):
                    self._ping()
        except Exception as error:  # noqa: BLE001 - the test raises it again
            self.failure = error

    def _ping(self) -> None:
        begun = time.monotonic()
        self._peer.send(Kind.ECHO_REQ, b"ping")
        assert self._peer.receive() == packet_of(Kind.ECHO_RES, b"ping")
        self.longest = max(self.longest, time.monotonic() - begun)
        self.peak = max(self.peak, self.server.rss())

    def end(self) -> None:
        """Stop after the current ping."""
        self._over.set()
        self.join()

    @property
    def growth(self) -> int:
        """Bytes by which the server's memory grew at most."""
        return self.peak - self.before

    def __str__(self) -> str:
        return f"longest ping {self.longest:.3f} s, {self.growth / MIB:+.0f} MiB at most"


@contextlib.contextmanager
def watched(server: Server, *, stall: float | None = None, growth: int = MEMORY_LIMIT) -> Iterator[Watch]:
    """Assert that the block stalls no other client and uses a bounded part of the server's memory."""
    watch = Watch(server)
    watch.start()
    try:
        yield watch
    finally:
        watch.end()
        print(watch)  # noqa: T201 - shown with a test that fails, and by pytest -rP
    if watch.failure is not None:
        raise watch.failure
    assert watch.longest < (LONGEST_PING if stall is None else stall), watch
    assert watch.growth < growth, watch


def ping_for(peer: ExtensionPeer, seconds: float) -> None:
    """Send pings for some seconds, as an honest client does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        peer.sync()
        time.sleep(0.01)


def get(port: int, path: str, timeout: float = 5.0) -> tuple[int, bytes]:
    """Request a page on a new connection, and return its status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
