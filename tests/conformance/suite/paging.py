"""Runs queries on an engine: one read, or as many as there are pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from mainspring.errors import StoreError
from mainspring.storage.reads import BUDGET

if TYPE_CHECKING:
    from mainspring.storage.engine import Budget, PageQuery, Query, QueryPort

T = TypeVar("T")


async def answer(engine: QueryPort, query: Query[T], budget: Budget = BUDGET) -> T:
    """Return the answer to one read; raises its StoreError."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Any] = loop.create_future()

    def finish(outcome: Any) -> None:
        assert not answered.done(), "a query is answered once"
        answered.set_result(outcome)

    engine.read(query, budget, finish)
    outcome = await answered
    if isinstance(outcome, StoreError):
        raise outcome
    found: T = outcome
    return found


async def everything(engine: QueryPort, query: PageQuery[T], budget: Budget = BUDGET) -> list[T]:
    """Return all items of a query, up to its limit, in as many reads as needed."""
    items: list[T] = []
    after = query.after
    while True:
        page = await answer(engine, replace(query, after=after, limit=query.limit - len(items)), budget)
        items += page.items
        after = page.next
        if after is None or len(items) >= query.limit:
            return items
