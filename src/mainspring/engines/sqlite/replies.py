"""Kept answers on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.access.replies import OPERATIONS, ReplyOperation, Reservation, reservation_of
from mainspring.engines.sqlite.statements import SQL
from mainspring.storage.synchronous import run_synchronously

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.storage.operation import Operation


class ReplyRows:
    """`replies.Rows` inside the open transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._cursor = tx.cursor

    async def reserve(self, key: bytes, request: bytes, at_us: int, expired_us: int) -> Reservation | None:
        """Insert a reservation, or return the existing one."""
        found = await self.find(key, expired_us)
        if found is None:
            self._cursor.execute(SQL["reserve_reply"], (key, request, at_us))
        return found

    async def find(self, key: bytes, expired_us: int) -> Reservation | None:
        """Return the existing reservation."""
        found = next(iter(self._cursor.execute(SQL["reply"], (key, expired_us))), None)
        return None if found is None else reservation_of(*found)

    async def keep(self, key: bytes, reply: bytes) -> None:
        """Set the answer of a reservation."""
        self._cursor.execute(SQL["keep_reply"], (reply, key))

    async def release(self, key: bytes) -> None:
        """Delete a reservation without an answer."""
        self._cursor.execute(SQL["release_reply"], (key,))

    async def sweep(self, before_us: int, rows: int) -> int:
        """Delete old reservations."""
        self._cursor.execute(SQL["sweep_replies"], (before_us, rows))
        return self._cursor.connection.changes()


def _change(tx: Transaction, operations: Sequence[ReplyOperation]) -> list[object]:
    return [run_synchronously(operation.run(ReplyRows(tx))) for operation in operations]


HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Sequence[Any]]]] = {
    **dict.fromkeys(OPERATIONS, _change)
}
