"""The connections, pipe and answers of kazoo's thread, without an ensemble."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.exceptions import ConnectionDropped

from mainspring.engines.zookeeper.ensemble_wiring import (
    MAX_IN_FLIGHT,
    Answer,
    Handler,
    ReadAhead,
    RequestQueue,
    WakeupPipe,
    multi,
)
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.engines.zookeeper.tree import Change

TIMEOUT = 10.0
ADDRESS = ("127.0.0.1", 1)


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def is_readable(one: WakeupPipe | ReadAhead) -> bool:
    return bool(Handler(TIMEOUT, TIMEOUT).select([one], [], [], 0)[0])


def test_the_wakeup_pipe_counts_more_requests_than_a_pipe_holds() -> None:
    with pair() as ends:
        pipe = WakeupPipe(ends)
        assert not is_readable(pipe)
        for _ in range(100_000):
            pipe.send(b"\0")
        assert pipe.pending() == 100_000
        assert select.select([pipe], [], [], 0)[0]  # readable in a system call too
        for _ in range(100_000):
            assert is_readable(pipe)
            pipe.recv(1)
        assert not is_readable(pipe)
        assert not select.select([pipe], [], [], 0)[0]


def test_the_wakeup_pipe_wakes_a_sleeping_thread_for_each_request() -> None:
    with pair() as ends:
        pipe = WakeupPipe(ends)
        handler = Handler(TIMEOUT, TIMEOUT)
        received = 0

        def receive() -> None:
            nonlocal received
            while received < 5_000 and handler.select([pipe], [], [], TIMEOUT)[0]:
                pipe.recv(1)
                received += 1

        thread = threading.Thread(target=receive)
        thread.start()
        for _ in range(5_000):
            pipe.send(b"\0")
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        assert received == 5_000


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.integers(1, 60))
def test_bytes_read_ahead_are_returned_in_pieces_of_any_size(sent: list[bytes], size: int) -> None:
    with pair() as (near, far):
        connection = ReadAhead(near, ADDRESS, TIMEOUT)
        connection.setblocking(0)
        for piece in sent:
            far.sendall(piece)
        far.shutdown(socket.SHUT_WR)
        received = b""
        while True:
            assert is_readable(connection)
            piece = connection.recv(size)
            assert len(piece) <= size
            if not piece:
                break
            received += piece
        assert received == b"".join(sent)


def test_a_send_returns_zero_if_the_peer_reads_nothing() -> None:
    with pair() as (near, far):
        connection = ReadAhead(near, ADDRESS, 0.05)
        connection.setblocking(0)
        while connection.send(bytes(100_000)):
            pass
        far.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while far.recv(1_000_000):
                pass
        assert connection.send(b"x") == 1


def test_a_member_that_owes_an_answer_is_dropped_although_requests_come_in() -> None:
    with pair() as (near, far), pair() as ends:
        connection, pipe = ReadAhead(near, ADDRESS, 0.05), WakeupPipe(ends)
        connection.setblocking(0)
        handler = Handler(TIMEOUT, TIMEOUT)
        pipe.send(b"\0")
        assert handler.select([connection, pipe], [], [], None)[0] == [pipe]

        def request_on() -> None:
            while handler.select([connection, pipe], [], [], None)[0] == [pipe]:
                connection.send(b"another request")

        with pytest.raises(ConnectionDropped):
            request_on()
        far.sendall(b"an answer")
        assert connection in handler.select([connection], [], [], TIMEOUT)[0], (
            "it came in time, and this thread did not run"
        )
        assert connection.recv(9) == b"an answer"
        assert handler.select([connection], [], [], 0.1)[0] == [], "it owes nothing"
        far.sendall(b"half a packet")
        assert connection.recv(100) == b"half a packet"
        with pytest.raises(ConnectionDropped):
            handler.select([connection], [], [], TIMEOUT)


def test_a_connection_can_be_ended_while_a_thread_waits_for_it() -> None:
    with pair() as (near, _):
        connection = ReadAhead(near, ADDRESS, TIMEOUT)
        ended: list[bytes] = []

        def wait() -> None:
            Handler(TIMEOUT, TIMEOUT).select([connection], [], [], TIMEOUT)
            ended.append(connection.recv(1))

        thread = threading.Thread(target=wait)
        thread.start()
        connection.hang_up()
        thread.join(TIMEOUT)
        assert ended == [b""]


def test_an_answer_that_two_threads_set_calls_back_once() -> None:
    for _ in range(300):
        called: list[Answer] = []
        answer = Answer(called.append)
        thread = threading.Thread(target=answer.set, args=("value",))
        thread.start()
        answer.set_exception(KeyError("x"))
        thread.join()
        assert called == [answer]


def test_a_multi_is_not_sent_in_another_session() -> None:
    session = 1
    request = multi([Create("/a", b"x"), Write("/a", b"y"), Check("/a"), Delete("/a")], "/p", [], lambda: session == 1)
    assert b"/p/a" in request.serialize()
    session = 2
    with pytest.raises(ConnectionDropped):
        request.serialize()


def test_the_root_is_the_chroot_and_a_sequence_number_may_be_a_whole_name() -> None:
    changes: list[Change] = [Write("/", b""), Create("/", sequence=True), Check("/a")]
    assert [one.path for one in multi(changes, "/p", [], lambda: True).operations] == ["/p", "/p/", "/p/a"]
    assert [one.path for one in multi(changes, "", [], lambda: True).operations] == ["/", "/", "/a"]


def test_a_packet_that_cannot_be_made_fails_its_caller_alone() -> None:
    async def check() -> None:
        def send(packet: str, answer: Answer) -> None:
            answer.set(packet)

        def packet(_: int) -> str:
            raise TypeError("no text")

        def post(call: Callable[[], None]) -> None:
            asyncio.get_running_loop().call_soon(call)

        queue = RequestQueue(TIMEOUT, send, post)
        queue.refused, queue.is_connected = None, True
        for _ in range(MAX_IN_FLIGHT + 1):
            (failed,) = await queue.ask(packet, 1)
            assert isinstance(failed.exception, TypeError)
        (answer,) = await queue.ask(lambda _: "sent", 1)
        assert answer.value == "sent"

    asyncio.run(check())
