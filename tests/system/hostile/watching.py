"""What an attack does to those who have nothing to do with it: their pings, and the server's memory."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from typing import TYPE_CHECKING, Final

from tests.interop.packets import Kind, got

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.extension import ExtensionPeer
    from tests.system.servers import Server

MIB: Final = 2**20
STALL: Final = 1.0
"""Seconds for which nobody may wait for an answer because of somebody else: wide, for a machine that is busy with other tests."""
HELD: Final = 128 * MIB
"""What a node may take more because of one attack."""


class Watch(threading.Thread):
    """Somebody who pings a server all the time, and looks at its memory."""

    def __init__(self, server: Server) -> None:
        super().__init__(name="watch", daemon=True)
        self.server = server
        self.before = server.rss()
        self.peak = self.before
        """The most memory that was seen."""
        self.longest = 0.0
        """The longest time until an answer, in seconds."""
        self.failure: Exception | None = None
        self._peer = server.peer()
        self._over = threading.Event()

    def run(self) -> None:
        try:
            with self._peer:
                while not self._over.wait(0.01):
                    self._ping()
        except Exception as error:  # noqa: BLE001 - told to the test
            self.failure = error

    def _ping(self) -> None:
        begun = time.monotonic()
        self._peer.send(Kind.ECHO_REQ, b"ping")
        assert self._peer.receive() == got(Kind.ECHO_RES, b"ping")
        self.longest = max(self.longest, time.monotonic() - begun)
        self.peak = max(self.peak, self.server.rss())

    def end(self) -> None:
        """Stop after the ping that is under way."""
        self._over.set()
        self.join()

    @property
    def growth(self) -> int:
        """How many bytes more the server has had than before."""
        return self.peak - self.before

    def __str__(self) -> str:
        return f"longest ping {self.longest:.3f} s, {self.growth / MIB:+.0f} MiB at most"


@contextlib.contextmanager
def watched(server: Server, *, stall: float | None = None, growth: int = HELD) -> Iterator[Watch]:
    """Assert that what happens in the block stalls nobody else and takes a bounded part of the server's memory."""
    watch = Watch(server)
    watch.start()
    try:
        yield watch
    finally:
        watch.end()
        print(watch)  # noqa: T201 - shown with a test that fails, and by pytest -rP
    if watch.failure is not None:
        raise watch.failure
    assert watch.longest < (STALL if stall is None else stall), watch
    assert watch.growth < growth, watch


def attend(peer: ExtensionPeer, seconds: float) -> None:
    """Be an honest client for some seconds, while attackers do what they do."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        peer.settled()
        time.sleep(0.01)


def get(port: int, path: str, patience: float = 5.0) -> tuple[int, bytes]:
    """Ask a health check on a connection of its own; returns status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
