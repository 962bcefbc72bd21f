"""A minimal Gearman peer: blocking sockets, packets byte by byte, no code shared with the package.

It is deliberately separate from ``mainspring.wire``: a test proves nothing if both sides make the same mistake.
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

PACKET_TIMEOUT = 30.0
"""Seconds in which an expected packet must arrive; a later one is a defect."""

REQUEST = b"\0REQ"
RESPONSE = b"\0RES"


class Kind(IntEnum):
    """The packet types of the protocol."""

    CAN_DO = 1
    CANT_DO = 2
    RESET_ABILITIES = 3
    PRE_SLEEP = 4
    NOOP = 6
    SUBMIT_JOB = 7
    JOB_CREATED = 8
    GRAB_JOB = 9
    NO_JOB = 10
    JOB_ASSIGN = 11
    WORK_STATUS = 12
    WORK_COMPLETE = 13
    WORK_FAIL = 14
    GET_STATUS = 15
    ECHO_REQ = 16
    ECHO_RES = 17
    SUBMIT_JOB_BG = 18
    ERROR = 19
    STATUS_RES = 20
    SUBMIT_JOB_HIGH = 21
    SET_CLIENT_ID = 22
    CAN_DO_TIMEOUT = 23
    ALL_YOURS = 24
    WORK_EXCEPTION = 25
    OPTION_REQ = 26
    OPTION_RES = 27
    WORK_DATA = 28
    WORK_WARNING = 29
    GRAB_JOB_UNIQ = 30
    JOB_ASSIGN_UNIQ = 31
    SUBMIT_JOB_HIGH_BG = 32
    SUBMIT_JOB_LOW = 33
    SUBMIT_JOB_LOW_BG = 34
    SUBMIT_JOB_SCHED = 35
    SUBMIT_JOB_EPOCH = 36
    SUBMIT_REDUCE_JOB = 37
    SUBMIT_REDUCE_JOB_BG = 38
    GRAB_JOB_ALL = 39
    JOB_ASSIGN_ALL = 40
    GET_STATUS_UNIQUE = 41
    STATUS_RES_UNIQUE = 42


ARGUMENTS = {
    Kind.NOOP: 0,
    Kind.NO_JOB: 0,
    Kind.JOB_CREATED: 1,
    Kind.JOB_ASSIGN: 3,
    Kind.JOB_ASSIGN_UNIQ: 4,
    Kind.JOB_ASSIGN_ALL: 5,
    Kind.WORK_STATUS: 3,
    Kind.WORK_COMPLETE: 2,
    Kind.WORK_FAIL: 1,
    Kind.WORK_EXCEPTION: 2,
    Kind.WORK_DATA: 2,
    Kind.WORK_WARNING: 2,
    Kind.ECHO_RES: 1,
    Kind.ERROR: 2,
    Kind.STATUS_RES: 5,
    Kind.STATUS_RES_UNIQUE: 6,
    Kind.OPTION_RES: 1,
}
"""Number of arguments of each packet from the server; the last one may hold NULs."""


class Packet(NamedTuple):
    """A parsed packet from the server."""

    kind: Kind
    arguments: tuple[bytes, ...]


def packet_of(kind: Kind, *arguments: bytes) -> Packet:
    """Return the packet that a test expects."""
    return Packet(kind, arguments)


def encode(kind: int, *arguments: bytes, magic: bytes = REQUEST) -> bytes:
    """Return a packet's bytes."""
    body = b"\0".join(arguments)
    return magic + struct.pack(">II", kind, len(body)) + body


