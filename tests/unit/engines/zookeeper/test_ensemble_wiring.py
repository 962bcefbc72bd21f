"""What kazoo's thread waits on, without an ensemble."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.exceptions import ConnectionDropped

from mainspring.engines.zookeeper.ensemble.multi import multi
from mainspring.engines.zookeeper.ensemble.wiring import Answer, Bell, Handler, ReadAhead
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.engines.zookeeper.tree import Change

PATIENCE = 10.0
ADDRESS = ("127.0.0.1", 1)


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def is_readable(one: Bell | ReadAhead) -> bool:
    return bool(Handler(PATIENCE, PATIENCE).select([one], [], [], 0)[0])


def test_a_bell_is_rung_more_often_than_a_pipe_has_room() -> None:
    with pair() as ends:
        bell = Bell(ends)
        assert not is_readable(bell)
        for _ in range(100_000):
            bell.send(b"\0")
        assert bell.pending() == 100_000
        assert select.select([bell], [], [], 0)[0]  # also for whoever waits in the system
        for _ in range(100_000):
            assert is_readable(bell)
            bell.recv(1)
        assert not is_readable(bell)
        assert not select.select([bell], [], [], 0)[0]


def test_who_sleeps_is_woken_by_the_bell_for_each_request() -> None:
    with pair() as ends:
        bell = Bell(ends)
        handler = Handler(PATIENCE, PATIENCE)
        taken = 0

        def take() -> None:
            nonlocal taken
            while taken < 5_000 and handler.select([bell], [], [], PATIENCE)[0]:
                bell.recv(1)
                taken += 1

        thread = threading.Thread(target=take)
        thread.start()
        for _ in range(5_000):
            bell.send(b"\0")
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert taken == 5_000


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.integers(1, 60))
def test_what_was_read_ahead_is_handed_out_in_any_pieces(sent: list[bytes], size: int) -> None:
    with pair() as (near, far):
        connection = ReadAhead(near, ADDRESS, PATIENCE)
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


def test_a_connection_that_takes_nothing_is_given_up() -> None:
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


def test_a_connection_is_ended_under_who_waits_for_it() -> None:
    with pair() as (near, _):
        connection = ReadAhead(near, ADDRESS, PATIENCE)
        ended: list[bytes] = []

        def wait() -> None:
            Handler(PATIENCE, PATIENCE).select([connection], [], [], PATIENCE)
            ended.append(connection.recv(1))

        thread = threading.Thread(target=wait)
        thread.start()
        connection.hang_up()
        thread.join(PATIENCE)
        assert ended == [b""]


def test_an_answer_is_told_once_whoever_comes_first() -> None:
    for _ in range(300):
        answer = Answer()
        told: list[object] = []
        thread = threading.Thread(target=answer.set, args=("value",))
        thread.start()
        answer.rawlink(lambda one, told=told: told.append(one.get()))  # type: ignore[misc]
        thread.join()
        assert told == ["value"]


def test_an_answer_may_be_an_error() -> None:
    answer = Answer()
    answer.set_exception(KeyError("x"))
    told: list[Answer] = []
    answer.rawlink(told.append)
    assert told == [answer]
    with pytest.raises(KeyError):
        answer.get()


def test_a_multi_is_not_sent_in_another_session() -> None:
    session = 1
    request = multi([Create("/a", b"x"), Write("/a", b"y"), Check("/a"), Delete("/a")], "/p", [], lambda: session == 1)
    assert b"/p/a" in request.serialize()
    session = 2
    with pytest.raises(ConnectionDropped):
        request.serialize()


def test_the_root_is_the_chroot_and_a_number_may_be_a_whole_name() -> None:
    changes: list[Change] = [Write("/", b""), Create("/", sequence=True), Check("/a")]
    assert [one.path for one in multi(changes, "/p", [], lambda: True).operations] == ["/p", "/p/", "/p/a"]
    assert [one.path for one in multi(changes, "", [], lambda: True).operations] == ["/", "/", "/a"]
