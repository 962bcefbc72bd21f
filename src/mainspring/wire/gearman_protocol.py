"""The Gearman protocol and Mainspring's extension: a table of the packets, their encoding, and one end of a connection.

A packet is ``magic type length body``: four bytes of magic, two unsigned 32-bit big-endian integers, and the arguments
joined by single NULs. The last argument extends to the end of the body and may contain NULs; the others must not, which the
encoders do not check. A worker's report may be only a handle, without a NUL: its payload is empty.

A `Connection` does no input and output: bytes in, messages out. A message is ``(type, args)``. In addition to the packets'
types there are four types of its own: ``TEXT``, ``BAD``, ``FATAL`` and ``OVERSIZED``. The messages do not depend on how the
bytes were split into reads. Errors are detected from a packet's header or body, without waiting for more bytes than the header
declares.

`unique_of_payload` computes Gearman's unique ``-``, which stands for the payload itself.
"""

from __future__ import annotations

import hashlib
import re
import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from typing import TypeAlias

REQ: Final = b"\0REQ"
"""The magic of packets from clients and workers."""
RES: Final = b"\0RES"
"""The magic of packets from the server."""

HEADER: Final = struct.Struct(">4sII")
HEADER_SIZE: Final = HEADER.size

EXTENSION_NAME: Final = b"mainspring/"
"""The first bytes of the option with which a peer requests some version of the extension."""
EXTENSION: Final = EXTENSION_NAME + b"2"
"""The option with which a peer requests the extension: the packet types from 1000 on."""
NAMESPACE_OPTION: Final = b"namespace="
"""The first bytes of the option with which a peer of the extension chooses the namespace of all names in its messages."""


class Type(IntEnum):
    """The number of each packet type, under its name in the protocol."""

    CAN_DO = 1
    CANT_DO = 2
    RESET_ABILITIES = 3
    PRE_SLEEP = 4
    UNUSED = 5
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
    SUBMIT_REDUCE_JOB_BACKGROUND = 38
    GRAB_JOB_ALL = 39
    JOB_ASSIGN_ALL = 40
    GET_STATUS_UNIQUE = 41
    STATUS_RES_UNIQUE = 42

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
    HISTORY = 1020
    EVENTS = 1021
    DECIDE = 1022
    DECIDED = 1023
    FORGOTTEN = 1024
    LOG = 1025
    PROGRESS_TEXT = 1026
    VALUES = 1027


ARGUMENTS: Final[dict[int, int]] = {
    Type.CAN_DO: 1,  # function
    Type.CANT_DO: 1,  # function
    Type.RESET_ABILITIES: 0,
    Type.PRE_SLEEP: 0,
    Type.UNUSED: 0,
    Type.NOOP: 0,
    Type.SUBMIT_JOB: 3,  # function, unique, payload
    Type.JOB_CREATED: 1,  # handle
    Type.GRAB_JOB: 0,
    Type.NO_JOB: 0,
    Type.JOB_ASSIGN: 3,  # handle, function, payload
    Type.WORK_STATUS: 3,  # handle, numerator, denominator
    Type.WORK_COMPLETE: 2,  # handle, result
    Type.WORK_FAIL: 1,  # handle
    Type.GET_STATUS: 1,  # handle
    Type.ECHO_REQ: 1,  # data
    Type.ECHO_RES: 1,  # data
    Type.SUBMIT_JOB_BG: 3,  # function, unique, payload
    Type.ERROR: 2,  # code, message
    Type.STATUS_RES: 5,  # handle, known, running, numerator, denominator
    Type.SUBMIT_JOB_HIGH: 3,  # function, unique, payload
    Type.SET_CLIENT_ID: 1,  # id
    Type.CAN_DO_TIMEOUT: 2,  # function, timeout in milliseconds
    Type.ALL_YOURS: 0,
    Type.WORK_EXCEPTION: 2,  # handle, data
    Type.OPTION_REQ: 1,  # option
    Type.OPTION_RES: 1,  # option
    Type.WORK_DATA: 2,  # handle, data
    Type.WORK_WARNING: 2,  # handle, data
    Type.GRAB_JOB_UNIQ: 0,
    Type.JOB_ASSIGN_UNIQ: 4,  # handle, function, unique, payload
    Type.SUBMIT_JOB_HIGH_BG: 3,  # function, unique, payload
    Type.SUBMIT_JOB_LOW: 3,  # function, unique, payload
    Type.SUBMIT_JOB_LOW_BG: 3,  # function, unique, payload
    Type.SUBMIT_JOB_SCHED: 8,  # function, unique, minute, hour, day of month, month, day of week, payload
    Type.SUBMIT_JOB_EPOCH: 4,  # function, unique, seconds since 1970, payload
    # The protocol's page lists no aggregator here; every implementation sends one, possibly empty.
    Type.SUBMIT_REDUCE_JOB: 5,  # function, unique, reducer, aggregator, payload
    Type.SUBMIT_REDUCE_JOB_BACKGROUND: 5,  # function, unique, reducer, aggregator, payload
    Type.GRAB_JOB_ALL: 0,
    Type.JOB_ASSIGN_ALL: 5,  # handle, function, unique, reducer, payload
    Type.GET_STATUS_UNIQUE: 1,  # unique
    Type.STATUS_RES_UNIQUE: 6,  # unique, known, running, numerator, denominator, waiting clients
    Type.SUBMIT: 4,  # function, unique, options, payload
    Type.SUBMITTED: 2,  # handle, joined
    Type.WAIT: 1,  # handle
    Type.RESULT: 5,  # handle, state, attempt, error, data
    Type.CALL: 3,  # id, method, params
    Type.ANSWER: 2,  # id, value
    Type.FAULT: 3,  # id, code, message
    Type.EVENT: 2,  # id, object
    Type.REGISTER: 2,  # function, options
    Type.READY: 1,  # count
    Type.ASSIGN: 6,  # handle, lease, function, unique, info, payload
    Type.SETTLE: 5,  # handle, lease, outcome, detail, data
    Type.SETTLED: 3,  # handle, lease, verdict
    Type.HEARTBEAT: 1,  # jobs
    Type.BEATEN: 1,  # stop and lost
    Type.STOP: 3,  # handle, lease, reason
    Type.PAUSE: 0,
    Type.PAUSED: 0,
    # Numbers are decimal text; bodies are MessagePack.
    Type.HISTORY: 2,  # run, number of the first event
    Type.EVENTS: 3,  # run, number of the first event, events
    Type.DECIDE: 2,  # id, completions
    Type.DECIDED: 2,  # id, verdicts
    Type.FORGOTTEN: 1,  # runs
    Type.LOG: 1,  # lines
    Type.PROGRESS_TEXT: 2,  # handle, text
    Type.VALUES: 1,  # published values
}
"""The number of arguments of each type; the last argument extends to the end of the body."""

