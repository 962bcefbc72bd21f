"""Kept answers on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.access.replies import OPERATIONS, ReplyOperation, Reservation, reservation_of
from mainspring.engines.postgres.statements import load

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.storage.operation import Operation

SQL: Final = load("replies.sql")


class ReplyRows:
    """`replies.Rows` in an attempt to run a group."""

    def __init__(self, tx: Transaction) -> None:
        self._connection = tx.connection

    async def reserve(self, key: bytes, request: bytes, at_us: int, expired_us: int) -> Reservation | None:
        """Insert a reservation, or return the existing one."""
        if await self._connection.fetchval(SQL["reserve_reply"], key, request, at_us, expired_us):
            return None
        earlier = await self.find(key, expired_us)
        assert earlier is not None, "the statement before has found it, and waited for its transaction"
        return earlier

    async def find(self, key: bytes, expired_us: int) -> Reservation | None:
        """Return the existing reservation."""
        found = await self._connection.fetchrow(SQL["reply"], key, expired_us)
        return None if found is None else reservation_of(*found)

    async def keep(self, key: bytes, reply: bytes) -> None:
        """Set the answer of a reservation."""
        await self._connection.execute(SQL["keep_reply"], key, reply)

    async def release(self, key: bytes) -> None:
        """Delete a reservation without an answer."""
        await self._connection.execute(SQL["release_reply"], key)

    async def sweep(self, before_us: int, rows: int) -> int:
        """Delete old reservations."""
        number: int = await self._connection.fetchval(SQL["sweep_replies"], before_us, rows)
        return number


async def _change(tx: Transaction, operations: Sequence[ReplyOperation]) -> list[object]:
    return [await operation.run(ReplyRows(tx)) for operation in operations]


HANDLERS: Final[dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[Sequence[Any]]]]] = {
    **dict.fromkeys(OPERATIONS, _change)
}
