"""Queries, their budgets, and pages of answers.

A query changes nothing and is no barrier: its answer includes exactly the changes that were committed when it began. A client
therefore finds every change that was acknowledged before its query, and writes do not wait for a long list. No query runs for
long: a read ends when it has spent its budget, and its answer contains the place where the next read continues.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Budget(NamedTuple):
    """The limits of one read."""

    rows: int = 20_000
    """Rows that are examined, whether they match or not."""
    seconds: float = 0.06
    part: int = 1000
    """Rows before the first check of the clock. After a quick part, the next one is larger."""


class Query(msgspec.Struct, Generic[T_co], frozen=True):
    """A query to a store, whose answer is a ``T_co``."""

    is_small: ClassVar[bool] = False
    """Whether it reads a single row: it may run before queries that have waited longer."""


class Page(NamedTuple, Generic[T]):
    """The result of a read."""

    items: list[T]
    next: Any = None
    """The place up to which the read searched: `PageQuery.after` of the next page, which may be empty. None: no more rows."""
    searched_us: int = 0
    """The wall time in microseconds at which the last examined job was submitted, or run began, in a list that has a `next`."""
    size: int = 0
    """The bytes of the items, if the query has a budget of bytes."""


FIRST_PART: Final = 20
"""Rows that a read with a budget of bytes begins with: from their sizes it estimates how many fit into the rest."""
_encode: Final = msgspec.msgpack.Encoder().encode


class PageQuery(Query[Page[T]], Generic[T], frozen=True, kw_only=True):
    """A query whose answer may be long."""

    after: Any = None
    """`Page.next` of the previous page; None: from the first row."""
    limit: int = 100
    bytes: int = 0
    """The bytes of rows after which a page ends, for rows whose sizes clients choose; 0: any number."""

    @staticmethod
    def size_of(item: T) -> int:
        """Return the bytes of a row."""
        return len(_encode(item))


class Sizes(Generic[T]):
    """The rest of a query's budget of bytes during a read. It also decides how many rows are read at a time."""

    __slots__ = ("_next", "_number", "_query", "used")

    def __init__(self, query: PageQuery[T]) -> None:
        self._query = query
        self._next = FIRST_PART if query.bytes else sys.maxsize
        self._number = 0
        self.used = 0

    def part(self, rows: int) -> int:
        """Return how many of these rows may be read next."""
        return min(rows, self._next)

    def add(self, items: Sequence[T]) -> bool:
        """Count rows that were read; return whether the budget is spent."""
        query = self._query
        if not query.bytes or not items:
            return False
        self.used += sum(map(query.size_of, items))
        self._number += len(items)
        fit = (query.bytes - self.used) * self._number // max(self.used, 1)
        self._next = max(1, min(self._next * GROWTH, fit))
        return self.used >= query.bytes


GROWTH: Final = 4
"""How many times larger a part is than a quick one before it: each part costs a few statements, however few its rows are."""
QUICK: Final = 0.1
"""The share of a budget's time in which a quick part ends, so that the next one, too, ends within the budget."""


class Meter:
    """The rest of a budget during a read."""

    def __init__(self, budget: Budget, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._until = self._began + budget.seconds
        self._quick = budget.seconds * QUICK
        self._remaining = budget.rows
        self._part = budget.part
        self._has_begun = False
        self.few = budget.rows // 4
        """Index entries that may be tried before all rows are searched."""

    def part(self) -> int:
        """Return how many rows may be read before the next call; 0 if the budget is spent, but never at the first call."""
        now = self._monotonic()
        if self._has_begun:
            if now >= self._until:
                return 0
            if now - self._began < self._quick:
                self._part *= GROWTH
        self._has_begun = True
        self._began = now
        return max(min(self._part, self._remaining), 0)

    def is_late(self) -> bool:
        """Return whether the time is spent."""
        return self._monotonic() >= self._until

    def spend(self, rows: int) -> None:
        """Subtract rows from the budget."""
        self._remaining -= rows


async def in_parts(
    query: PageQuery[T],
    meter: Meter,
    read: Callable[[Any, int], Awaitable[Sequence[tuple[Any, T]]]],
) -> Page[T]:
    """Read a page whose rows all match.

    ``read`` receives a place and a number. It returns at most that number of the following rows, each with its own place.
    """
    items: list[T] = []
    after = query.after
    sizes = Sizes(query)
    while len(items) < query.limit and (rows := meter.part()):
        number = sizes.part(min(rows, query.limit - len(items)))
        found = await read(after, number)
        meter.spend(number)
        part = [item for _, item in found]
        items += part
        is_spent = sizes.add(part)
        if len(found) < number:
            return Page(items, size=sizes.used)
        after = found[-1][0]
        if is_spent:
            break
    return Page(items, after, size=sizes.used)
