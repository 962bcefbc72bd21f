"""Workers that take many jobs over one connection, by the protocol extension, and hold what they get."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import TYPE_CHECKING

from generator import LoadError

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTION_REQ, OPTION_RES, REGISTER, READY, ASSIGN = 26, 27, 1010, 1011, 1012
HEADER = struct.Struct(">4sII")


class Holder:
    """One connection that has said it has so many places, and keeps every job that it gets."""

    def __init__(self, port: int, function: str, places: int) -> None:
        self.handles: set[bytes] = set()
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._received = bytearray()
        self._send(OPTION_REQ, b"mainspring/1")
        self._send(REGISTER, function.encode() + b"\0")
        self._send(READY, b"%d" % places)
        self._connection.setblocking(False)

    def _send(self, kind: int, body: bytes) -> None:
        self._connection.sendall(HEADER.pack(b"\0REQ", kind, len(body)) + body)

    def receive(self) -> None:
        """Take what has come, without waiting. Raises LoadError for anything but jobs."""
        while True:
            try:
                received = self._connection.recv(1 << 20)
            except BlockingIOError:
                return
            if not received:
                raise LoadError("the server closed a worker's connection")
            self._received += received
            self._read()

    def _read(self) -> None:
        start = 0
        while len(self._received) - start >= HEADER.size:
            _, kind, length = HEADER.unpack_from(self._received, start)
            end = start + HEADER.size + length
            if len(self._received) < end:
                break
            body = bytes(self._received[start + HEADER.size : end])
            start = end
            if kind == ASSIGN:
                self.handles.add(body.partition(b"\0")[0])
            elif kind != OPTION_RES:
                raise LoadError(f"an unexpected packet of type {kind}: {body[:100]!r}")
        del self._received[:start]

    def close(self) -> None:
        """Disconnect: what it holds goes back to the queue."""
        self._connection.close()


@contextlib.contextmanager
def holders(ports: list[int], function: str, places: int) -> Iterator[list[Holder]]:
    """Connect one to each port."""
    with contextlib.ExitStack() as stack:
        found = []
        for port in ports:
            found.append(Holder(port, function, places))
            stack.callback(found[-1].close)
        yield found


def await_jobs(workers: list[Holder], jobs: int, seconds: float) -> float:
    """Wait until the workers have so many jobs together; returns the monotonic time of it. Raises LoadError after so long."""
    deadline = time.monotonic() + seconds
    while True:
        for worker in workers:
            worker.receive()
        now = time.monotonic()
        held: set[bytes] = set().union(*(worker.handles for worker in workers))
        if len(held) >= jobs:
            return now
        if now > deadline:
            raise LoadError(f"after {seconds:.0f} s the workers hold {len(held)} of {jobs} jobs")
        time.sleep(0.01)
