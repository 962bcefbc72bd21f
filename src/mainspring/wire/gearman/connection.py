"""One end of a Gearman connection without the input and output: bytes in, messages out.

A message is ``(type, args)``. Besides the packets' own types there are four that are no packets: ``TEXT``, ``BAD``,
``FATAL`` and ``OVERSIZED``. How the bytes were cut into reads never changes the messages.

What is wrong with a packet is told by its header or its own body, never by waiting for more bytes than it declared.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal

from mainspring.wire.gearman.packets import (
    ARGUMENTS,
    EXTENDED,
    EXTENSION,
    HEADER_SIZE,
    PLAIN,
    REQ,
    REQUESTS,
    RES,
    RESPONSES,
    Type,
)

if TYPE_CHECKING:
    from typing import TypeAlias

Message: TypeAlias = tuple[int, list[bytes]]
"""A packet's type and arguments, or one of the four below."""

TEXT: Final = -1
"""A line of the administration protocol: ``[line]`` without its line end."""
BAD: Final = -2
"""A packet that cannot be served: ``[code, message]``, to be answered with ERROR; the connection goes on after it."""
FATAL: Final = -3
"""Bytes that cannot be served: ``[code, message]``, to be answered with ERROR; the connection must be closed."""
OVERSIZED: Final = -4
"""A result that is over the limit: ``[explanation, handle]`` of WORK_COMPLETE, ``[explanation, handle, lease]`` of SETTLE. It is
dropped like the body of a BAD one, but its job has to end: nobody else would end it. FATAL follows one that is too long to be
dropped."""

MAX_BODY: Final = 64 * 2**20
MAX_LINE: Final = 8192
MAX_PREFIX: Final = 8192
"""The bytes that all arguments before the last of a plain request may take together; gearmand's own limit."""
MAX_PREFIX_EXTENDED: Final = 2**20
"""The same for the extension's packets, which carry JSON and tracebacks there."""
SKIP_FACTOR: Final = 16
"""A body over the limit is read and dropped, so that its sender can read why, up to so many times the limit."""

_REPORTS: Final = frozenset(map(int, (Type.WORK_COMPLETE, Type.WORK_DATA, Type.WORK_WARNING, Type.WORK_EXCEPTION)))
"""Reports whose body may be a handle alone: Perl's library sends that for an empty payload, and for "0"."""

_NAMES: Final = {int(Type.WORK_COMPLETE): 1, int(Type.SETTLE): 2}
"""Of results: how many of their first arguments say whose they are."""
_MAX_NAMES: Final = 1024
"""The bytes that these are looked for in."""

_HEADER = struct.Struct(">QI")  # magic and type as one number, which is looked up at once; length
_DONE = -1  # in place of a position: nothing is left to look at in this read

# By magic and type: the type, and the number of its arguments.
_Table: TypeAlias = dict[int, tuple[int, int]]


def _key(magic: bytes, kind: int) -> int:
    return int.from_bytes(magic, "big") << 32 | kind


def _table(magic: bytes, kinds: frozenset[int]) -> _Table:
    return {_key(magic, kind): (int(kind), ARGUMENTS[kind]) for kind in kinds}


_TABLES: Final[dict[tuple[str, bool], _Table]] = {
    ("server", False): _table(REQ, PLAIN & REQUESTS),
    ("server", True): _table(REQ, REQUESTS),
    ("client", False): _table(RES, PLAIN & RESPONSES),
    ("client", True): _table(RES, RESPONSES),
}


_EXTENDED_REQUESTS: Final = frozenset(_key(REQ, kind) for kind in EXTENDED)


