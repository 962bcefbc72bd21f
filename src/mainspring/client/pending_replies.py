"""Requests of a client that have no answer yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainspring.client.outcomes import Answer, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.outcomes import Notice

T = TypeVar("T")


class PendingReply(Generic[T]):
    """A request without an answer yet. It is answered once; that calls the listener."""

    __slots__ = ("_listener", "done", "error", "given_up", "value")

    def __init__(self) -> None:
        self.done = False
        self.given_up = False
        """Whether no caller waits for the answer any more."""
        self.value: T | None = None
        self.error: BaseException | None = None
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Set the function to call when the request is answered."""
        self._listener = listener

    def resolve(self, value: T) -> None:
        """Answer the request with a value."""
        self.value = value
        self._finish()

    def reject(self, error: BaseException) -> None:
        """Answer the request with an error, which ``result`` raises."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        if self._listener is not None:
            self._listener()

    def result(self) -> T:
        """Return the answer, or raise it if it is an error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value] # done and without an error: there is a value


class SubmitBatch(PendingReply[list[Answer]]):
    """Pending submits, answered in order. ``safe``: all have a unique, so they may be sent twice."""

    __slots__ = ("answers", "frames", "safe")

    def __init__(self, frames: list[bytes], *, safe: bool) -> None:
        super().__init__()
        self.frames = frames
        self.safe = safe
        self.answers: list[Answer] = []

    def add(self, answer: Answer) -> None:
        """Add the answer to the next frame."""
        self.answers.append(answer)
        if len(self.answers) == len(self.frames):
            self.resolve(self.answers)

    def unanswered(self) -> list[bytes]:
        """Return the frames without an answer."""
        return self.frames[len(self.answers) :]


def longest_wait(params: dict[str, Any] | None) -> float:
    """Return the seconds for which the server itself may wait before it answers a call."""
    if params is None or "wait" not in params:
        return 0.0
    wait = params["wait"]
    return float(wait) if isinstance(wait, (int, float)) else 0.0


class Wait(PendingReply[Outcome]):
    """A pending wait for a job's outcome; ``on_notice`` is called with the job's notices until then."""

    __slots__ = ("handle", "on_notice")

    def __init__(self, handle: bytes, on_notice: Callable[[Notice], None] | None) -> None:
        super().__init__()
        self.handle = handle
        self.on_notice = on_notice


class Call(PendingReply[Any]):
    """A pending call of a method; ``on_event``, if given, subscribes to its events and is called with each of them."""

    __slots__ = ("frame", "on_event", "sent")

    def __init__(self, frame: bytes, on_event: Callable[[dict[str, Any]], None] | None) -> None:
        super().__init__()
        self.frame = frame
        self.on_event = on_event
        self.sent = False
