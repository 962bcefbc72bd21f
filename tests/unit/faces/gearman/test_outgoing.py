"""Bytes are written in order, whatever the transport accepts, and large data is not copied."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.faces.gearman.peer_io import GATHERED_BYTES, TRANSPORT_WINDOW, Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable


class Transport(asyncio.Transport):
    """A transport whose window may be full at once."""

    def __init__(self) -> None:
        super().__init__()
        self.outgoing: Outgoing
        self.taken: list[bytes | memoryview] = []
        self.stops = False
        self.closed = False

    def write(self, data: Any) -> None:
        assert data
        assert not self.closed
        self.taken.append(data)
        if self.stops:
            self.outgoing.stop()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def close(self) -> None:
        self.closed = True

    def all(self) -> bytes:
        return b"".join(self.taken)


def connected(limit: int = 100) -> tuple[Outgoing, Transport, list[bool]]:
    pressed: list[bool] = []
    outgoing, transport = Outgoing(limit, pressed.append), Transport()
    transport.outgoing = outgoing
    outgoing.connect(transport)
    return outgoing, transport, pressed


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from([1, 7, TRANSPORT_WINDOW - 1, TRANSPORT_WINDOW, TRANSPORT_WINDOW + 1, 3 * TRANSPORT_WINDOW]),
            st.none(),
        ),
        max_size=12,
    )
)
def test_bytes_are_written_in_order_whenever_the_transport_accepts_some(steps: list[int | None]) -> None:
    outgoing, transport, pressed = connected(limit=10)
    transport.stops = True
    expected = b""
    for number, size in enumerate(steps):
        if size is None:
            outgoing.resume()
        else:
            data = bytes([number + 65]) * size
            expected += data
            outgoing.write(data)
        assert len(transport.all()) + outgoing.unread == len(expected)
        assert pressed == [True, False] * (len(pressed) // 2) + [True] * outgoing.full
        assert outgoing.full or outgoing.unread <= 10
    while outgoing.unread:
        outgoing.resume()
    assert transport.all() == expected
    assert max((len(data) for data in transport.taken), default=0) <= TRANSPORT_WINDOW
    assert not outgoing.full


def test_the_transport_holds_a_window_of_the_unread_bytes() -> None:
    outgoing, transport, _ = connected()
    assert transport.high == TRANSPORT_WINDOW
    transport.stops = True
    body = bytes(10 * TRANSPORT_WINDOW)
    outgoing.write(body)
    outgoing.write(b"more")
    assert len(transport.all()) == TRANSPORT_WINDOW
    (first,) = transport.taken
    assert isinstance(first, memoryview)
    assert first.obj is body, "by reference"


def test_an_owner_is_kept_while_its_bytes_are_queued() -> None:
    class Owner:
        pass

    outgoing, transport, _ = connected()
    transport.stops = True
    owner = Owner()
    alive = weakref.ref(owner)
    outgoing.write(bytes(2 * TRANSPORT_WINDOW), owner)
    del owner
    assert alive() is not None
    outgoing.resume()
    assert alive() is None
    outgoing.write(bytes(2 * TRANSPORT_WINDOW), owner := Owner())
    alive = weakref.ref(owner)
    del owner
    outgoing.lost()
    assert alive() is None


def test_a_connection_ends_once_everything_is_written() -> None:
    outgoing, transport, _ = connected()
    transport.stops = True
    outgoing.write(bytes(2 * TRANSPORT_WINDOW))
    outgoing.close()
    assert not transport.closed
    outgoing.resume()
    assert transport.closed
    outgoing, transport, _ = connected()
    outgoing.close()
    assert transport.closed


def test_a_function_is_called_once_when_the_transport_accepts_more() -> None:
    outgoing, _, _ = connected()
    called: list[str] = []
    outgoing.when_writable(lambda: called.append("first"))
    assert not called
    outgoing.resume()
    outgoing.resume()
    assert called == ["first"]
    outgoing.when_writable(lambda: called.append("after the end"))
    outgoing.lost()
    outgoing.resume()
    assert called == ["first"]


def test_gathered_packets_are_written_together_before_later_ones() -> None:
    outgoing, transport, _ = connected()
    flush: list[Callable[[], None]] = []
    outgoing.gather(flush.append)
    outgoing.gather(flush.append)
    outgoing.write(b"one")
    outgoing.write(b"two")
    assert not transport.taken
    (written,) = flush
    written()
    assert transport.taken == [b"onetwo"]
    outgoing.write(b"three")
    assert transport.taken == [b"onetwo", b"three"]
    outgoing.gather(lambda write: write())
    outgoing.write(b"four")
    assert transport.taken[2:] == [b"four"]


def test_gathered_packets_keep_their_place_before_large_ones_and_the_end() -> None:
    outgoing, transport, _ = connected()
    outgoing.gather(lambda _: None)
    outgoing.write(b"one")
    large = bytes(GATHERED_BYTES)
    outgoing.write(large)
    assert transport.taken == [b"one", large]
    outgoing.gather(lambda _: None)
    outgoing.write(b"two")
    outgoing.write(b"owned", object())
    assert transport.taken[2:] == [b"two", b"owned"]
    outgoing.gather(lambda _: None)
    outgoing.write(b"last")
    outgoing.close()
    assert transport.taken[4:] == [b"last"]
    assert transport.closed
    outgoing, transport, _ = connected()
    flush: list[Callable[[], None]] = []
    outgoing.gather(flush.append)
    outgoing.write(b"lost")
    outgoing.lost()
    flush[0]()
    assert not transport.taken