class Connection:
    """Cuts the bytes of one connection into messages.

    As ``"server"`` it takes requests and text lines, as ``"client"`` responses. A body longer than ``max_body`` and a
    line longer than ``max_line`` bytes are refused. Between two calls it holds at most one unfinished packet or line.
    """

    __slots__ = (
        "_accepted",
        "_buffer",
        "_closed",
        "_extended",
        "_magic",
        "_max_body",
        "_max_line",
        "_need",
        "_role",
        "_skip",
    )

    def __init__(
        self, role: Literal["server", "client"], *, max_body: int = MAX_BODY, max_line: int = MAX_LINE
    ) -> None:
        self._role = role
        self._magic = REQ if role == "server" else RES
        self._extended = False
        self._accepted = _TABLES[role, False]
        self._max_body = max_body
        self._max_line = max_line
        self._closed = False
        self._skip = 0  # bytes of a refused body that are still to come
        self._buffer = bytearray()  # an unfinished message; amortised growth, however small the pieces
        self._need = 0  # what the buffer must hold before looking at it again pays; 0 in a text line: look for its end

    @property
    def extended(self) -> bool:
        """Whether the packets of the extension are taken; set by the owner once both sides agreed."""
        return self._extended

    @extended.setter
    def extended(self, value: bool) -> None:
        self._extended = value
        self._accepted = _TABLES[self._role, value]

    @property
    def closed(self) -> bool:
        """Whether a FATAL message was given; all further bytes are ignored."""
        return self._closed

    @property
    def buffered(self) -> int:
        """The bytes held for an unfinished message: at most ``max_body`` and a header, or ``max_line``."""
        return len(self._buffer)

    def receive(self, data: bytes) -> list[Message]:
        """Take what was read and return all messages that are complete by it, in order; no bytes make it raise."""
        if self._skip or self._buffer or self._closed:
            data = self._resume(data)
        messages: list[Message] = []
        append = messages.append
        unpack = _HEADER.unpack_from
        accepted = self._accepted
        max_body = self._max_body
        position = 0
        size = len(data)
        last_header = size - HEADER_SIZE
        while position <= last_header:
            key, length = unpack(data, position)
            entry = accepted.get(key)
            if entry is None or length > max_body:
                if key in _EXTENDED_REQUESTS and self._has_asked(messages):
                    accepted = self._accepted
                    continue
                position = self._out_of_line(data, position, messages)
                if position == _DONE:
                    return messages
                continue
            start = position + HEADER_SIZE
            end = start + length
            if end > size:
                break
            kind, count = entry
            if length > MAX_PREFIX:
                append(self._large(kind, count, data, start, end))
                if self._closed:
                    return messages
            elif count > 1:
                args = data[start:end].split(b"\0", count - 1)
                if len(args) == count:
                    append((kind, args))
                elif kind in _REPORTS:
                    append((kind, [args[0], b""]))
                else:
                    append(self._too_few(kind, len(args)))
                    if self._closed:
                        return messages
            elif count:
                append((kind, [data[start:end]]))
            else:
                append((kind, []))  # a body that should not be there is ignored, as by gearmand
            position = end
        if position < size:
            self._keep(data, position, messages)
        return messages

    def _has_asked(self, messages: list[Message]) -> bool:
        """Say whether the peer has asked for the extension in this same read, and take its packets then.

        The owner hears of it only afterwards. A server that knows the extension always agrees. To be called for its packets
        alone: the messages are looked through, and the first of its packets that comes unasked is the last.
        """
        asked = self._role == "server" and not self._extended and (Type.OPTION_REQ, [EXTENSION]) in messages
        if asked:
            self.extended = True
        return asked

    def _resume(self, data: bytes) -> bytes:
        """Return what is to be looked at now: the kept bytes with the new ones, or nothing while more must come."""
        if self._closed:
            return b""
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            return data[skipped:]
        buffer = self._buffer
        buffer += data
        if self._need:
            if len(buffer) < self._need:
                return b""
        elif b"\n" not in data and len(buffer) <= self._max_line:
            return b""
        self._buffer = bytearray()
        return bytes(buffer)

    def _keep(self, data: bytes, position: int, messages: list[Message]) -> None:
        """Give the lines in a rest that is shorter than a header, and keep what is unfinished."""
        size = len(data)
        while position < size and data[position]:
            position = self._line(data, position, messages)
            if position == _DONE:
                return
        held = size - position
        if not held:
            return
        if held < 4:
            self._need = 4
        elif data[position : position + 4] not in {REQ, RES}:
            messages.append(self._fatal("INVALID_MAGIC", "Neither a packet nor a text command"))
            return
        elif held < HEADER_SIZE:
            self._need = HEADER_SIZE
        else:
            self._need = HEADER_SIZE + int.from_bytes(data[position + 8 : position + 12], "big")
        self._buffer += data[position:]

    def _line(self, data: bytes, position: int, messages: list[Message]) -> int:
        """Give the text line at a position; return where the next message begins."""
        if self._role == "client":
            messages.append(self._fatal("INVALID_MAGIC", "Response magic expected"))
            return _DONE
        end = data.find(b"\n", position, position + self._max_line + 1)
        if end >= 0:
            messages.append((TEXT, [data[position:end].removesuffix(b"\r")]))
            return end + 1
        if len(data) - position > self._max_line:
            messages.append(self._fatal("LINE_TOO_LARGE", f"A text line exceeds {self._max_line} bytes"))
            return _DONE
        self._need = 0
        self._buffer += data[position:]
        return _DONE

    def _out_of_line(self, data: bytes, position: int, messages: list[Message]) -> int:
        """Deal with a message that is no acceptable packet by its header; return where the next one begins."""
        if data[position]:
            return self._line(data, position, messages)
        magic = data[position : position + 4]
        kind = int.from_bytes(data[position + 4 : position + 8], "big")
        length = int.from_bytes(data[position + 8 : position + 12], "big")
        start = position + HEADER_SIZE
        named = False
        if kind in _NAMES and self._role == "server" and _key(magic, kind) in self._accepted:
            names_end = start + min(length, _MAX_NAMES)
            if names_end > len(data):
                self._need = names_end - position
                self._buffer += data[position:]
                return _DONE
            names = data[start:names_end].split(b"\0", _NAMES[kind])[:-1]
            named = len(names) == _NAMES[kind]
            if named:
                messages.append((OVERSIZED, [self._limit(length).encode(), *names]))
        verdict = self._verdict(magic, kind, length)
        if not named or verdict[0] == FATAL:
            messages.append(verdict)
        if self._closed:
            return _DONE
        end = start + length
        if end <= len(data):
            return end
        self._skip = end - len(data)
        return _DONE

    def _verdict(self, magic: bytes, kind: int, length: int) -> Message:
        """Say what is wrong with a header."""
        if magic not in {REQ, RES}:
            return self._fatal("INVALID_MAGIC", "Neither a packet nor a text command")
        if kind not in PLAIN and not (self._extended and kind in EXTENDED):
            hint = " without the option mainspring/1" if kind in EXTENDED else ""
            return self._fatal("INVALID_COMMAND", f"Packet type {kind} is unknown{hint}")
        if length > self._max_body * SKIP_FACTOR:
            return self._fatal("ARGUMENT_TOO_LARGE", self._limit(length))
        if magic != self._magic:
            return self._bad("INVALID_MAGIC", "Request magic expected")
        if _key(magic, kind) not in self._accepted:
            return self._bad("INVALID_COMMAND", "Command not expected")
        return self._bad("ARGUMENT_TOO_LARGE", self._limit(length))

    def _large(self, kind: int, count: int, data: bytes, start: int, end: int) -> Message:
        """Take a body apart that is too long to be copied twice, and hold its prefix to the limit."""
        if not count:
            return kind, []
        limit = end
        if self._role == "server":
            limit = min(end, start + (MAX_PREFIX if kind < Type.SUBMIT else MAX_PREFIX_EXTENDED))
        args: list[bytes] = []
        for _ in range(count - 1):
            separator = data.find(b"\0", start, limit)
            if separator < 0:
                if data.find(b"\0", start, end) < 0:
                    return self._too_few(kind, len(args) + 1)
                return self._bad("ARGUMENT_TOO_LARGE", "The arguments before the last one are too long")
            args.append(data[start:separator])
            start = separator + 1
        args.append(data[start:end])
        return kind, args

    def _limit(self, length: int) -> str:
        return f"A body of {length} bytes exceeds the limit of {self._max_body} bytes"

    def _too_few(self, kind: int, found: int) -> Message:
        wanted = ARGUMENTS[kind]
        return self._bad("INVALID_ARGUMENTS", f"{Type(kind).name} takes {wanted} arguments, not {found}")

    def _bad(self, code: str, message: str) -> Message:
        """Refuse one packet. A client cannot go on without the answer that was meant for it: it gives up."""
        if self._role == "client":
            return self._fatal(code, message)
        return BAD, [code.encode(), message.encode()]

    def _fatal(self, code: str, message: str) -> Message:
        self._closed = True
        return FATAL, [code.encode(), message.encode()]
