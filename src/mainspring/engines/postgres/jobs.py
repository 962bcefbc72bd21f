"""The jobs slice on PostgreSQL: a handler for each kind of operation, given all of a group's operations of that kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.storage.operation import Operation

HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]] = {}
