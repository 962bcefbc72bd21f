"""Answers in the order of their requests, although some have to wait for the disk."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.outstanding import Outstanding


class Slot:
    """The place of an answer that is not known yet."""

    __slots__ = ("begin", "data", "units")

    def __init__(self, units: int, data: bytes | None = None, begin: Callable[[Slot], None] | None = None) -> None:
        self.units = units
        self.data = data
        self.begin = begin
        """Called when all before it is out."""


class Outbox:
    """What goes to one peer. While nothing is waited for, everything is written at once.

    What is waited for, and the answers that wait behind it, are counted as ``unanswered``.
    """

    __slots__ = ("_slots", "_unanswered", "write")

    def __init__(self, write: Callable[[bytes], object], unanswered: Outstanding) -> None:
        self._unanswered = unanswered
        self.write = write
        """Writes out of order: for what no request is waiting for."""
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def send(self, data: bytes) -> None:
        """Write after everything that was sent or reserved before."""
        if self._slots:
            self._slots.append(Slot(1, data))
            self._unanswered.add(1, len(data))
        else:
            self.write(data)

    def reserve(self, units: int = 1) -> Slot:
        """Keep a place for an answer that costs as much as so many plain ones."""
        slot = Slot(units)
        self._slots.append(slot)
        self._unanswered.add(units)
        return slot

    def stream(self, units: int, begin: Callable[[Slot], None]) -> None:
        """Keep a place for an answer that is written in pieces, once it is its turn: ``begin`` is called then.

        ``write`` writes the pieces, and ``fill`` the last one.
        """
        slot = self.reserve(units)
        if len(self._slots) == 1:
            begin(slot)
        else:
            slot.begin = begin

    def fill(self, slot: Slot, data: bytes) -> None:
        """Put an answer in its place; it goes out when all before it have. An empty one gives the place up."""
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
        units = 0
        while slots and slots[0].data is not None:
            first = slots.popleft()
            ready.append(first.data)  # type: ignore[arg-type]
            units += first.units
        if ready:
            joined = b"".join(ready)
            if joined:
                self.write(joined)
            self._unanswered.remove(units, len(joined))
            if slots:
                first = slots[0]
                begin, first.begin = first.begin, None
                if begin is not None:
                    begin(first)
