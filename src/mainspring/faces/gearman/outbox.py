"""Answers in the order of their requests, although some have to wait for the disk."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Slot:
    """The place of an answer that is not known yet."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | None = None) -> None:
        self.data = data


class Outbox:
    """What goes to one peer. While nothing is waited for, everything is written at once."""

    __slots__ = ("_slots", "write")

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write
        """Writes out of order: for what no request is waiting for."""
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def send(self, data: bytes) -> None:
        """Write after everything that was sent or reserved before."""
        if self._slots:
            self._slots.append(Slot(data))
        else:
            self.write(data)

    def reserve(self) -> Slot:
        """Keep a place for an answer."""
        slot = Slot()
        self._slots.append(slot)
        return slot

    def fill(self, slot: Slot, data: bytes) -> None:
        """Put an answer in its place; it goes out when all before it have."""
        slot.data = data
        slots = self._slots
        if slots[0] is slot and len(slots) == 1:
            slots.clear()
            self.write(data)
            return
        ready = []
        while slots and slots[0].data is not None:
            ready.append(slots.popleft().data)
        if ready:
            self.write(b"".join(ready))  # type: ignore[arg-type]
