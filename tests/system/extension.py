"""The protocol extension packet by packet, as docs/reference/protocol.md specifies it, on top of the plain peer.

It shares no code with the package: a test proves nothing if both sides make the same mistake.
"""

from __future__ import annotations

import json
import struct
import time
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from tests.interop.packets import ARGUMENTS, RESPONSE, Kind, Packet, Peer, encode

if TYPE_CHECKING:
    from collections.abc import Iterable


class ExtensionKind(IntEnum):
    """The packet types of the extension."""

    SUBMIT = 1000
    SUBMITTED = 1001
    WAIT = 1002
    RESULT = 1003
    CALL = 1004
    ANSWER = 1005
    FAULT = 1006
    EVENT = 1007
    REGISTER = 1010
    READY = 1011
    ASSIGN = 1012
    SETTLE = 1013
    SETTLED = 1014
    HEARTBEAT = 1015
    BEATEN = 1016
    STOP = 1017
    PAUSE = 1018
    PAUSED = 1019
    LOG = 1025
    PROGRESS_TEXT = 1026
    VALUES = 1027


BETWEEN_TERMS = (b"was ended by another node", b"has ended, and")
"""Messages of a node that has just lost its term; any node of a fleet may lose one on a busy machine."""
COUNTS = {
    ExtensionKind.SUBMITTED: 2,
    ExtensionKind.RESULT: 5,
    ExtensionKind.ANSWER: 2,
    ExtensionKind.FAULT: 3,
    ExtensionKind.EVENT: 2,
    ExtensionKind.ASSIGN: 6,
    ExtensionKind.SETTLED: 3,
    ExtensionKind.BEATEN: 1,
    ExtensionKind.STOP: 3,
    ExtensionKind.PAUSED: 0,
}
"""Number of arguments of each packet from the server."""


class Reply(NamedTuple):
    """A packet of the extension."""

    kind: ExtensionKind
    arguments: tuple[bytes, ...]


class Assigned(NamedTuple):
    """An ASSIGN packet."""

    handle: bytes
    token: bytes
    function: bytes
    unique: bytes
    info: dict[str, Any]
    payload: bytes


class Result(NamedTuple):
    """A RESULT packet."""

    handle: bytes
    state: bytes
    attempt: int
    error: dict[str, Any]
    data: bytes


