"""The queue of queries: one at a time, in turns, beside the groups that `commit_queue` hands to the same store."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from mainspring.errors import StoreError
from mainspring.storage.query import Budget, Page, PageQuery, Query

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.storage.engine import QueryPort

T = TypeVar("T")

BUDGET: Final = Budget()


def always() -> bool:
    """Somebody waits for the answer, whatever happens."""
    return True


class _Asked(NamedTuple):
    query: Query[Any]
    done: Callable[[Any], None]
    failed: Callable[[StoreError], None]
    wanted: Callable[[], bool]


class Reads:
    """Asks an engine, a query at a time; each has its turn after those that were asked before it.

    ``call_soon`` runs a function at the end of the current turn of the node's loop. ``failing`` is called with each error, before
    whoever asked is told.
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
        self._waiting: deque[_Asked] = deque()
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
        """Have a query answered: by ``done``, or by ``failed`` where the store cannot answer it, and later in any case.

        Once ``wanted`` returns False nobody is told any more, and what was not begun yet is not asked.
        """
        self._waiting.append(_Asked(query, done, failed, wanted))
        self._hurry()

    def gather(
        self,
        query: PageQuery[T],
        done: Callable[[Page[T]], None],
        failed: Callable[[StoreError], None],
        wanted: Callable[[], bool] = always,
    ) -> None:
        """Ask for page after page, until they have as many items as the query's limit, or there are no more.

        Between two pages others have their turn.
        """
        items: list[T] = []

        def add(page: Page[T]) -> None:
            items.extend(page.items)
            left = query.limit - len(items)
            if page.next is None or left <= 0:
                done(page._replace(items=items))
            else:
                self.ask(msgspec.structs.replace(query, after=page.next, limit=left), add, failed, wanted)

        self.ask(query, add, failed, wanted)

    def close(self) -> None:
        """Ask nothing more, and tell nobody anything."""
        self._is_closed = True
        self._waiting.clear()

    def _hurry(self) -> None:
        if not self._scheduled and not self._under_way:
            self._scheduled = True
            self._call_soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        while self._waiting:
            asked = self._waiting.popleft()
            if asked.wanted():
                self._under_way = True
                self._reader.read(asked.query, self._budget, partial(self._answered, asked))
                return

    def _answered(self, asked: _Asked, outcome: Any) -> None:
        if self._is_closed:
            return
        self._under_way = False
        if self._waiting:
            self._hurry()
        if isinstance(outcome, StoreError):
            self._failing(outcome)
            if asked.wanted():
                asked.failed(outcome)
        elif asked.wanted():
            asked.done(outcome)
