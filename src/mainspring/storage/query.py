"""What a node asks of its store beside its groups: queries, what each may cost, and pages of answers.

A query changes nothing and is no barrier: its answer has all that was committed when it was begun, and nothing that was not. So a
client finds what was acknowledged to it before it asked, and writes do not wait for a long list. No query runs for long: a read
ends with its budget, and its answer says where the next one goes on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Budget(NamedTuple):
    """What one read may cost."""

    rows: int = 20_000
    """Rows that it looks at, whether they match or not."""
    seconds: float = 0.1
    part: int = 1000
    """Rows between two looks at the clock."""


class Query(msgspec.Struct, Generic[T_co], frozen=True):
    """A question to a store, whose answer is a ``T_co``."""


class Page(NamedTuple, Generic[T]):
    """What a read has found."""

    items: list[T]
    next: Any = None
    """Up to where it has searched: `PageQuery.after` of the next page, which may be empty. None: there is no more."""
    searched_us: int = 0
    """The wall time in microseconds at which the last job looked at was submitted, in a list of jobs that has a `next`."""


class PageQuery(Query[Page[T]], Generic[T], frozen=True, kw_only=True):
    """A question whose answer may be long."""

    after: Any = None
    """`Page.next` of the page before; None: from the beginning."""
    limit: int = 100


class Meter:
    """What is left of a budget while a read goes on, part by part."""

    def __init__(self, budget: Budget, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until = monotonic() + budget.seconds
        self._left = budget.rows
        self._part = budget.part
        self._has_begun = False
        self.few = budget.rows // 4
        """So many entries of an index may be tried before all rows are searched."""

    def part(self) -> int:
        """Return how many rows may be read before it is asked again; 0 where the budget is spent, but not the first time."""
        if self._has_begun and self._monotonic() >= self._until:
            return 0
        self._has_begun = True
        return max(min(self._part, self._left), 0)

    def spend(self, rows: int) -> None:
        """Take rows off."""
        self._left -= rows


async def in_parts(
    query: PageQuery[T],
    meter: Meter,
    read: Callable[[Any, int], Awaitable[Sequence[tuple[Any, T]]]],
) -> Page[T]:
    """Read a page whose rows all match.

    ``read`` is given a place and a number, and returns so many of the rows behind it, each with its own place.
    """
    items: list[T] = []
    after = query.after
    while len(items) < query.limit and (rows := meter.part()):
        most = min(rows, query.limit - len(items))
        found = await read(after, most)
        meter.spend(most)
        items += [item for _, item in found]
        if len(found) < most:
            return Page(items)
        after = found[-1][0]
    return Page(items, after)