class Peer:
    """One connection to a server, as client, worker or administrator."""

    def __init__(self, port: int | Path, host: str = "127.0.0.1") -> None:
        """``port`` is a TCP port, or the path of a Unix socket."""
        if isinstance(port, int):
            self.socket = socket.create_connection((host, port), timeout=PACKET_TIMEOUT)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(PACKET_TIMEOUT)
            self.socket.connect(str(port))
        self._buffer = bytearray()
        self._echoes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a second call has no effect."""
        self.socket.close()

    # -- bytes

    def write(self, data: bytes) -> None:
        """Send raw bytes."""
        self.socket.sendall(data)

    def _fill(self, size: int) -> bool:
        while len(self._buffer) < size:
            data = self.socket.recv(65536)
            if not data:
                return False
            self._buffer += data
        return True

    def _read_exactly(self, size: int) -> bytes:
        if not self._fill(size):
            raise ConnectionError(f"the server closed the connection; unread: {bytes(self._buffer)!r}")
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def is_closed(self) -> bool:
        """Wait for the end of the connection, and return whether it came before any data."""
        with suppress(ConnectionResetError):
            return not self._fill(1)
        return True

    def is_refused(self) -> bool:
        """Wait for the end of the connection, after at most one error as a packet or a line."""
        if self.is_closed():
            return True
        if self._buffer[:1] == b"\0":
            self.expect(Kind.ERROR)
        else:
            assert self.line().startswith(b"ERR ")
        return self.is_closed()

    # -- packets

    def send(self, kind: Kind, *arguments: bytes) -> None:
        """Send one packet."""
        self.write(encode(kind, *arguments))

    def receive(self) -> Packet:
        """Return the server's next packet. Raises TimeoutError or ConnectionError if none arrives."""
        header = self._read_exactly(12)
        number, size = struct.unpack(">II", header[4:])
        assert header[:4] == RESPONSE, f"not a response: {header!r}"
        kind = Kind(number)
        body = self._read_exactly(size)
        arguments = tuple(body.split(b"\0", ARGUMENTS[kind] - 1)) if ARGUMENTS[kind] else ()
        return Packet(kind, arguments)

    def expect(self, kind: Kind) -> tuple[bytes, ...]:
        """Return the arguments of the next packet, which must be of this kind."""
        packet = self.receive()
        assert packet.kind is kind, f"{kind.name} was expected, not {packet.kind.name} {packet.arguments!r}"
        return packet.arguments

    def sync(self) -> None:
        """Wait until the server has processed this connection's requests, and assert that it has sent nothing."""
        assert self.pending() == []

    def pending(self) -> list[Packet]:
        """Return all packets that the server has sent so far: the answer to an echo follows them."""
        self._echoes += 1
        mark = b"mark %d" % self._echoes
        self.send(Kind.ECHO_REQ, mark)
        packets = []
        while (packet := self.receive()) != packet_of(Kind.ECHO_RES, mark):
            packets.append(packet)
        return packets

    # -- clients

    def submit(self, function: bytes, unique: bytes, payload: bytes, kind: Kind = Kind.SUBMIT_JOB) -> bytes:
        """Submit a job and return its handle."""
        self.send(kind, function, unique, payload)
        (handle,) = self.expect(Kind.JOB_CREATED)
        return handle

    def option(self, name: bytes) -> None:
        """Request an option that the server must support."""
        self.send(Kind.OPTION_REQ, name)
        assert self.receive() == packet_of(Kind.OPTION_RES, name)

    def status(self, handle: bytes) -> tuple[bytes, ...]:
        """Return known, running, numerator and denominator of a job."""
        self.send(Kind.GET_STATUS, handle)
        echoed, *rest = self.expect(Kind.STATUS_RES)
        assert echoed == handle
        return tuple(rest)

    def status_unique(self, unique: bytes) -> tuple[bytes, ...]:
        """Return known, running, numerator, denominator and the number of waiting clients of a job."""
        self.send(Kind.GET_STATUS_UNIQUE, unique)
        echoed, *rest = self.expect(Kind.STATUS_RES_UNIQUE)
        assert echoed == unique
        return tuple(rest)

    def await_waiters(self, unique: bytes, count: int) -> None:
        """Poll until a number of clients wait for a unique's job: nothing else shows the end of another connection."""
        deadline = time.monotonic() + PACKET_TIMEOUT
        while int(self.status_unique(unique)[4]) != count:
            assert time.monotonic() < deadline, f"not {count} but {self.status_unique(unique)!r}"

    def await_status(self, handle: bytes, *status: bytes) -> None:
        """Poll until a job has this status."""
        deadline = time.monotonic() + PACKET_TIMEOUT
        while (now := self.status(handle)) != status:
            assert time.monotonic() < deadline, f"the status stays {now!r}"

    # -- workers

    def can_do(self, *functions: bytes) -> None:
        """Register for functions, and wait until the server has processed that."""
        for function in functions:
            self.send(Kind.CAN_DO, function)
        self.sync()

    def grab(self, kind: Kind = Kind.GRAB_JOB) -> Packet:
        """Request a job, and return the answer."""
        self.send(kind)
        return self.receive()

    def grab_assigned(self) -> tuple[bytes, bytes, bytes]:
        """Request a job, which must be available; return handle, function and payload."""
        self.send(Kind.GRAB_JOB)
        handle, function, payload = self.expect(Kind.JOB_ASSIGN)
        return handle, function, payload

    def sleep(self) -> None:
        """Send PRE_SLEEP, and wait until the server has processed it; no job may be available."""
        self.send(Kind.PRE_SLEEP)
        self.sync()

    def complete(self, handle: bytes, result: bytes = b"") -> None:
        """Complete a job, and wait until the server has processed that."""
        self.send(Kind.WORK_COMPLETE, handle, result)
        self.sync()

    # -- administrators

    def ask(self, command: bytes) -> bytes:
        """Send a line of the text protocol, and return the answer's line with its ending."""
        self.write(command + b"\n")
        return self.line()

    def line(self) -> bytes:
        """Return the next line with its ending."""
        while b"\n" not in self._buffer:
            if not self._fill(len(self._buffer) + 1):
                raise ConnectionError(f"the server closed the connection; unread: {bytes(self._buffer)!r}")
        return self._read_exactly(self._buffer.index(b"\n") + 1)

    def table(self, command: bytes) -> list[bytes]:
        """Send a line, and return the answer's lines before the closing dot."""
        self.write(command + b"\n")
        lines = []
        while (line := self.line()) != b".\n":
            lines.append(line)
        return lines
