"""Answers in the order of their requests, although some have to wait for the disk."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.outstanding import Outstanding


class Write(Protocol):
    """Writes bytes, and keeps their owner as long as they are on their way."""

    def __call__(self, data: bytes, owner: object = None, /) -> object:
        """Write."""


class Slot:
    """The place of an answer that is not known yet."""

    __slots__ = ("begin", "data", "owner", "units")

    def __init__(self, units: int, data: bytes | None = None, owner: object = None) -> None:
        self.units = units
        self.data = data
        self.owner = owner
        self.begin: Callable[[Slot], None] | None = None
        """Called when all before it is out."""


class Outbox:
    """What goes to one peer. While nothing is waited for, everything is written at once.

    What is waited for, and the answers that wait behind it, are counted as ``unanswered``.
    """

    __slots__ = ("_slots", "_unanswered", "write")

    def __init__(self, write: Write, unanswered: Outstanding) -> None:
        self._unanswered = unanswered
        self.write = write
        """Writes out of order: for what no request is waiting for."""
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def divert(self, write: Write) -> None:
        """Write by another function from now on."""
        self.write = write

    def send(self, data: bytes, owner: object = None) -> None:
        """Write after everything that was sent or reserved before. ``owner`` is kept with it on the way."""
        if self._slots:
            self._slots.append(Slot(1, data, owner))
            self._unanswered.add(1, len(data))
        elif owner is None:
            self.write(data)
        else:
            self.write(data, owner)

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
        units = size = 0
        while slots and (known := slots[0].data) is not None:
            first = slots.popleft()
            units += first.units
            size += len(known)
            if first.owner is None:
                ready.append(known)
                continue
            self._write_all(ready)
            ready = []
            self.write(known, first.owner)
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
