"""The events that a running job sends to its clients, buffered until the program takes them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.outcomes import Notice

BUFFER_BYTES: Final = 8 << 20
"""Bytes of events that are buffered for a program that is slower than the job."""

_EVENT_OVERHEAD: Final = 128
"""Bytes that an event counts in addition to its data."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The task's last report of its progress: ``done`` of ``total``, and a text."""

    done: int
    total: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """A part of the result that the task has sent early."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning of the task."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Missed:
    """The number of events that were dropped here, because the buffer was full."""

    events: int


JobEvent: TypeAlias = Progress | Data | Warned | Missed
"""The events that ``Job.stream`` yields."""


class EventBuffer:
    """The events of one job that have arrived and that the program has not taken yet.

    Of consecutive progress reports, the newest is held. Events that do not fit into ``limit`` bytes are dropped and counted;
    an empty buffer accepts an event of any size.
    """

    def __init__(self, limit: int = BUFFER_BYTES) -> None:
        self._limit = limit
        self._events: deque[JobEvent] = deque()
        self._size = 0
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Set the function to call after each event."""
        self._listener = listener

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, notice: Notice) -> None:
        """Add an event."""
        last = self._events[-1] if self._events else None
        event = _event(notice)
        if isinstance(event, Progress) and isinstance(last, Progress):
            self._events[-1] = event
        elif self._size == 0 or self._size + _size(event) <= self._limit:
            self._events.append(event)
            self._size += _size(event)
        elif isinstance(last, Missed):
            self._events[-1] = Missed(last.events + 1)
        else:
            self._events.append(Missed(1))
        if self._listener is not None:
            self._listener()

    def pop(self) -> JobEvent | None:
        """Remove and return the oldest event; None if there is none."""
        if not self._events:
            return None
        event = self._events.popleft()
        self._size -= _size(event)
        return event


def _event(notice: Notice) -> Progress | Data | Warned:
    if notice.kind == "progress":
        return Progress(notice.numerator, notice.denominator, notice.data.decode("utf-8", "replace"))
    return Data(notice.data) if notice.kind == "data" else Warned(notice.data)


def _size(event: JobEvent) -> int:
    match event:
        case Missed():
            return 0  # at most one per other event
        case Progress():
            return _EVENT_OVERHEAD
        case Data(data) | Warned(data):
            return len(data) + _EVENT_OVERHEAD
