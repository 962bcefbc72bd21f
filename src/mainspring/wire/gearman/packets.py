"""The packets of the Gearman protocol and of Mainspring's extension: a table of them, and their encoding.

A packet is ``magic type length body``: four bytes of magic, two unsigned 32-bit big-endian integers, and the arguments
joined by single NULs. The last argument extends to the end of the body and may contain NULs; the others must not, which the
encoders do not check. A worker's report may be only a handle, without a NUL: its payload is empty.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

REQ: Final = b"\0REQ"
"""The magic of packets from clients and workers."""
RES: Final = b"\0RES"
"""The magic of packets from the server."""

HEADER: Final = struct.Struct(">4sII")
HEADER_SIZE: Final = HEADER.size

EXTENSION: Final = b"mainspring/1"
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
