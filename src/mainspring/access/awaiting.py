"""Awaits the answer of a store, which comes through callbacks."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.errors import StoreError


async def awaited(ask: Callable[[Callable[[Any], None], Callable[[StoreError], None]], object]) -> Any:
    """Return what ``ask`` passes to its first function, or raise the error that it passes to the second."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ask(partial(resolve, answer), partial(reject, answer))
    try:
        return await answer
    finally:
        del answer, ask  # its error has this frame in its traceback: together they would keep the request


def resolve(answer: asyncio.Future[Any], value: Any) -> None:
    """Set the result of a future unless its waiter has gone."""
    if not answer.done():
        answer.set_result(value)


def reject(answer: asyncio.Future[Any], error: Exception) -> None:
    """Set the error of a future unless its waiter has gone."""
    if not answer.done():
        answer.set_exception(error)
