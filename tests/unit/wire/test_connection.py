"""Tests the parser with one table of cases: read whole, split at every byte, and split at random."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.wire.gearman_protocol import (
    ARGUMENTS,
    BAD,
    EXTENDED,
    FATAL,
    MAX_PREFIX,
    OVERSIZED,
    REQ,
    REQUESTS,
    RES,
    RESPONSES,
    TEXT,
    Connection,
    Message,
    Type,
    request,
    response,
)

MAX_BODY = 20_000
MAX_LINE = 100
ALIVE = request(Type.ECHO_REQ, b"alive")
ECHO: Message = (Type.ECHO_REQ, [b"alive"])


def server(*, extended: bool = False, max_body: int = MAX_BODY) -> Connection:
    connection = Connection("server", max_body=max_body, max_line=MAX_LINE)
    connection.extended = extended
    return connection


def client() -> Connection:
    connection = Connection("client", max_body=MAX_BODY)
    connection.extended = True
    return connection


def feed(connection: Connection, *pieces: bytes) -> list[Message]:
    messages = []
    for piece in pieces:
        messages += connection.receive(piece)
        assert connection.buffered <= MAX_BODY + MAX_LINE + 12
    return messages


def packet(magic: bytes, kind: int, body: bytes = b"", *, length: int | None = None) -> bytes:
    return magic + struct.pack(">II", kind, len(body) if length is None else length) + body


def bad(code: str, message: str) -> Message:
    return BAD, [code.encode(), message.encode()]


def fatal(code: str, message: str) -> Message:
    return FATAL, [code.encode(), message.encode()]


NOT_EXPECTED = bad("INVALID_COMMAND", "Command not expected")
HTTP = fatal(
    "FOREIGN_PROTOCOL", "This port speaks Gearman's protocol, not HTTP: send requests to the address in --http"
)
TLS = fatal("FOREIGN_PROTOCOL", "This port speaks Gearman's protocol without TLS")
GARBAGE = fatal("INVALID_MAGIC", "Neither a packet nor a text command")

# Bytes that a server receives, and the messages that it parses from them, without the echo that follows each case.
CASES: dict[str, tuple[bytes, list[Message]]] = {
    "nothing": (b"", []),
    "no arguments": (request(Type.GRAB_JOB), [(9, [])]),
    "no arguments, but a body": (packet(REQ, Type.GRAB_JOB, b"hello"), [(9, [])]),
    "no arguments, but a long body": (packet(REQ, Type.GRAB_JOB, b"x" * 9000), [(9, [])]),
    "one empty argument": (request(Type.CAN_DO, b""), [(1, [b""])]),
    "one argument with a NUL": (request(Type.ECHO_REQ, b"a\0b"), [(16, [b"a\0b"])]),
    "one long argument": (request(Type.ECHO_REQ, b"\0" * 9000), [(16, [b"\0" * 9000])]),
    "payload with NULs": (request(Type.SUBMIT_JOB, b"f", b"u", b"\0a\0"), [(7, [b"f", b"u", b"\0a\0"])]),
    "all empty": (request(Type.SUBMIT_JOB, b"", b"", b""), [(7, [b"", b"", b""])]),
    "long payload": (request(Type.SUBMIT_JOB, b"f", b"u", b"\0" * 9000), [(7, [b"f", b"u", b"\0" * 9000])]),
    "as long as may be": (request(Type.ECHO_REQ, b"x" * MAX_BODY), [(16, [b"x" * MAX_BODY])]),
    "reduce": (
        request(Type.SUBMIT_REDUCE_JOB_BACKGROUND, b"f", b"u", b"r", b"", b"p"),
        [(38, [b"f", b"u", b"r", b"", b"p"])],
    ),
    "epoch": (request(Type.SUBMIT_JOB_EPOCH, b"f", b"u", b"1", b"p"), [(36, [b"f", b"u", b"1", b"p"])]),
    "schedule": (
        request(Type.SUBMIT_JOB_SCHED, b"f", b"u", b"0", b"12", b"", b"", b"1", b"p"),
        [(35, [b"f", b"u", b"0", b"12", b"", b"", b"1", b"p"])],
    ),
    "text": (b"status\n", [(TEXT, [b"status"])]),
    "text with CR": (b"show unique jobs\r\n", [(TEXT, [b"show unique jobs"])]),
    "several lines, the shortest": (b"\n\r\nx\n", [(TEXT, [b""]), (TEXT, [b""]), (TEXT, [b"x"])]),
    "the longest line": (b"x" * MAX_LINE + b"\n", [(TEXT, [b"x" * MAX_LINE])]),
    "garbage with a line end": (b"\xff\xfe\x01 \0\n", [(TEXT, [b"\xff\xfe\x01 \0"])]),
    "packet, text, packet": (
        request(Type.PRE_SLEEP) + b"version\n" + request(Type.RESET_ABILITIES),
        [(4, []), (TEXT, [b"version"]), (3, [])],
    ),
    "response magic": (response(Type.ECHO_REQ, b"x"), [bad("INVALID_MAGIC", "Request magic expected")]),
    "sent by servers only": (request(Type.JOB_ASSIGN, b"h", b"f", b"p"), [NOT_EXPECTED]),
    "sent by servers only, without arguments": (request(Type.NOOP), [NOT_EXPECTED]),
    "unused": (request(Type.UNUSED), [NOT_EXPECTED]),
    "all yours": (request(Type.ALL_YOURS), [NOT_EXPECTED]),
    "too few arguments": (
        request(Type.SUBMIT_JOB_BG, b"f", b"u"),
        [bad("INVALID_ARGUMENTS", "SUBMIT_JOB_BG takes 3 arguments, not 2")],
    ),
    "too few arguments, none": (
        packet(REQ, Type.CAN_DO_TIMEOUT),
        [bad("INVALID_ARGUMENTS", "CAN_DO_TIMEOUT takes 2 arguments, not 1")],
    ),
    "too few arguments, long": (
        request(Type.SUBMIT_JOB_BG, b"f", b"u" * 9000),
        [bad("INVALID_ARGUMENTS", "SUBMIT_JOB_BG takes 3 arguments, not 2")],
    ),
    "a report that is a handle alone": (
        b"".join(request(kind, b"H:n1:7") for kind in (13, 25, 28, 29)),
        [(kind, [b"H:n1:7", b""]) for kind in (13, 25, 28, 29)],
    ),
    "a status that is a handle alone": (
        request(Type.WORK_STATUS, b"H:n1:7"),
        [bad("INVALID_ARGUMENTS", "WORK_STATUS takes 3 arguments, not 1")],
    ),
    "a report that is nothing but a long handle": (
        request(Type.WORK_COMPLETE, b"H" * 9000),
        [bad("INVALID_ARGUMENTS", "WORK_COMPLETE takes 2 arguments, not 1")],
    ),
    "reduce as the protocol's page has it": (
        request(Type.SUBMIT_REDUCE_JOB, b"f", b"u", b"r", b"p"),
        [bad("INVALID_ARGUMENTS", "SUBMIT_REDUCE_JOB takes 5 arguments, not 4")],
    ),
    "arguments before the payload too long": (
        request(Type.SUBMIT_JOB_BG, b"f" * MAX_PREFIX, b"", b"p"),
        [bad("ARGUMENT_TOO_LARGE", "The arguments before the last one are too long")],
    ),
    "body too long": (
        request(Type.ECHO_REQ, b"x" * (MAX_BODY + 1)),
        [bad("ARGUMENT_TOO_LARGE", "A body of 20001 bytes exceeds the limit of 20000 bytes")],
    ),
    "body absurdly long": (
        packet(REQ, Type.ECHO_REQ, length=2**32 - 1),
        [fatal("ARGUMENT_TOO_LARGE", "A body of 4294967295 bytes exceeds the limit of 20000 bytes")],
    ),
    "result too long": (
        request(Type.WORK_COMPLETE, b"H:n1:7", b"x\0" * MAX_BODY),
        [(OVERSIZED, [b"A body of 40007 bytes exceeds the limit of 20000 bytes", b"H:n1:7"])],
    ),
    "result too long without a handle": (
        request(Type.WORK_COMPLETE, b"x" * (MAX_BODY + 1)),
        [bad("ARGUMENT_TOO_LARGE", "A body of 20001 bytes exceeds the limit of 20000 bytes")],
    ),
    "result absurdly long": (
        packet(REQ, Type.WORK_COMPLETE, b"H:n1:7\0" + b"x" * 2000, length=2**32 - 1),
        [
            (OVERSIZED, [b"A body of 4294967295 bytes exceeds the limit of 20000 bytes", b"H:n1:7"]),
            fatal("ARGUMENT_TOO_LARGE", "A body of 4294967295 bytes exceeds the limit of 20000 bytes"),
        ],
    ),
    "result absurdly long without a handle": (
        packet(REQ, Type.WORK_COMPLETE, b"x" * 2000, length=2**32 - 1),
        [fatal("ARGUMENT_TOO_LARGE", "A body of 4294967295 bytes exceeds the limit of 20000 bytes")],
    ),
    "result absurdly long, not agreed": (
        packet(REQ, Type.SETTLE, b"H:n1:7\0" + b"1.1.1\0", length=2**32 - 1),
        [fatal("INVALID_COMMAND", "Packet type 1013 is unknown without the option mainspring/2")],
    ),
    "a POST": (
        b"version\r\nPOST / HTTP/1.1\r\nHost: x\r\n\r\nshutdown\n" + request(Type.SUBMIT_JOB_BG, b"f", b"", b""),
        [(TEXT, [b"version"]), HTTP],
    ),
    "a GET": (b"GET /\n", [HTTP]),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [HTTP]),
    "an unknown method": (b"BREW /pot HTTP/1.1\r\nshutdown\n", [HTTP]),
    "a header alone": (b"hOst : 127.0.0.1:4730\nshutdown\n", [HTTP]),
    "no HTTP": (b"get /\ngetpid\nHTTP\n", [(TEXT, [b"get /"]), (TEXT, [b"getpid"]), (TEXT, [b"HTTP"])]),
    "a handshake of TLS": (b"\x16\x03\x01\x02\0\nshutdown\n", [TLS]),
    "line too long": (b"x" * (MAX_LINE + 1), [fatal("LINE_TOO_LARGE", "A text line exceeds 100 bytes")]),
    "type 0": (packet(REQ, 0), [fatal("INVALID_COMMAND", "Packet type 0 is unknown")]),
    "type 43": (packet(REQ, 43, b"x"), [fatal("INVALID_COMMAND", "Packet type 43 is unknown")]),
    "the last type": (
        packet(REQ, 2**32 - 1),
        [fatal("INVALID_COMMAND", "Packet type 4294967295 is unknown")],
    ),
    "unknown in a response": (packet(RES, 43), [fatal("INVALID_COMMAND", "Packet type 43 is unknown")]),
    "extension, not agreed": (
        request(Type.READY, b"1"),
        [fatal("INVALID_COMMAND", "Packet type 1011 is unknown without the option mainspring/2")],
    ),
    "wrong magic": (packet(b"\0ABC", 1, b"f"), [GARBAGE]),
    "NULs": (b"\0" * 40, [GARBAGE]),
    "four NULs": (b"\0" * 4, [GARBAGE]),
}


@pytest.mark.parametrize("case", CASES)
def test_whole(case: str) -> None:
    data, expected = CASES[case]
    connection = server()
    lives = not any(kind == FATAL for kind, _ in expected)
    assert feed(connection, data + ALIVE) == expected + [ECHO] * lives
    assert connection.closed is not lives
    assert connection.buffered == 0
    assert connection.receive(ALIVE) == [ECHO] * lives


@pytest.mark.parametrize("case", CASES)
def test_byte_by_byte(case: str) -> None:
    data, expected = CASES[case]
    connection = server()
    lives = not any(kind == FATAL for kind, _ in expected)
    assert feed(connection, *(bytes([byte]) for byte in data + ALIVE)) == expected + [ECHO] * lives


@pytest.mark.parametrize("case", [case for case, (data, _) in CASES.items() if len(data) < 200])
def test_cut_in_two_at_every_byte(case: str) -> None:
    data, expected = CASES[case]
    lives = not any(kind == FATAL for kind, _ in expected)
    data = request(Type.PRE_SLEEP) + data + ALIVE
    for cut in range(len(data)):
        assert feed(server(), data[:cut], data[cut:]) == [(4, []), *expected, *[ECHO] * lives]


@pytest.mark.parametrize("case", [case for case, (data, _) in CASES.items() if 1 < len(data) < 200])
def test_truncated(case: str) -> None:
    """An unfinished message yields nothing and is not an error, because the rest may still arrive."""
    data, expected = CASES[case]
    messages = feed(server(), data[:-1])
    assert messages == expected[: len(messages)]


def test_a_refused_body_is_not_kept() -> None:
    connection = server()
    header = packet(REQ, Type.ECHO_REQ, length=MAX_BODY * 3)
    assert [kind for kind, _ in connection.receive(header)] == [BAD]
    for _ in range(6):
        assert connection.receive(b"\0" * (MAX_BODY // 2)) == []
        assert connection.buffered == 0
    assert connection.receive(ALIVE) == [ECHO]


def test_a_large_body_in_small_pieces_takes_linear_time() -> None:
    """8 MiB arrive in 16-byte pieces. If each piece copied the bytes before it, this would copy 2 TiB."""
    body = b"x" * 2**23
    data = request(Type.ECHO_REQ, body)
    connection = server(max_body=2**24)
    messages = [message for at in range(0, len(data), 16) for message in connection.receive(data[at : at + 16])]
    assert messages == [(16, [body])]


def test_tracebacks_fit_before_the_last_argument_of_the_extension() -> None:
    detail = b"x" * 2 * MAX_PREFIX
    data = request(Type.SETTLE, b"h", b"l", b"failed", detail, b"")
    assert feed(server(extended=True), data) == [(1013, [b"h", b"l", b"failed", detail, b""])]


def test_an_oversized_settlement_names_its_delivery() -> None:
    data = request(Type.SETTLE, b"H:n1:7", b"1.1.1", b"succeeded", b"", b"x" * MAX_BODY) + ALIVE
    expected = [(OVERSIZED, [b"A body of 20024 bytes exceeds the limit of 20000 bytes", b"H:n1:7", b"1.1.1"]), ECHO]
    for cut in (1, 7, 100, 5000, len(data)):
        pieces = [data[at : at + cut] for at in range(0, len(data), cut)]
        assert feed(server(extended=True), *pieces) == expected


def test_a_settlement_too_long_to_be_dropped_names_its_delivery_first() -> None:
    data = packet(REQ, Type.SETTLE, b"H:n1:7\x001.1.1\0succeeded\0\0" + b"x" * MAX_BODY, length=MAX_BODY * 17)
    explanation = b"A body of 340000 bytes exceeds the limit of 20000 bytes"
    expected = [(OVERSIZED, [explanation, b"H:n1:7", b"1.1.1"]), (FATAL, [b"ARGUMENT_TOO_LARGE", explanation])]
    for cut in (1, 7, 100, 5000, len(data)):
        pieces = [data[at : at + cut] for at in range(0, len(data), cut)]
        connection = server(extended=True)
        assert feed(connection, *pieces) == expected
        assert connection.closed
        assert connection.buffered == 0


def test_extension_types_are_accepted_once_agreed() -> None:
    connection = server()
    assert not connection.extended
    assert feed(connection, request(Type.OPTION_REQ, b"mainspring/2")) == [(26, [b"mainspring/2"])]
    connection.extended = True
    assert connection.extended
    assert feed(connection, request(Type.READY, b"4"), request(Type.PAUSED)) == [(1011, [b"4"]), NOT_EXPECTED]


@pytest.mark.parametrize("message", [b"status\n", b"\0RES\0\0\0\1\0\0\0\0", b"\0REQ\0\0\0\10\0\0\0\0"])
def test_a_read_takes_linear_time(message: bytes) -> None:
    """Messages other than requests are not compared with all messages before them, which took 20 s for this read."""
    began = time.process_time()
    messages = Connection("server").receive(message * 40_000)
    assert len(messages) == 40_000
    assert time.process_time() - began < 4


def test_the_extension_may_be_requested_and_used_in_one_read() -> None:
    data = request(Type.OPTION_REQ, b"mainspring/2") + request(Type.READY, b"4") + request(Type.READY, b"5")
    expected = [(26, [b"mainspring/2"]), (1011, [b"4"]), (1011, [b"5"])]
    assert feed(server(), data) == expected
    other = request(Type.OPTION_REQ, b"exceptions") + request(Type.READY, b"4")
    assert [kind for kind, _ in feed(server(), other)] == [26, FATAL]
    assert [kind for kind, _ in feed(server(), request(Type.READY, b"4") + data)] == [FATAL]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"OK\r\n", b"INVALID_MAGIC"),
        (request(Type.NOOP), b"INVALID_MAGIC"),
        (response(Type.GRAB_JOB), b"INVALID_COMMAND"),
        (packet(RES, 99), b"INVALID_COMMAND"),
        (packet(RES, Type.ERROR, b"code"), b"INVALID_ARGUMENTS"),
        (packet(RES, Type.ERROR, b"c" * 9000), b"INVALID_ARGUMENTS"),
        (response(Type.ECHO_RES, b"x" * (MAX_BODY + 1)), b"ARGUMENT_TOO_LARGE"),
    ],
)
def test_any_error_is_fatal_for_a_client(data: bytes, code: bytes) -> None:
    connection = client()
    messages = feed(connection, response(Type.NOOP) + data + response(Type.NOOP))
    assert [(kind, args[:1]) for kind, args in messages] == [(Type.NOOP, []), (FATAL, [code])]
    assert connection.closed


def test_a_client_accepts_a_report_with_only_a_handle() -> None:
    assert feed(client(), packet(RES, Type.WORK_DATA, b"H:n1:7")) == [(28, [b"H:n1:7", b""])]


def test_a_client_accepts_long_names_from_its_server() -> None:
    name = b"f" * 9000
    assert feed(client(), response(Type.JOB_ASSIGN, b"h", name, b"p")) == [(11, [b"h", name, b"p"])]


@st.composite
def arguments(draw: st.DrawFn, count: int) -> list[bytes]:
    plain = st.binary(max_size=12).map(lambda text: text.replace(b"\0", b""))
    payload = st.binary(max_size=40) | st.just(b"\0x" * 5000)
    return [draw(plain) for _ in range(count - 1)] + [draw(payload)] * (count > 0)


@st.composite
def conversation(draw: st.DrawFn, kinds: frozenset[int]) -> list[Message]:
    chosen = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=8))
    return [(kind, draw(arguments(ARGUMENTS[kind]))) for kind in chosen]


def pieces(draws: st.DataObject, data: bytes) -> list[bytes]:
    cuts = sorted(draws.draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(st.data(), conversation(frozenset(REQUESTS)))
def test_parsed_requests_equal_the_encoded_ones(draws: st.DataObject, messages: list[Message]) -> None:
    wire = b"".join(request(kind, *args) for kind, args in messages)
    assert feed(server(extended=True), *pieces(draws, wire)) == messages


@given(st.data(), conversation(frozenset(RESPONSES)))
def test_parsed_responses_equal_the_encoded_ones(draws: st.DataObject, messages: list[Message]) -> None:
    wire = b"".join(response(kind, *args) for kind, args in messages)
    assert feed(client(), *pieces(draws, wire)) == messages


HEADERS = st.builds(
    packet,
    st.sampled_from([REQ, RES, b"\0RE\0"]),
    st.sampled_from([0, 43, 2**32 - 1, *Type]),
    st.binary(max_size=30),
    length=st.none() | st.integers(0, MAX_BODY * 20),
)
RESULTS = st.builds(
    packet,
    st.just(REQ),
    st.sampled_from([Type.WORK_COMPLETE, Type.SETTLE]),
    st.sampled_from([b"H:n1:7\x001.1.1\0", b"H:n1:7\x001.1.1\0" + b"x" * 1100, b"x" * 1100]),
    length=st.integers(MAX_BODY, MAX_BODY * 20),
)
NOISE = st.lists(
    HEADERS | RESULTS | st.binary(max_size=40) | st.sampled_from([b"status\n", ALIVE, b"x" * 99, b"\0"]), max_size=10
)


@settings(max_examples=300, deadline=None)
@given(st.data(), NOISE, st.booleans(), st.sampled_from(["server", "client"]))
def test_no_bytes_raise_and_splits_do_not_change_the_messages(
    draws: st.DataObject, noise: list[bytes], extended: bool, role: str
) -> None:
    def fresh() -> Connection:
        connection = Connection("server" if role == "server" else "client", max_body=MAX_BODY, max_line=MAX_LINE)
        connection.extended = extended
        return connection

    wire = b"".join(noise)
    whole, cut = fresh(), fresh()
    messages = feed(whole, wire)
    assert feed(cut, *pieces(draws, wire)) == messages
    assert (cut.closed, cut.buffered) == (whole.closed, whole.buffered)
    assert [kind for kind, _ in messages[:-1]].count(FATAL) == 0
    allowed = {TEXT, BAD, FATAL, OVERSIZED, *(REQUESTS if role == "server" else RESPONSES)} - (
        set() if extended else EXTENDED
    )
    assert {kind for kind, _ in messages} <= allowed
