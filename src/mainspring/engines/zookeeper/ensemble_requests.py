"""The requests to the ensemble: their queue, multis, and the translation of results into those of the port.

A bounded number is in flight, the rest waits and can be cancelled. Requests wait here and not in kazoo while there is no
connection: kazoo would send a request of one session in the next. A multi is bound to one session too, with its paths
unchanged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    InvalidACLError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    NotReadOnlyCallError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
    SystemZookeeperError,
    ThrottledOpError,
)
from kazoo.protocol import serialization

from mainspring.engines.zookeeper.ensemble_wiring import Answer
from mainspring.engines.zookeeper.tree import (
    Create,
    Delete,
    Done,
    Node,
    Refusal,
    Refused,
    SessionEndedError,
    UnknownOutcomeError,
    Write,
)
from mainspring.errors import SettingsError, StoreError, StoreForeignError, StoreUnavailableError
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.zookeeper.tree import Change

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


class Request:
    """The request of one caller, from the call to the answer: one packet, or several of the same kind."""

    __slots__ = ("_answers", "_left", "_next", "_packet", "_permit", "future", "session")

    def __init__(
        self,
        packet: Callable[[int], Any],
        count: int,
        session: int,
        future: asyncio.Future[list[Answer]],
        *,
        permit: SendPermit | None,
    ) -> None:
        self.session = session
        self.future = future
        self._permit = permit
        self._packet = packet
        self._next = 0
        self._left = count
        self._answers: list[Any] = [None] * count

    @property
    def is_done(self) -> bool:
        """Whether all its packets are sent, or it is answered."""
        return self._next == len(self._answers) or self.future.done()

    def send(self, send: Callable[[Any, Answer], None], answered: Callable[[Request, int, Answer], None]) -> None:
        """Send its next packet. ``answered`` is called once, also if the packet cannot be made or sent."""
        at = self._next
        self._next += 1
        answer = Answer(lambda answer: answered(self, at, answer))
        try:
            send(self._packet(at), answer)
        except Exception as error:  # noqa: BLE001 - it goes to the caller
            answer.set_exception(error)

    def receive(self, at: int, answer: Answer) -> None:
        """Store the answer to one of its packets."""
        if self.future.done():
            return  # the caller has stopped waiting
        self._answers[at] = answer
        self._left -= 1
        if not self._left:
            self.future.set_result(self._answers)

    def give_up(self) -> bool:
        """Return whether the caller may stop waiting: always for a read; for a commit, if it will never be sent now."""
        return self._permit is None or self._permit.acquire()

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
        request = Request(packet, count, self.session, loop.create_future(), permit=permit)
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
            request.send(self._send, self._on_answer)

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

    def _on_answer(self, request: Request, at: int, answer: Answer) -> None:
        self._post(lambda: self._answered(request, at, answer))  # in kazoo's thread

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


REFUSALS: Final = {
    NodeExistsError: Refusal.EXISTS,
    NoNodeError: Refusal.NO_NODE,
    BadVersionError: Refusal.VERSION,
    NotEmptyError: Refusal.NOT_EMPTY,
}
NOT_SENT_ON: Final = (NotReadOnlyCallError, ThrottledOpError)
"""Errors of a member that has refused a request without passing it on."""
UNKNOWN: Final = (
    ConnectionLoss, ConnectionClosedError, OperationTimeoutError, SessionMovedError, SystemZookeeperError,
)  # fmt: skip
FOREIGN: Final = (NoAuthError, AuthFailedError, InvalidACLError, SessionClosedRequireSaslError)


def node(data: bytes | None, stat: Any) -> Node:
    """Return a node as it was read."""
    return Node(data or b"", stat.version, stat.mtime * 1000, stat.ephemeralOwner, stat.numChildren)


def outcome(changes: Sequence[Change], results: Sequence[Any], prefix: str) -> Done | Refused:
    """Return the result of a multi whose paths began with a prefix. Raises StoreError.

    In a refused multi, kazoo gives RolledBackError to the changes before the refused one, RuntimeInconsistency to those after it.
    """
    is_refused = False
    for at, result in enumerate(results):
        if not isinstance(result, Exception):
            continue
        is_refused = True
        if isinstance(result, (RolledBackError, RuntimeInconsistency)):
            continue
        why = REFUSALS.get(type(result))
        if why is None:
            raise commit_error(result)
        return Refused(at, why)
    if is_refused:
        raise StoreError("the ensemble has refused a multi without naming a change")
    return Done(
        [
            result[len(prefix) :] if isinstance(change, Create) else change.path
            for change, result in zip(changes, results, strict=True)
        ]
    )


def read_error(error: Exception) -> Exception:
    """Return the port's error for a read."""
    if isinstance(error, (StoreError, SettingsError)):
        return error
    if isinstance(error, SessionExpiredError):
        return SessionEndedError("the session has ended")
    if isinstance(error, FOREIGN):
        return StoreForeignError(f"the ensemble forbids the access: {_text(error)}")
    if isinstance(error, (*UNKNOWN, *NOT_SENT_ON)):
        return StoreUnavailableError(f"the ensemble has not answered: {_text(error)}")
    return StoreError(f"the ensemble refuses the request: {_text(error)}")


def commit_error(error: Exception) -> Exception:
    """Return the port's error for a multi."""
    if isinstance(error, UNKNOWN):
        return UnknownOutcomeError(f"the outcome of a multi is unknown: {_text(error)}")
    return read_error(error)


_TEXTS: Final = {
    NoAuthError: "no permission",
    AuthFailedError: "user and password are refused",
    SessionClosedRequireSaslError: "it requires a user and password, or another way to log in",
    ConnectionLoss: "the connection was lost",
}


def _text(error: Exception) -> str:
    return _TEXTS.get(type(error)) or f"{type(error).__name__} {error}".strip()
