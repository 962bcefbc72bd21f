"""The queue of requests to the ensemble: a bounded number is in flight, the rest waits and can be cancelled.

Requests wait here and not in kazoo while there is no connection: kazoo would send a request of one session in the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.zookeeper.ensemble.wiring import Answer
from mainspring.engines.zookeeper.tree import SessionEndedError
from mainspring.errors import StoreUnavailableError
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable


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
