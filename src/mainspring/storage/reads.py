"""The queue of queries: the engine answers one at a time, beside the groups that `commit_queue` gives to the same store."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from mainspring.callbacks import Callback
from mainspring.errors import StoreError
from mainspring.storage.engine import Budget, Page, PageQuery, Query

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.storage.engine import QueryPort

T = TypeVar("T")

BUDGET: Final = Budget()


def always() -> bool:
    """Return True: the caller waits for the answer in every case."""
    return True


class _QueuedQuery(NamedTuple):
    query: Query[Any]
    done: Callable[[Any], None]
    failed: Callable[[StoreError], None]
    wanted: Callable[[], bool]


class Reads:
    """Gives queries to an engine, one at a time, in the order in which they were asked, but small ones first, and at once.

    ``call_soon`` runs a function at the end of the current turn of the node's loop. ``failing`` is called with each error, before
    the query's own function.
    """

    def __init__(
        self,
        reader: QueryPort,
        call_soon: Callable[[Callable[[], None]], object],
        *,
        budget: Budget = BUDGET,
        failing: Callable[[StoreError], None] = lambda _: None,
    ) -> None:
        self._reader = reader
        self._call_soon = call_soon
        self._budget = budget
        self._failing = failing
        self._waiting: deque[_QueuedQuery] = deque()
        self._small: deque[_QueuedQuery] = deque()
        self._under_way = False
        self._scheduled = False
        self._is_closed = False

    def ask(
        self,
        query: Query[T],
        done: Callable[[T], None],
        failed: Callable[[StoreError], None],
        wanted: Callable[[], bool] = always,
    ) -> None:
        """Queue a query. Later, ``done`` is called with the answer, or ``failed`` with the store's error.

        A small query begins at once, and may be answered before this returns, if no other is under way: a turn of a busy loop
        takes longer than the query. Once ``wanted`` returns False, neither is called, and a query that has not begun is dropped.
        """
        (self._small if query.is_small else self._waiting).append(_QueuedQuery(query, done, failed, wanted))
        if query.is_small and not self._under_way and not self._is_closed:
            self._begin_next()
        else:
            self._schedule()

    def gather(
        self,
        query: PageQuery[T],
        done: Callable[[Page[T]], None],
        failed: Callable[[StoreError], None],
        wanted: Callable[[], bool] = always,
    ) -> None:
        """Read page after page until they have as many items or bytes as the query's limits, or there are no more.

        Other queries may run between two pages.
        """
        self._gather([], query, done, failed, wanted)

    def _gather(
        self,
        items: list[T],
        query: PageQuery[T],
        done: Callable[[Page[T]], None],
        failed: Callable[[StoreError], None],
        wanted: Callable[[], bool],
    ) -> None:
        # No closure that asks for the next page with itself: such a cycle would keep the items until the collector runs.
        self.ask(query, partial(self._add, items, query, done, failed, wanted), failed, wanted)

    def _add(
        self,
        items: list[T],
        query: PageQuery[T],
        done: Callable[[Page[T]], None],
        failed: Callable[[StoreError], None],
        wanted: Callable[[], bool],
        page: Page[T],
    ) -> None:
        items += page.items
        remaining, left = query.limit - len(page.items), query.bytes - page.size
        if page.next is None or remaining <= 0 or (query.bytes and left <= 0):
            done(page._replace(items=items))
        else:
            query = msgspec.structs.replace(query, after=page.next, limit=remaining, bytes=left if query.bytes else 0)
            self._gather(items, query, done, failed, wanted)

    async def read(self, query: Query[T]) -> T:
        """Return the answer to a query. When the call ends, the query is no longer wanted."""
        is_wanted = True
        try:
            return await Callback[T](lambda done, failed: self.ask(query, done, failed, lambda: is_wanted))
        finally:
            is_wanted = False

    async def read_pages(self, query: PageQuery[T]) -> Page[T]:
        """Return what `gather` reads. When the call ends, the query is no longer wanted."""
        is_wanted = True
        try:
            return await Callback[Page[T]](lambda done, failed: self.gather(query, done, failed, lambda: is_wanted))
        finally:
            is_wanted = False

    def close(self) -> None:
        """Start no more queries and call no more functions."""
        self._is_closed = True
        self._waiting.clear()
        self._small.clear()

    def _schedule(self) -> None:
        if not self._scheduled and not self._under_way:
            self._scheduled = True
            self._call_soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        if not self._under_way:
            self._begin_next()

    def _begin_next(self) -> None:
        while self._small or self._waiting:
            queued = (self._small or self._waiting).popleft()
            if queued.wanted():
                self._under_way = True
                self._reader.read(queued.query, self._budget, partial(self._answered, queued))
                return

    def _answered(self, queued: _QueuedQuery, outcome: Any) -> None:
        if self._is_closed:
            return
        self._under_way = False
        if self._small or self._waiting:
            self._schedule()
        if isinstance(outcome, StoreError):
            self._failing(outcome)
            if queued.wanted():
                queued.failed(outcome)
        elif queued.wanted():
            queued.done(outcome)
