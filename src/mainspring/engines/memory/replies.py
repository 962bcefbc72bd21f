"""Kept answers in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.access.replies import OPERATIONS, ReplyOperation, Reservation, reservation_of
from mainspring.storage.synchronous import run_synchronously

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.engines.memory.tables import Tables
    from mainspring.storage.operation import Operation


class ReplyRows:
    """`replies.Rows` in a dictionary."""

    def __init__(self, tables: Tables) -> None:
        self._rows = tables.replies

    async def reserve(self, key: bytes, request: bytes, at_us: int, expired_us: int) -> Reservation | None:
        """Insert a reservation, or return the existing one."""
        found = await self.find(key, expired_us)
        if found is None:
            self._rows[key] = (request, at_us, None)
        return found

    async def find(self, key: bytes, expired_us: int) -> Reservation | None:
        """Return the existing reservation."""
        found = self._rows.get(key)
        return reservation_of(*found) if found is not None and found[1] >= expired_us else None

    async def keep(self, key: bytes, reply: bytes) -> None:
        """Set the answer of a reservation."""
        found = self._rows.get(key)
        if found is not None:
            self._rows[key] = (*found[:2], reply)

    async def release(self, key: bytes) -> None:
        """Delete a reservation without an answer."""
        if key in self._rows and self._rows[key][2] is None:
            del self._rows[key]

    async def sweep(self, before_us: int, rows: int) -> int:
        """Delete old reservations."""
        old = [key for key, row in self._rows.items() if row[1] < before_us][:rows]
        for key in old:
            del self._rows[key]
        return len(old)


def _change(tables: Tables, operation: ReplyOperation) -> object:
    return run_synchronously(operation.run(ReplyRows(tables)))


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {**dict.fromkeys(OPERATIONS, _change)}