class FaultError(Exception):
    """A call failed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def encode_json(value: dict[str, Any] | None) -> bytes:
    """Return JSON, or nothing if there are no options."""
    return json.dumps(value).encode() if value else b""


EXTENSION = b"mainspring/2"
LAST_EXTENSION = b"mainspring/1"


class ExtensionPeer(Peer):
    """A connection that may use both protocols."""

    def extend(self) -> None:
        """Negotiate the extension: the version of today, or the last one with a node of the last version.

        Packets other than calls are the same in both.
        """
        for option in (EXTENSION, LAST_EXTENSION):
            self.send(Kind.OPTION_REQ, option)
            packet = self.next()
            if packet.kind is Kind.OPTION_RES:
                return
        raise AssertionError(f"the server speaks neither version: {packet.arguments!r}")

    def next(self) -> Packet | Reply:
        """Return the server's next packet, of either protocol."""
        header = self._read_exactly(12)
        assert header[:4] == RESPONSE, f"not a response: {header!r}"
        number, size = struct.unpack(">II", header[4:])
        body = self._read_exactly(size)
        if number < ExtensionKind.SUBMIT:
            kind = Kind(number)
            return Packet(kind, tuple(body.split(b"\0", ARGUMENTS[kind] - 1)) if ARGUMENTS[kind] else ())
        more = ExtensionKind(number)
        return Reply(more, tuple(body.split(b"\0", COUNTS[more] - 1)) if COUNTS[more] else ())

    def expect(self, kind: ExtensionKind | Kind) -> tuple[bytes, ...]:
        """Return the arguments of the next packet, which must be of this kind."""
        packet = self.next()
        assert packet.kind is kind, f"{kind.name} was expected, not {packet.kind.name} {packet.arguments!r}"
        return packet.arguments

    def drain(self) -> list[Packet | Reply]:
        """Return all packets that the server has sent so far: the answer to an echo follows them."""
        self._echoes += 1
        mark = b"mark %d" % self._echoes
        self.send(Kind.ECHO_REQ, mark)
        packets: list[Packet | Reply] = []
        while (packet := self.next()) != Packet(Kind.ECHO_RES, (mark,)):
            packets.append(packet)
        return packets

    def assert_silent(self) -> None:
        """Assert that the server has sent nothing."""
        assert self.drain() == []

    # -- clients

    def request(
        self, function: bytes, payload: bytes = b"", unique: bytes = b"", options: dict[str, Any] | None = None
    ) -> None:
        """Send SUBMIT."""
        self.write(encode(ExtensionKind.SUBMIT, function, unique, encode_json(options), payload))

    def submit_new(self, function: bytes, payload: bytes = b"", unique: bytes = b"", **options: Any) -> bytes:
        """Submit a job that joins no other, and return its handle; try again while the node is between two terms."""
        for _ in range(400):
            self.request(function, payload, unique, options)
            packet = self.next()
            if packet.kind is not Kind.ERROR or not any(term in packet.arguments[1] for term in BETWEEN_TERMS):
                break
            time.sleep(0.05)
        assert packet.kind is ExtensionKind.SUBMITTED, f"{packet.kind.name} {packet.arguments!r}"
        handle, joined = packet.arguments
        assert joined == b"0"
        return handle

    def wait(self, handle: bytes) -> None:
        """Send WAIT."""
        self.write(encode(ExtensionKind.WAIT, handle))

    def result(self) -> Result:
        """Wait for a RESULT."""
        handle, state, attempt, error, data = self.expect(ExtensionKind.RESULT)
        return Result(handle, state, int(attempt), json.loads(error) if error else {}, data)

    def outcome(self, handle: bytes) -> Result:
        """Wait for a job's end, and return its result."""
        self.wait(handle)
        result = self.result()
        assert result.handle == handle
        return result

    def call(self, method: str, **params: Any) -> Any:
        """Call a method, and return its answer. Raises FaultError."""
        self.write(encode(ExtensionKind.CALL, b"id of " + method.encode(), method.encode(), encode_json(params)))
        packet = self.next()
        assert packet.arguments[0] == b"id of " + method.encode()
        if packet.kind is ExtensionKind.FAULT:
            raise FaultError(packet.arguments[1].decode(), packet.arguments[2].decode())
        assert packet.kind is ExtensionKind.ANSWER
        return json.loads(packet.arguments[1])

    def show(self, handle: bytes) -> dict[str, Any]:
        """Return a job as ``jobs.show`` describes it."""
        job: dict[str, Any] = self.call("jobs.show", handle=handle.decode())
        return job

    def event(self) -> dict[str, Any]:
        """Wait for an EVENT."""
        _, value = self.expect(ExtensionKind.EVENT)
        job: dict[str, Any] = json.loads(value)
        return job

    # -- workers

    def register(self, function: bytes, **options: Any) -> None:
        """Send REGISTER."""
        self.write(encode(ExtensionKind.REGISTER, function, encode_json(options)))

    def ready(self, places: int = 1) -> None:
        """Send READY."""
        self.write(encode(ExtensionKind.READY, b"%d" % places))

    def job(self) -> Assigned:
        """Wait for an ASSIGN."""
        handle, token, function, unique, info, payload = self.expect(ExtensionKind.ASSIGN)
        return Assigned(handle, token, function, unique, json.loads(info), payload)

    def settle(self, job: Assigned, outcome: bytes, data: bytes = b"", detail: dict[str, Any] | None = None) -> None:
        """Send SETTLE."""
        self.write(encode(ExtensionKind.SETTLE, job.handle, job.token, outcome, encode_json(detail), data))

    def verdict(self, job: Assigned) -> bytes:
        """Wait for SETTLED, and return the verdict."""
        handle, token, verdict = self.expect(ExtensionKind.SETTLED)
        assert (handle, token) == (job.handle, job.token)
        return verdict

    def settle_as(self, job: Assigned, outcome: bytes, data: bytes = b"", **detail: Any) -> bytes:
        """Settle a job, and return the verdict."""
        self.settle(job, outcome, data, detail)
        return self.verdict(job)

    def beat(self, jobs: Iterable[Assigned]) -> tuple[list[bytes], list[bytes]]:
        """Send HEARTBEAT, and return the handles of jobs to stop and of lost jobs."""
        tokens = [[job.handle.decode(), job.token.decode()] for job in jobs]
        self.write(encode(ExtensionKind.HEARTBEAT, json.dumps({"jobs": tokens}).encode()))
        answer = json.loads(self.expect(ExtensionKind.BEATEN)[0])
        stop, lost = ([handle.encode() for handle, _ in answer[key]] for key in ("stop", "lost"))
        return stop, lost

    def await_stop(self) -> tuple[bytes, bytes, bytes]:
        """Wait for STOP, and return handle, token and reason."""
        handle, token, reason = self.expect(ExtensionKind.STOP)
        return handle, token, reason

    def log(self, job: Assigned, first: int, *messages: str) -> None:
        """Send LOG: lines of a job, the first with this number."""
        lines = [[1, 1, "", message, None] for message in messages]
        self.write(encode(ExtensionKind.LOG, msgspec.msgpack.encode([[job.handle, job.token, first, lines]])))

    def publish(self, job: Assigned, **values: Any) -> None:
        """Send VALUES: published values of a job."""
        named = [(name, msgspec.json.encode(value)) for name, value in values.items()]
        self.write(encode(ExtensionKind.VALUES, msgspec.msgpack.encode([[job.handle, job.token, named]])))

    def pause(self) -> None:
        """Send PAUSE and wait for PAUSED."""
        self.write(encode(ExtensionKind.PAUSE))
        assert self.expect(ExtensionKind.PAUSED) == ()
