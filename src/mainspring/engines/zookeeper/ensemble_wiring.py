"""kazoo's client, with sockets, waits and answers of its thread that are made for many small requests beside a busy loop.

kazoo gets these from a handler. Beside a busy loop every system call of kazoo's thread, which releases the interpreter's lock,
waits to get it back; so this handler makes few. It reads all that a member has sent at once and serves it from memory; a request
makes a system call only if the thread sleeps; an answer goes to the loop without another thread.

kazoo sends a ping only if it has sent nothing else for a while, and waits without a limit for the answers to all else. So the
connection itself measures how long a member has sent nothing although it owes an answer.

The client has limits on the time to reach a member, a check of the order of replies, and a report of its thread's end. kazoo
has no hooks for these, so three of its functions are wrapped. Its version is therefore fixed to the series that this was
tested with. The check of the members' versions, at the end, does without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry

from mainspring.engines.zookeeper.tree import Create, Delete, SessionEndedError, Write
from mainspring.errors import StoreUnavailableError
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.engines.zookeeper.tree import Change
    from mainspring.stores import ZooKeeperAddress


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


MIN_SILENCE: Final = 1.0
"""The least seconds for which a member may owe an answer, however short the sessions are: a busy machine takes as long."""

log = structlog.get_logger("mainspring.zookeeper")


def make_client(
    address: ZooKeeperAddress,
    session_timeout: float,
    changed: Callable[[object], None],
    agreed: Callable[[Any, float], None],
    ended: Callable[[Any, Exception | None], None],
) -> Any:
    """Return a client that is not started.

    In the client's thread, ``changed`` is called when its state changes, ``agreed`` with the client and the session time-out in
    seconds that a member has granted, and ``ended`` with the client when the thread ends, with the error that has ended it.
    """
    attempt = min(max(session_timeout / 4, 0.25), 2.0)  # to reach a member, and to get its first answer
    handler = Handler(attempt, max(session_timeout / 3, MIN_SILENCE))
    client = KazooClient(
        hosts=",".join(f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name, port in address.hosts),
        timeout=session_timeout,
        handler=handler,
        auth_data=[] if address.user is None else [("digest", f"{address.user}:{address.password}")],
        read_only=False,  # a read-only member would report a session it does not have yet as ended
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, sleep_func=handler.sleep_func),
        logger=_quiet(),
    )
    client.add_listener(changed)
    connection = client._connection  # noqa: SLF001
    connection._invoke = _with_timeout(client, connection._invoke, attempt, agreed)  # noqa: SLF001
    connection._read_response = _check_order(client, connection._read_response)  # noqa: SLF001
    connection.zk_loop = _with_end(client, connection.zk_loop, ended)
    return client


def _with_end(
    client: Any, loop: Callable[[], None], ended: Callable[[Any, Exception | None], None]
) -> Callable[[], None]:
    """Return the function of kazoo's thread with a report of its end: kazoo itself would stay without a thread, and silent."""

    def run() -> None:
        failure = None
        try:
            loop()
        except Exception as error:  # noqa: BLE001 - it is reported
            failure = error
        ended(client, failure)

    return run


def _with_timeout(
    client: Any, invoke: Callable[..., Any], attempt: float, agreed: Callable[[Any, float], None]
) -> Callable[..., Any]:
    """Return ``invoke`` with a limit on the time of the first exchange."""

    def limited(*arguments: Any, **more: Any) -> Any:
        if not isinstance(arguments[1], Connect):
            return invoke(*arguments, **more)
        timeout, *rest = arguments
        try:
            # A server that has just started may accept a connection and never answer. A wait of a whole session time-out
            # would end the session.
            result = invoke(min(timeout, attempt), *rest, **more)
        except ConnectionDropped:
            address = client._connection._socket.address  # noqa: SLF001
            if client.handler.is_read_only(address):
                member = f"{address[0]}:{address[1]}"
                log.warning(
                    "a member of the ensemble has no majority and is read only: it is treated as unreachable",
                    member=member,
                )
            raise
        seconds = result[0].time_out / 1000
        if seconds > 0:
            agreed(client, seconds)
        return result

    return limited


