"""Invalid bytes: the answers to them, the connections that they end, and the isolation of other connections."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from .packets import REQUEST, RESPONSE, Kind, encode, packet_of

if TYPE_CHECKING:
    from .servers import Server

FROM_THE_SERVER = {
    Kind.NOOP: 0,
    Kind.JOB_CREATED: 1,
    Kind.NO_JOB: 0,
    Kind.JOB_ASSIGN: 3,
    Kind.ECHO_RES: 1,
    Kind.ERROR: 2,
    Kind.STATUS_RES: 5,
    Kind.ALL_YOURS: 0,
    Kind.OPTION_RES: 1,
    Kind.JOB_ASSIGN_UNIQ: 4,
    Kind.JOB_ASSIGN_ALL: 5,
    Kind.STATUS_RES_UNIQUE: 6,
}


@pytest.mark.parametrize("sent", FROM_THE_SERVER, ids=lambda sent: str(sent.name))
def test_a_packet_that_only_servers_send_is_refused(server: Server, sent: Kind) -> None:
    peer = server.peer()
    peer.send(sent, *[b"x"] * FROM_THE_SERVER[sent])
    assert peer.receive() == packet_of(Kind.ERROR, b"INVALID_COMMAND", b"Command not expected")
    peer.sync()


@pytest.mark.parametrize("number", [0, 43, 44, 999, 1000, 0x7FFFFFFF])
def test_an_unknown_type_closes_the_connection(server: Server, number: int) -> None:
    peer, other = server.peer(), server.peer()
    peer.write(encode(number, b"x"))
    assert peer.is_refused()
    other.sync()


def test_the_magic_of_a_response_is_refused(server: Server) -> None:
    peer = server.peer()
    peer.write(encode(Kind.ECHO_REQ, b"x", magic=RESPONSE))
    assert peer.receive() == packet_of(Kind.ERROR, b"INVALID_MAGIC", b"Request magic expected")
    peer.sync()


def test_any_other_magic_closes_the_connection(server: Server) -> None:
    peer, other = server.peer(), server.peer()
    peer.write(encode(Kind.ECHO_REQ, b"x", magic=b"\0XYZ"))
    assert peer.is_refused()
    other.sync()


def test_a_packet_may_come_byte_by_byte(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    for number in encode(Kind.SUBMIT_JOB_BG, function, b"", b"slow"):
        client.write(bytes([number]))
    (handle,) = client.expect(Kind.JOB_CREATED)
    assert worker.grab_assigned() == (handle, function, b"slow")
    worker.complete(handle)


def test_a_connection_that_ends_in_a_packet_leaves_nothing(server: Server, function: bytes) -> None:
    whole = encode(Kind.SUBMIT_JOB_BG, function, b"", b"payload")
    for cut in (1, 4, 8, 11, 12, 20, len(whole) - 1):
        peer = server.peer()
        peer.write(whole[:cut])
        peer.close()
    server.peer().sync()
    assert server.worker(function).grab() == packet_of(Kind.NO_JOB)


def test_an_unfinished_packet_does_not_affect_other_connections(server: Server, function: bytes) -> None:
    stuck, client, worker = server.peer(), server.peer(), server.worker(function)
    stuck.write(REQUEST + struct.pack(">II", Kind.SUBMIT_JOB, 1000) + b"half")
    handle = client.submit(function, b"", b"x")
    assert worker.grab_assigned()[0] == handle
    worker.complete(handle, b"y")
    assert client.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"y")


def test_an_unexpected_body_is_ignored(server: Server) -> None:
    assert server.worker(b"unused").grab() == packet_of(Kind.NO_JOB)
    peer = server.peer()
    peer.send(Kind.GRAB_JOB, b"what is this")
    assert peer.receive() == packet_of(Kind.NO_JOB)
    peer.sync()
