"""Awaits the answer of a store, which comes through callbacks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError


async def awaited(ask: Callable[[Callable[[Any], None], Callable[[StoreError], None]], object]) -> Any:
    """Return what ``ask`` passes to its first function, or raise the error that it passes to the second."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(value: Any) -> None:
        if not answer.done():
            answer.set_result(value)

    def failed(error: StoreError) -> None:
        if not answer.done():
            answer.set_exception(error)

    ask(done, failed)
    return await answer
