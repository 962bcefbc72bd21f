"""What a worker and its processes say to each other: MessagePack, each message behind its length in four bytes."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec


class Run(msgspec.Struct, tag="run", array_like=True):
    """Run a function."""

    function: str
    handle: bytes
    unique: bytes
    info: bytes
    payload: bytes


class Halt(msgspec.Struct, tag="halt", array_like=True):
    """Ask what runs to stop."""

    reason: str


class Refuse(msgspec.Struct, tag="refuse", array_like=True):
    """End a wait of the running job with an error: the worker has no place for the awaited job."""

    number: int
    message: str


class Begun(msgspec.Struct, tag="begun", array_like=True):
    """The process is ready for its first job, or says why it never will be."""

    error: str = ""


class Progress(msgspec.Struct, tag="progress", array_like=True):
    """What runs tells how much of it is done."""

    done: int
    total: int


class Told(msgspec.Struct, tag="told", array_like=True):
    """What runs has data or a warning for those who wait."""

    data: bytes
    warning: bool


class Waits(msgspec.Struct, tag="waits", array_like=True):
    """The running job waits for another one; the number is the process's own."""

    number: int
    handle: str


class Continues(msgspec.Struct, tag="continues", array_like=True):
    """Such a wait is over."""

    number: int


class Ended(msgspec.Struct, tag="ended", array_like=True):
    """What ran has ended; ``memory`` is the process's resident size in bytes."""

    outcome: bytes
    detail: bytes
    data: bytes
    memory: int


ToChild: TypeAlias = Run | Halt | Refuse
ToParent: TypeAlias = Begun | Progress | Told | Waits | Continues | Ended

_encode = msgspec.msgpack.Encoder().encode
decode_to_child: Final = msgspec.msgpack.Decoder(ToChild).decode
decode_to_parent: Final = msgspec.msgpack.Decoder(ToParent).decode


def frame(message: ToChild | ToParent) -> bytes:
    """Encode a message with its length."""
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


class Unframer:
    """Cuts a stream into messages' bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take what was read; return the bodies that are complete by it."""
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
