"""Answers in the order of their requests, although some of them wait for the store."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.outstanding import Outstanding


class Write(Protocol):
    """Writes bytes, and keeps their owner until they are sent."""

    def __call__(self, data: bytes, owner: object = None, /) -> object:
        """Write bytes."""


class Slot:
    """The place of an answer that is not complete yet."""

    __slots__ = ("begin", "data", "owner", "units")

    def __init__(self, units: int, data: bytes | None = None, owner: object = None) -> None:
        self.units = units
        self.data = data
        self.owner = owner
        self.begin: Callable[[Slot], None] | None = None
        """Called when all earlier answers are written."""


class Outbox:
    """The answers and messages to one peer. While no answer is pending, everything is written at once.

    Pending answers, and the answers behind them, are counted in ``unanswered``.
    """

    __slots__ = ("_slots", "_unanswered", "write")

    def __init__(self, write: Write, unanswered: Outstanding) -> None:
        self._unanswered = unanswered
        self.write = write
        """Writes immediately, out of order: for messages that answer no request."""
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def divert(self, write: Write) -> None:
        """Use another function to write from now on."""
        self.write = write

    def send(self, data: bytes, owner: object = None) -> None:
        """Write after everything that was sent or reserved before. ``owner`` is kept until the data is sent."""
        if self._slots:
            self._slots.append(Slot(1, data, owner))
            self._unanswered.add(1, len(data))
        elif owner is None:
            self.write(data)
        else:
            self.write(data, owner)

    def reserve(self, units: int = 1) -> Slot:
        """Reserve a place for an answer that counts as a number of plain ones."""
        slot = Slot(units)
        self._slots.append(slot)
        self._unanswered.add(units)
        return slot

    def stream(self, units: int, begin: Callable[[Slot], None]) -> None:
        """Reserve a place for an answer that is written in pieces. ``begin`` is called once all earlier answers are written.

        ``write`` writes the pieces, and ``fill`` the last one.
        """
        slot = self.reserve(units)
        if len(self._slots) == 1:
            begin(slot)
        else:
            slot.begin = begin

    def fill(self, slot: Slot, data: bytes) -> None:
        """Complete an answer. It is written once all earlier ones are. Empty data frees the place without an answer."""
        slot.data = data
        slots = self._slots
        if slots[0] is slot and len(slots) == 1:
            slots.clear()
            if data:
                self.write(data)
            self._unanswered.remove(slot.units)
            return
        self._unanswered.add(0, len(data))
        ready: list[bytes] = []
        units = size = 0
        while slots and (ready_data := slots[0].data) is not None:
            first = slots.popleft()
            units += first.units
            size += len(ready_data)
            if first.owner is None:
                ready.append(ready_data)
                continue
            self._write_all(ready)
            ready = []
            self.write(ready_data, first.owner)
        self._write_all(ready)
        if units:
            self._unanswered.remove(units, size)
            if slots:
                first = slots[0]
                begin, first.begin = first.begin, None
                if begin is not None:
                    begin(first)

    def _write_all(self, ready: list[bytes]) -> None:
        joined = b"".join(ready)
        if joined:
            self.write(joined)
