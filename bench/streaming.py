"""Peers of the protocol extension: workers that hold many jobs on one connection, and callers of methods."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, TypeVar

from generator import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Wall = Callable[[], float]

OPTION_REQ, OPTION_RES = 26, 27
CALL, ANSWER, REGISTER, READY, ASSIGN, SETTLE, SETTLED = 1004, 1005, 1010, 1011, 1012, 1013, 1014
HEADER = struct.Struct(">4sII")


class Peer:
    """One connection with the extension."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._received = bytearray()
        self.send(OPTION_REQ, b"mainspring/2")

    def send(self, kind: int, *arguments: bytes) -> None:
        """Send a packet."""
        body = b"\0".join(arguments)
        self._connection.sendall(HEADER.pack(b"\0REQ", kind, len(body)) + body)

    def fileno(self) -> int:
        return self._connection.fileno()

    def receive(self) -> None:
        """Process received packets; wait if the socket blocks. Raises LoadError if the server closed the connection."""
        received = self._connection.recv(1 << 20)
        if not received:
            raise LoadError("the server closed the connection of a worker or caller")
        self._received += received
        start = 0
        while len(self._received) - start >= HEADER.size:
            _, kind, length = HEADER.unpack_from(self._received, start)
            end = start + HEADER.size + length
            if len(self._received) < end:
                break
            body = bytes(self._received[start + HEADER.size : end])
            start = end
            if kind != OPTION_RES:
                self.handle_packet(kind, body)
        del self._received[:start]

    def receive_all(self) -> None:
        """Process all received packets without waiting."""
        self._connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.receive()

    def handle_packet(self, kind: int, body: bytes) -> None:
        """Process a packet. Raises LoadError for an unexpected one."""
        raise LoadError(f"an unexpected packet of type {kind}: {body[:200]!r}")

    def close(self) -> None:
        """Disconnect: the worker's jobs return to the queue."""
        self._connection.close()


class Caller(Peer):
    """Calls methods, one after another."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._answer: list[Any] = []

    def call(self, method: str, **params: Any) -> Any:
        """Call a method, and return the answer. Raises LoadError for a fault."""
        self.send(CALL, b"bench", method.encode(), json.dumps(params).encode())
        while not self._answer:
            self.receive()
        return self._answer.pop()

    def handle_packet(self, kind: int, body: bytes) -> None:
        if kind != ANSWER:
            super().handle_packet(kind, body)
        self._answer.append(json.loads(body.partition(b"\0")[2]))


class Holder(Peer):
    """A worker with a number of places that keeps every job."""

    def __init__(self, port: int, function: str, places: int) -> None:
        super().__init__(port)
        self.handles: set[bytes] = set()
        self.send(REGISTER, function.encode(), b"")
        self.send(READY, b"%d" % places)

    def handle_packet(self, kind: int, body: bytes) -> None:
        if kind != ASSIGN:
            super().handle_packet(kind, body)
        self.handles.add(body.partition(b"\0")[0])


class Completer(Peer):
    """A worker that completes every job at once."""

    def __init__(self, port: int, function: str, places: int) -> None:
        super().__init__(port)
        self.completed = 0
        self._completed_since_ready = 0
        self.send(REGISTER, function.encode(), b"")
        self.send(READY, b"%d" % places)

    def receive(self) -> None:
        super().receive()
        if self._completed_since_ready:
            self.send(READY, b"%d" % self._completed_since_ready)
            self._completed_since_ready = 0

    def handle_packet(self, kind: int, body: bytes) -> None:
        if kind == SETTLED:
            return
        if kind != ASSIGN:
            super().handle_packet(kind, body)
        handle, token, _, _, info, payload = body.split(b"\0", 5)
        self.note(info, payload)
        self.send(SETTLE, handle, token, b"succeeded", b"", b"")
        self.completed += 1
        self._completed_since_ready += 1

    def note(self, info: bytes, payload: bytes) -> None:
        """Record data of a job; the base class records none."""


class LatenessRecorder(Completer):
    """Records by how many seconds each job arrived after its fire time."""

    def __init__(self, port: int, function: str, places: int, wall: Wall) -> None:
        super().__init__(port, function, places)
        self.seen: list[tuple[bytes, float, float]] = []
        """Payload, fire time and lateness of each job."""
        self._wall = wall

    def note(self, info: bytes, payload: bytes) -> None:
        now = self._wall()
        fire_time = json.loads(info)["fire_time"]
        self.seen.append((payload, fire_time, now - fire_time))


T = TypeVar("T", bound=Peer)


@contextlib.contextmanager
def peers(ports: list[int], connect: Callable[[int], T]) -> Iterator[list[T]]:
    """Connect one peer to each port."""
    with contextlib.ExitStack() as stack:
        found = []
        for port in ports:
            found.append(connect(port))
            stack.callback(found[-1].close)
        yield found


def await_jobs(workers: list[Holder], jobs: int, seconds: float) -> float:
    """Wait until the workers hold a number of jobs in total, and return the monotonic time. Raises LoadError at the time-out."""
    deadline = time.monotonic() + seconds
    while True:
        for worker in workers:
            worker.receive_all()
        now = time.monotonic()
        held: set[bytes] = set().union(*(worker.handles for worker in workers))
        if len(held) >= jobs:
            return now
        if now > deadline:
            raise LoadError(f"after {seconds:.0f} s the workers hold {len(held)} of {jobs} jobs")
        time.sleep(0.01)
