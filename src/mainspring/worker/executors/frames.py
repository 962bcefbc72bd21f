"""The messages between a worker and its task processes: MessagePack, each after its length in four bytes."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from mainspring.worker.job_log import LogLine  # noqa: TC001 - msgspec reads the annotation


class Run(msgspec.Struct, tag="run", array_like=True):
    """A job to run."""

    function: str
    handle: bytes
    unique: bytes
    info: bytes
    payload: bytes


class Halt(msgspec.Struct, tag="halt", array_like=True):
    """A request to stop the running job."""

    reason: str


class Refuse(msgspec.Struct, tag="refuse", array_like=True):
    """The end of a wait of the running job with an error: the worker has no place for the awaited job."""

    number: int
    message: str


class Begun(msgspec.Struct, tag="begun", array_like=True):
    """The process is ready for its first job, or has failed to start because of ``error``."""

    error: str = ""


class Progress(msgspec.Struct, tag="progress", array_like=True):
    """The progress of the running job."""

    done: int
    total: int
    text: str = ""


class Data(msgspec.Struct, tag="told", array_like=True):
    """Data or a warning of the running job for waiting clients. The tag is older than the name."""

    data: bytes
    warning: bool


class Logged(msgspec.Struct, tag="logged", array_like=True):
    """A line of the log of the running job."""

    line: LogLine


class WaitBegun(msgspec.Struct, tag="waits", array_like=True):
    """The begin of a wait of the running job for another one; the process chooses the number."""

    number: int
    handle: str


class WaitEnded(msgspec.Struct, tag="continues", array_like=True):
    """The end of such a wait."""

    number: int


class Ended(msgspec.Struct, tag="ended", array_like=True):
    """The end of the running job; ``memory`` is the process's resident size in bytes."""

    outcome: bytes
    detail: bytes
    data: bytes
    memory: int


ToChild: TypeAlias = Run | Halt | Refuse
ToParent: TypeAlias = Begun | Progress | Data | Logged | WaitBegun | WaitEnded | Ended

_encode = msgspec.msgpack.Encoder().encode
decode_to_child: Final = msgspec.msgpack.Decoder(ToChild).decode
decode_to_parent: Final = msgspec.msgpack.Decoder(ToParent).decode


def frame(message: ToChild | ToParent) -> bytes:
    """Encode a message, after its length."""
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


class Unframer:
    """Splits a stream into the bodies of messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes; return the bodies that they complete."""
        self._buffer += data
        bodies: list[bytes] = []
        position = 0
        while len(self._buffer) - position >= 4:
            end = position + 4 + int.from_bytes(self._buffer[position : position + 4], "big")
            if end > len(self._buffer):
                break
            bodies.append(bytes(self._buffer[position + 4 : end]))
            position = end
        del self._buffer[:position]
        return bodies
