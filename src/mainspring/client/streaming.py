"""The events that a running job sends to its clients, held until the program takes them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.outcomes import Notice

ROOM: Final = 8 << 20
"""Bytes of events that are held for a program that is slower than the job."""

_EACH: Final = 128
"""Bytes that an event counts beside its data."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of the job is done: the task's last report."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Data:
    """A part of the result that the task has sent ahead."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning of the task."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Missed:
    """So many events were dropped here, because too many had not been taken."""

    events: int


JobEvent: TypeAlias = Progress | Data | Warned | Missed
"""What ``Job.stream`` gives."""


class EventBuffer:
    """The events of one job that have arrived and were not taken yet.

    Of several reports of progress in a row the newest is held. What does not fit into ``room`` bytes is dropped and counted; one
    event fits always.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._events: deque[JobEvent] = deque()
        self._size = 0
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function after each event."""
        self._listener = listener

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, notice: Notice) -> None:
        """Hold an event."""
        last = self._events[-1] if self._events else None
        event = _event(notice)
        if isinstance(event, Progress) and isinstance(last, Progress):
            self._events[-1] = event
        elif self._size == 0 or self._size + _size(event) <= self._room:
            self._events.append(event)
            self._size += _size(event)
        elif isinstance(last, Missed):
            self._events[-1] = Missed(last.events + 1)
        else:
            self._events.append(Missed(1))
        if self._listener is not None:
            self._listener()

    def take(self) -> JobEvent | None:
        """Return the oldest event; None where none is held."""
        if not self._events:
            return None
        event = self._events.popleft()
        self._size -= _size(event)
        return event


def _event(notice: Notice) -> Progress | Data | Warned:
    if notice.kind == "progress":
        return Progress(notice.numerator, notice.denominator)
    return Data(notice.data) if notice.kind == "data" else Warned(notice.data)


def _size(event: JobEvent) -> int:
    match event:
        case Missed():
            return 0  # there are no more of them than of others
        case Progress():
            return _EACH
        case Data(data) | Warned(data):
            return len(data) + _EACH
