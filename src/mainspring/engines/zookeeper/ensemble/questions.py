"""What is asked of the ensemble: so much of it under way at once, the rest waiting where its turn can be given up.

What is asked while there is no connection waits here, not in kazoo: it would send a request of one session in the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.zookeeper.tree import SessionEndedError
from mainspring.errors import StoreUnavailableError
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.zookeeper.ensemble.wiring import Answer

    Replied = Callable[[Answer], None]
    """Called with each reply, in its place between the watches."""

WINDOW: Final = 256
"""Questions under way at once."""


class Turn:
    """The right to send something: taken once, by whoever sends it or by whoever gives it up, in whatever thread."""

    def __init__(self) -> None:
        self._left = deque((None,))

    def take(self) -> bool:
        """Return whether it was there to be taken."""
        try:
            self._left.pop()
        except IndexError:
            return False
        return True


class Request:
    """What one caller asks, from the call to the answer: one thing, or several of the same kind."""

    __slots__ = ("_answers", "_left", "_next", "_replied", "_send", "_turn", "future", "session")

    def __init__(
        self,
        send: Callable[[int], Answer],
        count: int,
        session: int,
        future: asyncio.Future[list[Answer]],
        *,
        turn: Turn | None,
        replied: Replied | None,
    ) -> None:
        self.session = session
        self.future = future
        self._turn = turn
        self._send = send
        self._next = 0
        self._left = count
        self._replied = replied
        self._answers: list[Any] = [None] * count

    @property
    def is_through(self) -> bool:
        """Whether nothing of it has to be sent any more."""
        return self._next == len(self._answers) or self.future.done()

    def send(self, taken: Callable[[Request, int, Answer], None]) -> None:
        """Send the next of its questions."""
        at = self._next
        self._next += 1
        self._send(at).rawlink(lambda answer: taken(self, at, answer))

    def take(self, at: int, answer: Answer) -> None:
        """Take the answer to one of its questions."""
        if self.future.done():
            return  # nobody waits for it any more
        if self._replied is not None:
            self._replied(answer)
        self._answers[at] = answer
        self._left -= 1
        if not self._left:
            self.future.set_result(self._answers)

    def give_up(self) -> bool:
        """Return whether the caller may stop waiting: always for a read; for a commit, if it will never be sent now."""
        return self._turn is None or self._turn.take()

    def fail(self, error: Exception) -> None:
        """Answer it with an error."""
        if not self.future.done():
            self.future.set_exception(error)


class Questions:
    """All that is asked by one tree, in its order."""

    def __init__(self, patience: float, post: Callable[[Callable[[], None]], None]) -> None:
        """``patience``: the seconds that a read may take, and anything may wait; ``post`` leaves word for the loop."""
        self.is_connected = False
        self.session = 0
        self.refused: Exception | None = SessionEndedError("the session has not begun")
        """Why nothing may be asked; None: it may."""
        self._patience = patience
        self._post = post
        self._waiting: deque[Request] = deque()
        self._under_way = 0

    async def ask(
        self,
        send: Callable[[int], Answer],
        count: int,
        *,
        turn: Turn | None = None,
        replied: Replied | None = None,
    ) -> list[Answer]:
        """Ask several things, as soon as there is a connection. Raises StoreUnavailableError, SessionEndedError.

        Raises ``refused`` where nothing may be asked.
        ``turn`` is given for a commit, which takes it when it is sent: that is later than when kazoo is given it, and where the
        connection was lost just before, as late as there is another one.
        """
        if self.refused is not None:
            raise self.refused
        if not count:
            return []
        loop = asyncio.get_running_loop()
        request = Request(send, count, self.session, loop.create_future(), turn=turn, replied=replied)
        self._waiting.append(request)
        self.pump()
        timer = loop.call_later(self._patience, self._expire, request)
        try:
            return await request.future
        finally:
            timer.cancel()

    def pump(self) -> None:
        """Send what waits, as far as it may be under way at once."""
        while self.is_connected and self._waiting and self._under_way < WINDOW:
            request = self._waiting[0]
            if request.session not in {0, self.session}:
                request.fail(SessionEndedError("the session ended before this was sent"))
            if request.is_through:
                self._waiting.popleft()
                continue
            self._under_way += 1
            request.send(self._on_answer)

    def end(self, session: int, error: Exception) -> None:
        """A session is over: fail what waits of it."""
        for request in self._waiting:
            if request.session == session:
                request.fail(error)

    def refuse(self, error: Exception) -> None:
        """Fail all that waits, and whatever is asked from now on."""
        self.refused = error
        while self._waiting:
            self._waiting.popleft().fail(error)

    def _on_answer(self, request: Request, at: int, answer: Answer) -> None:
        self._post(lambda: self._answered(request, at, answer))  # in kazoo's thread

    def _answered(self, request: Request, at: int, answer: Answer) -> None:
        self._under_way -= 1
        request.take(at, answer)
        self.pump()

    def _expire(self, request: Request) -> None:
        if request.give_up():  # a commit that was sent hears from the connection, or of its loss
            patience = format_duration(self._patience)
            request.fail(StoreUnavailableError(f"no member of the ensemble has answered within {patience}"))
