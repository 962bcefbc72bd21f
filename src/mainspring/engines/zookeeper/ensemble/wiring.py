"""What kazoo's thread waits on and brings its answers to, made for many small requests beside a busy loop.

kazoo takes sockets, waiting and answers from a handler. Beside a busy loop every call of its thread that lets go of the
interpreter's lock waits to have it back, so here it makes few: what a member has sent is read at once and handed out from memory,
a request rings a bell that makes a system call only for a thread that sleeps, and an answer goes to the loop without a thread of
its own in between.
"""

from __future__ import annotations

import contextlib
import select
import threading
from typing import TYPE_CHECKING, Any, Final

from kazoo.handlers.threading import SequentialThreadingHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

READ_AHEAD: Final = 262_144
PROBING: Final = 0.5
"""Seconds."""
_BOTH_WAYS: Final = 2


class Answer:
    """What becomes of one request. A callback runs in the thread that brings it."""

    __slots__ = ("_callbacks", "_is_ready", "exception", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.exception: Exception | None = None
        self._is_ready = False
        self._callbacks: list[Callable[[Answer], object]] = []

    def set(self, value: Any = None) -> None:
        """Bring a value."""
        self.value = value
        self._bring()

    def set_exception(self, exception: Exception) -> None:
        """Bring an error."""
        self.exception = exception
        self._bring()

    def get(self) -> Any:
        """Return the value that was brought, or raise the error."""
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, callback: Callable[[Answer], object]) -> None:
        """Call a function once, with this, when the answer is there."""
        self._callbacks.append(callback)
        if self._is_ready:
            self._call()

    def _bring(self) -> None:
        self._is_ready = True
        self._call()

    def _call(self) -> None:
        # Both threads may be here: each callback is taken out by one of them.
        with contextlib.suppress(IndexError):
            while True:
                self._callbacks.pop()(self)


class ReadAhead:
    """A connection that reads what is there, and hands it out in the pieces that are asked for."""

    def __init__(self, connection: Any, address: tuple[str, int], patience: float) -> None:
        self.address = address
        self._connection = connection
        self._patience = patience
        self._held = b""
        self._at = 0

    def pending(self) -> int:
        """Return how many bytes have been read and not handed out."""
        return len(self._held) - self._at

    def recv(self, size: int) -> bytes:
        """Return bytes, none where the other side has ended the connection."""
        if not self.pending():
            self._held, self._at = self._connection.recv(max(size, READ_AHEAD)), 0
        piece = self._held[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def send(self, data: Any) -> int:
        """Send what can be sent; nothing only where the other side has taken nothing for a whole patience."""
        try:
            sent: int = self._connection.send(data)
        except BlockingIOError:
            if not _wait(self._connection, select.POLLOUT, self._patience):
                return 0
            sent = self._connection.send(data)
        return sent

    def hang_up(self) -> None:
        """End the connection, from any thread."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(_BOTH_WAYS)

    def fileno(self) -> int:
        """Return the descriptor, -1 where it is closed."""
        return int(self._connection.fileno())

    def setblocking(self, flag: object) -> None:
        """Choose whether calls wait."""
        self._connection.setblocking(bool(flag))

    def close(self) -> None:
        """Close it."""
        self._connection.close()


class Bell:
    """Both ends of what tells kazoo's thread of requests: so many as were rung for and not taken are pending.

    Only the first in a row goes through the pipe, so that it cannot be full and hold up who rings.
    """

    def __init__(self, ends: tuple[Any, Any]) -> None:
        self._inner, self._outer = ends
        self._lock = threading.Lock()
        self._rung = 0

    def send(self, data: bytes) -> int:
        """Ring for one request."""
        with self._lock:
            self._rung += 1
            if self._rung == 1:
                self._outer.send(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        """Take one request."""
        with self._lock:
            if self._rung:
                self._rung -= 1
                if not self._rung:
                    self._inner.recv(size)
        return b"\0"

    def pending(self) -> int:
        """Return how often it was rung."""
        return self._rung

    def fileno(self) -> int:
        """Return the descriptor that can be read while something is pending."""
        return int(self._inner.fileno())

    def close(self) -> None:
        """Close both ends; kazoo does it for each."""
        self._inner.close()
        self._outer.close()


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Gives kazoo what is above.

    ``connecting`` are the seconds that one attempt to reach a member may take, and ``sending`` those in which it has to take
    something of what is sent.
    """

    def __init__(self, connecting: float, sending: float) -> None:
        super().__init__()
        self._connecting = connecting
        self._sending = sending

    def async_result(self) -> Answer:
        """Return an answer that is to come."""
        return Answer()

    def create_connection(self, address: tuple[str, int], timeout: float | None = None, **more: Any) -> ReadAhead:
        """Connect to a member: one that swallows packets must not use up the time of the others."""
        timeout = min(timeout or self._connecting, self._connecting)
        return ReadAhead(super().create_connection(address=address, timeout=timeout, **more), address, self._sending)

    def is_read_only(self, address: tuple[str, int]) -> bool:
        """Ask a member that has hung up whether it is without a majority, and serves readers only."""
        with contextlib.suppress(OSError):
            connection = super().create_connection(address=address, timeout=PROBING)
            with contextlib.closing(connection):
                connection.sendall(b"isro")
                return bool(connection.recv(16) == b"ro")
        return False

    def create_socket_pair(self) -> tuple[Bell, Bell]:
        """Return the bell, as both ends."""
        bell = Bell(super().create_socket_pair())
        return bell, bell

    def select(
        self, readable: list[Any], writable: list[Any], _: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait until something can be read. To write is always tried first, and waits where it must."""
        if writable:
            return [], writable, []
        ready = [one for one in readable if one.pending()]
        if ready:
            return ready, [], []
        return _ready(readable, timeout), [], []

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watch at once: ours only leave word for the loop."""
        callback.func(*callback.args)


def _ready(waited: Iterable[Any], timeout: float | None) -> list[Any]:
    poller = select.poll()
    by_number = {one.fileno(): one for one in waited}
    for number in by_number:
        poller.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poller.poll(None if timeout is None else timeout * 1000)]


def _wait(connection: Any, event: int, timeout: float) -> bool:
    poller = select.poll()
    poller.register(connection.fileno(), event)
    return bool(poller.poll(timeout * 1000))
