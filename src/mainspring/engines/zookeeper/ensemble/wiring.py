"""The sockets, waits and answers of kazoo's thread, made for many small requests beside a busy loop.

kazoo gets these from a handler. Beside a busy loop every system call of kazoo's thread, which releases the interpreter's lock,
waits to get it back; so this handler makes few. It reads all that a member has sent at once and serves it from memory; a request
makes a system call only if the thread sleeps; an answer goes to the loop without another thread.

kazoo sends a ping only if it has sent nothing else for a while, and waits without a limit for the answers to all else. So the
connection itself measures how long a member has sent nothing although it owes an answer.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RECEIVE_BYTES: Final = 262_144
PROBE_TIMEOUT: Final = 0.5
"""Seconds that a member has to answer whether it is read only."""
_BOTH_WAYS: Final = 2


class Answer:
    """The answer to one request, and the callback that gets it, in the thread that sets it.

    It has its callback from the start: one that is added after the request was sent may come after the answer, and then after
    the events that follow the answer.
    """

    __slots__ = ("_callback", "exception", "value")

    def __init__(self, callback: Callable[[Answer], object]) -> None:
        self.value: Any = None
        self.exception: Exception | None = None
        self._callback = [callback]

    def set(self, value: Any = None) -> None:
        """Set the value."""
        self.value = value
        self._call()

    def set_exception(self, exception: Exception) -> None:
        """Set an error."""
        self.exception = exception
        self._call()

    def _call(self) -> None:
        # Both threads may set it, for a request that meets the end of its connection: `pop` gives the callback to one of them.
        with contextlib.suppress(IndexError):
            self._callback.pop()(self)


class ReadAhead:
    """A connection that reads all available bytes, and returns them in pieces of the requested sizes.

    ``silence`` are the seconds in which a member that has got something sends something, or reads sent bytes.
    """

    def __init__(self, connection: Any, address: tuple[str, int], silence: float) -> None:
        self.address = address
        self._connection = connection
        self._silence = silence
        self._buffer = b""
        self._at = 0
        self._unanswered_since: float | None = None
        """The time of the first send after which nothing has come; None: the member owes nothing."""

    def pending(self) -> int:
        """Return how many bytes have been read and not returned."""
        return len(self._buffer) - self._at

    def recv(self, size: int) -> bytes:
        """Return bytes; none if the other side has ended the connection."""
        if not self.pending():
            self._buffer, self._at = self._connection.recv(max(size, RECEIVE_BYTES)), 0
            self._unanswered_since = None
        piece = self._buffer[self._at : self._at + size]
        self._at += len(piece)
        if len(piece) < size:
            self._unanswered_since = time.monotonic()  # the rest of a packet is missing
        return piece

    def send(self, data: Any) -> int:
        """Send as much as possible; return 0 only if the other side has read nothing for the whole time-out."""
        if self._unanswered_since is None:
            self._unanswered_since = time.monotonic()
        try:
            sent: int = self._connection.send(data)
        except BlockingIOError:
            if not _wait(self._connection, select.POLLOUT, self._silence):
                return 0
            sent = self._connection.send(data)
        return sent

    def time_to_answer(self) -> float | None:
        """Return the seconds in which the member has to send something; None: it owes nothing.

        Raises ConnectionDropped if they are over.
        """
        if self._unanswered_since is None:
            return None
        left = self._unanswered_since + self._silence - time.monotonic()
        # Bytes that have arrived while this process did not run are no silence.
        if left <= 0 and not self.pending() and not _wait(self._connection, select.POLLIN, 0):
            raise ConnectionDropped(f"the member has not answered for {self._silence:.1f} s")
        return max(left, 0.0)

    def hang_up(self) -> None:
        """End the connection, from any thread."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(_BOTH_WAYS)

    def fileno(self) -> int:
        """Return the descriptor, -1 if it is closed."""
        return int(self._connection.fileno())

    def setblocking(self, flag: object) -> None:
        """Choose whether calls wait."""
        self._connection.setblocking(bool(flag))

    def close(self) -> None:
        """Close it."""
        self._connection.close()


class WakeupPipe:
    """Both ends of the pipe that wakes kazoo's thread for requests, with a count of the pending ones.

    Only the first in a row goes through the pipe, so that the pipe cannot fill up and block the sender.
    """

    def __init__(self, ends: tuple[Any, Any]) -> None:
        self._inner, self._outer = ends
        self._lock = threading.Lock()
        self._pending = 0

    def send(self, data: bytes) -> int:
        """Count one request, and wake the thread for the first."""
        with self._lock:
            self._pending += 1
            if self._pending == 1:
                self._outer.send(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        """Count one request as received."""
        with self._lock:
            if self._pending:
                self._pending -= 1
                if not self._pending:
                    self._inner.recv(size)
        return b"\0"

    def pending(self) -> int:
        """Return how many requests are pending."""
        return self._pending

    def fileno(self) -> int:
        """Return the descriptor that can be read while something is pending."""
        return int(self._inner.fileno())

    def close(self) -> None:
        """Close both ends; kazoo does it for each."""
        self._inner.close()
        self._outer.close()


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """The handler that gives kazoo the classes above.

    ``connecting`` are the seconds of one attempt to reach a member, ``silence`` those of a connection: see ``ReadAhead``.
    """

    def __init__(self, connecting: float, silence: float) -> None:
        super().__init__()
        self._connecting = connecting
        self._silence = silence

    def create_connection(self, address: tuple[str, int], timeout: float | None = None, **more: Any) -> ReadAhead:
        """Connect to a member. The time is limited: a member that drops packets must not use up the time of the others."""
        timeout = min(timeout or self._connecting, self._connecting)
        return ReadAhead(super().create_connection(address=address, timeout=timeout, **more), address, self._silence)

    def is_read_only(self, address: tuple[str, int]) -> bool:
        """Return whether a member that closed the connection has no majority and serves only reads."""
        with contextlib.suppress(OSError):
            connection = super().create_connection(address=address, timeout=PROBE_TIMEOUT)
            with contextlib.closing(connection):
                connection.sendall(b"isro")
                return bool(connection.recv(16) == b"ro")
        return False

    def create_socket_pair(self) -> tuple[WakeupPipe, WakeupPipe]:
        """Return the pipe, as both ends."""
        pipe = WakeupPipe(super().create_socket_pair())
        return pipe, pipe

    def select(
        self, readable: list[Any], writable: list[Any], _: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait until a connection is readable. Writes do not wait here: `ReadAhead.send` waits if it must.

        Raises ConnectionDropped if a member is silent: also if requests come in all the time.
        """
        if writable:
            return [], writable, []
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            limits = [
                left for one in readable if isinstance(one, ReadAhead) and (left := one.time_to_answer()) is not None
            ]
            ready = [one for one in readable if one.pending()]
            if ready:
                return ready, [], []
            left = min([until - time.monotonic(), *limits])
            ready = _ready(readable, None if left == float("inf") else max(left, 0.0))
            if ready or time.monotonic() >= until:
                return ready, [], []

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watch at once: ours only schedule a call in the loop."""
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
