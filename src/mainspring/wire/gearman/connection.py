"""One end of a Gearman connection, without input and output: bytes in, messages out.

A message is ``(type, args)``. In addition to the packets' types there are four types of its own: ``TEXT``, ``BAD``,
``FATAL`` and ``OVERSIZED``. The messages do not depend on how the bytes were split into reads.

Errors are detected from a packet's header or body, without waiting for more bytes than the header declares.
"""

from __future__ import annotations

import re
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
"""An unacceptable packet: ``[code, message]``, to be answered with ERROR; the connection continues."""
FATAL: Final = -3
"""Unacceptable bytes: ``[code, message]``, to be answered with ERROR; the connection must be closed."""
OVERSIZED: Final = -4
"""A result over the size limit: ``[explanation, handle]`` of WORK_COMPLETE, ``[explanation, handle, lease]`` of SETTLE. Its body
is dropped like that of a BAD packet, but the receiver must end its job, because no other message will. FATAL follows if the
body is too long to be dropped."""

MAX_BODY: Final = 64 * 2**20
MAX_LINE: Final = 8192
MAX_PREFIX: Final = 8192
"""Bytes of all arguments before the last in a Gearman request, at most; the limit of gearmand."""
MAX_PREFIX_EXTENDED: Final = 2**20
"""The same for packets of the extension, whose arguments contain JSON and tracebacks."""
SKIP_FACTOR: Final = 16
"""A body of up to this many times the limit is read and dropped, so that its sender can receive the reason."""

_REPORTS: Final = frozenset(map(int, (Type.WORK_COMPLETE, Type.WORK_DATA, Type.WORK_WARNING, Type.WORK_EXCEPTION)))
"""Reports whose body may be only a handle: Perl's library sends that for an empty payload, and for "0"."""

_KEY_ARGUMENTS: Final = {int(Type.WORK_COMPLETE): 1, int(Type.SETTLE): 2}
"""The number of a result's first arguments that identify its delivery."""
_MAX_KEY_BYTES: Final = 1024
"""Bytes at the start of an oversized body that are searched for these arguments."""

_HTTP: Final = re.compile(
    rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE|CONNECT|PRI)(?:\s|$)|(?i:host[ \t]*:)|.*\sHTTP/\d(?:\.\d)?\s*$",
    re.DOTALL,
)
"""A line of a request of HTTP. No command of Gearman looks so."""
_TLS: Final = 0x16
"""The first byte of a TLS handshake."""
_NOT_HTTP: Final = "This port speaks Gearman's protocol, not HTTP: send requests to the address in --http"
_NOT_TLS: Final = "This port speaks Gearman's protocol without TLS"

_HEADER = struct.Struct(">QI")  # magic and type as one number, for one lookup; length
_END_OF_READ = -1  # in place of a position: no bytes of this read are left