_BOTH_WAYS = {Type.WORK_STATUS, Type.WORK_COMPLETE, Type.WORK_FAIL, Type.WORK_EXCEPTION, Type.WORK_DATA,
              Type.WORK_WARNING, Type.PROGRESS_TEXT}  # fmt: skip
_BY_SERVER = {Type.NOOP, Type.JOB_CREATED, Type.NO_JOB, Type.JOB_ASSIGN, Type.ECHO_RES, Type.ERROR, Type.STATUS_RES,
              Type.OPTION_RES, Type.JOB_ASSIGN_UNIQ, Type.JOB_ASSIGN_ALL, Type.STATUS_RES_UNIQUE}  # fmt: skip
_UNUSED = {Type.UNUSED, Type.ALL_YOURS}
_EXTENSION_BY_SERVER = {Type.SUBMITTED, Type.RESULT, Type.ANSWER, Type.FAULT, Type.EVENT, Type.ASSIGN, Type.SETTLED,
                        Type.BEATEN, Type.STOP, Type.PAUSED, Type.EVENTS, Type.DECIDED}  # fmt: skip

PLAIN: Final[frozenset[int]] = frozenset(kind for kind in Type if kind < 1000)
"""The types of the Gearman protocol."""
EXTENDED: Final[frozenset[int]] = frozenset(kind for kind in Type if kind >= 1000)
"""The types of the extension, valid only after both sides agreed on it."""
REQUESTS: Final[frozenset[int]] = frozenset((PLAIN - _BY_SERVER - _UNUSED) | (EXTENDED - _EXTENSION_BY_SERVER))
"""The types that a server accepts; those in ``EXTENDED`` only after negotiation."""
RESPONSES: Final[frozenset[int]] = frozenset(_BOTH_WAYS | _BY_SERVER | _EXTENSION_BY_SERVER)
"""The types that a client or worker accepts; those in ``EXTENDED`` only after negotiation."""

_pack_header = HEADER.pack


def request(kind: int, *args: bytes) -> bytes:
    """Encode a packet of a client or worker.  Raises struct.error if the body exceeds 4 GiB."""
    body = b"\0".join(args)
    return _pack_header(REQ, kind, len(body)) + body


def response_head(kind: int, size: int, *args: bytes) -> bytes:
    """Encode a packet of the server without its last argument, which has ``size`` bytes and is sent right after it."""
    body = b"\0".join((*args, b""))
    return _pack_header(RES, kind, len(body) + size) + body


def response(kind: int, *args: bytes) -> bytes:
    """Encode a packet of the server.  Raises struct.error if the body exceeds 4 GiB."""
    body = b"\0".join(args)
    return _pack_header(RES, kind, len(body)) + body


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
            hint = " without the option mainspring/2" if kind in EXTENDED else ""
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


_OF_PAYLOAD = b"-:"


def unique_of_payload(payload: bytes) -> bytes:
    """Return the unique that ``-`` stands for: a hash of the payload."""
    return _OF_PAYLOAD + hashlib.blake2b(payload, digest_size=16).hexdigest().encode()


def unique_of_empty_payload(number: int) -> bytes:
    """Return a distinct unique for ``-`` with an empty payload, because gearmand does not join such jobs."""
    return _OF_PAYLOAD + b"%032d" % number


def original_unique(unique: bytes) -> bytes:
    """Return a unique as its client sent it."""
    return b"-" if unique.startswith(_OF_PAYLOAD) and len(unique) == 34 else unique