def _check_order(client: Any, read: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``read`` with a check: a missing reply drops the connection.

    A member that loses its leader may drop a request and answer the next one. kazoo's thread would end for good, and the dropped
    request would count as refused. With the connection dropped, its outcome is unknown, as that of all requests in flight.
    """

    def read_response(header: Any, *packet: Any) -> Any:
        in_flight = client._pending  # noqa: SLF001
        if not in_flight or in_flight[0][2] != header.xid:
            raise ConnectionDropped("a reply is missing")
        return read(header, *packet)

    return read_response


def _quiet() -> logging.Logger:
    logger = logging.getLogger("mainspring.zookeeper.kazoo")
    logger.setLevel(logging.ERROR)
    return logger


# ---- the queue of requests ----


MAX_IN_FLIGHT: Final = 256
"""Requests in flight at once."""


class SendPermit:
    """The right to send a commit. The sender or the caller that gives up acquires it, once, in any thread."""

    def __init__(self) -> None:
        self._left = deque((None,))

    def acquire(self) -> bool:
        """Acquire it; return False if it is gone."""
        try:
            self._left.pop()
        except IndexError:
            return False
        return True


@dataclass(slots=True, eq=False)
class Request:
    """The request of one caller, from the call to the answer: one packet, or several of the same kind."""

    packet: Callable[[int], Any]
    count: int
    session: int
    future: asyncio.Future[list[Answer]]
    permit: SendPermit | None
    _next: int = 0
    _answers: dict[int, Answer] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether all its packets are sent, or it is answered."""
        return self._next == self.count or self.future.done()

    def send(self, send: Callable[[Any, Answer], None], answered: Callable[[Request, int, Answer], None]) -> None:
        """Send its next packet. ``answered`` is called once, also if the packet cannot be made or sent."""
        at = self._next
        self._next += 1
        answer = Answer(lambda answer: answered(self, at, answer))
        try:
            send(self.packet(at), answer)
        except Exception as error:  # noqa: BLE001 - it goes to the caller
            answer.set_exception(error)

    def receive(self, at: int, answer: Answer) -> None:
        """Store the answer to one of its packets."""
        if self.future.done():
            return  # the caller has stopped waiting
        self._answers[at] = answer
        if len(self._answers) == self.count:
            self.future.set_result([self._answers[at] for at in range(self.count)])

    def give_up(self) -> bool:
        """Return whether the caller may stop waiting: always for a read; for a commit, if it will never be sent now."""
        return self.permit is None or self.permit.acquire()

    def fail(self, error: Exception) -> None:
        """Answer it with an error."""
        if not self.future.done():
            self.future.set_exception(error)


class RequestQueue:
    """The requests of one tree, in their order."""

    def __init__(
        self, timeout: float, send: Callable[[Any, Answer], None], post: Callable[[Callable[[], None]], None]
    ) -> None:
        """``timeout`` are the seconds that a read may take and any request may wait.

        ``send`` gives a packet to the connection, which sets its answer in another thread; ``post`` schedules a call in the loop.
        """
        self.is_connected = False
        self.session = 0
        self.refused: Exception | None = SessionEndedError("the session has not begun")
        """The error that every request gets; None: requests are accepted."""
        self._timeout = timeout
        self._send = send
        self._post = post
        self._waiting: deque[Request] = deque()
        self._in_flight = 0

    async def ask(
        self,
        packet: Callable[[int], Any],
        count: int,
        *,
        permit: SendPermit | None = None,
    ) -> list[Answer]:
        """Send packets as soon as there is a connection, and return their answers. ``packet`` returns each when it is due.

        Raises StoreUnavailableError, SessionEndedError; raises ``refused`` if it is set.
        ``permit`` is given for a commit, which acquires it when it is sent. That is later than the call of kazoo; if the
        connection has just been lost, as late as the next one.
        """
        if self.refused is not None:
            raise self.refused
        if not count:
            return []
        loop = asyncio.get_running_loop()
        request = Request(packet, count, self.session, loop.create_future(), permit)
        self._waiting.append(request)
        self.pump()
        timer = loop.call_later(self._timeout, self._expire, request)
        try:
            return await request.future
        finally:
            timer.cancel()

    def pump(self) -> None:
        """Send waiting requests, up to `MAX_IN_FLIGHT`."""
        while self.is_connected and self._waiting and self._in_flight < MAX_IN_FLIGHT:
            request = self._waiting[0]
            if request.session not in {0, self.session}:
                request.fail(SessionEndedError("the session ended before this was sent"))
            if request.is_done:
                self._waiting.popleft()
                continue
            self._in_flight += 1
            request.send(self._send, lambda *answer: self._post(lambda: self._answered(*answer)))  # in kazoo's thread

    def end(self, session: int, error: Exception) -> None:
        """Fail the waiting requests of a session that has ended."""
        for request in self._waiting:
            if request.session == session:
                request.fail(error)

    def refuse(self, error: Exception) -> None:
        """Fail all waiting and all later requests."""
        self.refused = error
        while self._waiting:
            self._waiting.popleft().fail(error)

    def _answered(self, request: Request, at: int, answer: Answer) -> None:
        self._in_flight -= 1
        request.receive(at, answer)
        self.pump()

    def _expire(self, request: Request) -> None:
        if request.give_up():  # a commit that was sent ends with its reply, or with the connection
            waited = format_duration(self._timeout)
            request.fail(StoreUnavailableError(f"no member of the ensemble has answered within {waited}"))


class Multi(serialization.Transaction):  # type: ignore[misc]
    """All changes or none.

    A request that kazoo got before it noticed the end of the session would go out in the next session. So kazoo's thread calls
    ``is_due`` directly before it sends; if that returns False, the connection is dropped instead.
    """

    is_due: Callable[[], bool]

    def serialize(self) -> Any:
        """Return the packet's content."""
        if not self.is_due():
            raise ConnectionDropped("a request of a session that has ended")
        return super().serialize()


def multi(changes: Sequence[Change], prefix: str, access: Sequence[Any], is_due: Callable[[], bool]) -> Multi:
    """Return the request for changes whose paths get a prefix; ``access`` is for the nodes that are created."""
    operations: list[Any] = []
    for change in changes:
        path = prefix + change.path
        if isinstance(change, Create):
            flags = change.ephemeral + 2 * change.sequence
            operations.append(serialization.Create(path, change.data, access, flags))
            continue
        if change.path == "/":
            path = prefix or "/"
        if isinstance(change, Write):
            operations.append(serialization.SetData(path, change.data, change.version))
        elif isinstance(change, Delete):
            operations.append(serialization.Delete(path, change.version))
        else:
            operations.append(serialization.CheckVersion(path, change.version))
    request = Multi(operations)
    request.is_due = is_due
    return request


def size(changes: Sequence[Change], prefix: str) -> int:
    """Return the number of bytes that changes have in a packet, but for the access lists of the nodes that they create."""
    total = 0
    for change in changes:
        total += len(prefix) + len(change.path) + 17
        if isinstance(change, (Create, Write)):
            total += len(change.data) + 4
    return total