# From magic and type to the type and the number of its arguments.
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
    """The parser of one connection's bytes.

    A ``"server"`` accepts requests and text lines, a ``"client"`` responses. It refuses bodies longer than ``max_body`` and
    lines longer than ``max_line`` bytes. Between two calls it holds at most one unfinished packet or line.
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
        self._skip = 0  # remaining bytes of a refused body
        self._buffer = bytearray()  # an unfinished message; its growth is amortised, even for small reads
        self._need = 0  # bytes that the buffer must hold before the next parse; 0 in a text line: search for its end

    @property
    def extended(self) -> bool:
        """Whether packets of the extension are accepted; the owner sets it when both sides have agreed."""
        return self._extended

    @extended.setter
    def extended(self, value: bool) -> None:
        self._extended = value
        self._accepted = _TABLES[self._role, value]

    def limit_bodies(self, size: int) -> None:
        """Refuse longer bodies than ``size`` bytes in the packets of later reads."""
        self._max_body = size

    @property
    def closed(self) -> bool:
        """Whether ``receive`` has returned a FATAL message; all further bytes are ignored."""
        return self._closed

    @property
    def buffered(self) -> int:
        """The number of bytes held for an unfinished message: at most ``max_body`` and a header, or ``max_line``."""
        return len(self._buffer)

    def receive(self, data: bytes) -> list[Message]:
        """Parse received bytes; return the messages that they complete, in order.  Never raises, whatever the bytes."""
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
                if key in _EXTENDED_REQUESTS and self._accept_extension(messages):
                    accepted = self._accepted
                    continue
                position = self._irregular(data, position, messages)
                if position == _END_OF_READ:
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
                append((kind, []))  # an unexpected body is ignored, like in gearmand
            position = end
        if position < size:
            self._keep(data, position, messages)
        return messages

    def _accept_extension(self, messages: list[Message]) -> bool:
        """Return whether the peer has requested the extension in this same read; if so, accept its packets.

        The owner sees the request only after ``receive`` has returned, and a server always agrees. The search of the messages
        happens at most once without success: an extended packet without the request closes the connection.
        """
        requested = self._role == "server" and not self._extended and (Type.OPTION_REQ, [EXTENSION]) in messages
        if requested:
            self.extended = True
        return requested

    def _resume(self, data: bytes) -> bytes:
        """Return the bytes to parse now: the kept bytes and the new ones; nothing if more bytes are needed."""
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
        """Parse the text lines in a remainder shorter than a header, and keep an unfinished message."""
        size = len(data)
        while position < size and data[position]:
            position = self._line(data, position, messages)
            if position == _END_OF_READ:
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
        """Parse the text line at a position; return the position of the next message."""
        if self._role == "client":
            messages.append(self._fatal("INVALID_MAGIC", "Response magic expected"))
            return _END_OF_READ
        if data[position] == _TLS:
            messages.append(self._fatal("FOREIGN_PROTOCOL", _NOT_TLS))
            return _END_OF_READ
        end = data.find(b"\n", position, position + self._max_line + 1)
        if end >= 0:
            line = data[position:end].removesuffix(b"\r")
            # A page in a browser can send HTTP and TLS to any port of its machine, with parts that it chooses. Nothing of the
            # rest may be executed.
            if _HTTP.match(line):
                messages.append(self._fatal("FOREIGN_PROTOCOL", _NOT_HTTP))
                return _END_OF_READ
            messages.append((TEXT, [line]))
            return end + 1
        if len(data) - position > self._max_line:
            messages.append(self._fatal("LINE_TOO_LARGE", f"A text line exceeds {self._max_line} bytes"))
            return _END_OF_READ
        self._need = 0
        self._buffer += data[position:]
        return _END_OF_READ

    def _irregular(self, data: bytes, position: int, messages: list[Message]) -> int:
        """Parse a text line, or a packet with an unacceptable header; return the position of the next message."""
        if data[position]:
            return self._line(data, position, messages)
        magic = data[position : position + 4]
        kind = int.from_bytes(data[position + 4 : position + 8], "big")
        length = int.from_bytes(data[position + 8 : position + 12], "big")
        start = position + HEADER_SIZE
        identified = False
        if kind in _KEY_ARGUMENTS and self._role == "server" and _key(magic, kind) in self._accepted:
            key_end = start + min(length, _MAX_KEY_BYTES)
            if key_end > len(data):
                self._need = key_end - position
                self._buffer += data[position:]
                return _END_OF_READ
            key_args = data[start:key_end].split(b"\0", _KEY_ARGUMENTS[kind])[:-1]
            identified = len(key_args) == _KEY_ARGUMENTS[kind]
            if identified:
                messages.append((OVERSIZED, [self._limit(length).encode(), *key_args]))
        verdict = self._verdict(magic, kind, length)
        if not identified or verdict[0] == FATAL:
            messages.append(verdict)
        if self._closed:
            return _END_OF_READ
        end = start + length
        if end <= len(data):
            return end
        self._skip = end - len(data)
        return _END_OF_READ

    def _verdict(self, magic: bytes, kind: int, length: int) -> Message:
        """Return the message for an unacceptable header."""
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
        """Split a body that is too long to be copied twice, and check its prefix against the limit."""
        if not count:
            return kind, []
        limit = end
        # A long failure in SETTLE is shortened by its receiver: a refused one would leave its job without an end.
        if self._role == "server" and kind != Type.SETTLE:
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
        expected = ARGUMENTS[kind]
        return self._bad("INVALID_ARGUMENTS", f"{Type(kind).name} takes {expected} arguments, not {found}")

    def _bad(self, code: str, message: str) -> Message:
        """Return the refusal of one packet. It is fatal for a client, which cannot continue without the lost answer."""
        if self._role == "client":
            return self._fatal(code, message)
        return BAD, [code.encode(), message.encode()]

    def _fatal(self, code: str, message: str) -> Message:
        self._closed = True
        return FATAL, [code.encode(), message.encode()]
