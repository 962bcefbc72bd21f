"""The queue of queries: the engine answers one at a time, beside the groups that `commit_queue` gives to the same store.

Stored objects that a node cannot handle are set aside, each alone, so that the others go on. A transaction that serves all due
objects of a kind must not fail because of one of them: a value of a newer version, a time zone that only other machines have,
damaged bytes. Reads return such an object with its fault in place of an error. The transaction leaves it as it is and reports it
in its outcome, and the service notes it here. So it is named in the log, in lists, on the overview and in the metrics, and it is
tried again after `RETRY_DELAY`: the cause may have gone, without a restart.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import structlog

from mainspring.callbacks import Callback
from mainspring.errors import StoreError
from mainspring.storage.engine import Budget, Page, PageQuery, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.clock import Clock
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


_log = structlog.get_logger("mainspring.store")

RETRY_DELAY: Final = 10.0
"""Seconds after which a node tries an object again."""
LIFETIME: Final = 60.0
"""Seconds after which an object that was not met again is forgotten: it was removed, or another node has handled it."""


REMEDY: Final = "run the version of Mainspring that has written it, or restore the store from a backup"
"""The remedy for an object that cannot be read."""


class Kind(NamedTuple):
    """A kind of stored objects."""

    name: str
    remedy: str
    """Advice for the operator."""
    is_tried_again: bool = True


KINDS: Final = ("schedule", "job", "run", "errand", "operation", "submission", "signal")
"""The names of all kinds: each has a measure from the start of a node on."""


class Entry(NamedTuple):
    """An object that this node has set aside."""

    kind: str
    name: str
    fault: str
    since: float
    """Wall time of the first attempt that failed."""
    number: int = 1
    """The number of objects that it stands for."""


class SetAside:
    """The objects that one node has set aside."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, str], tuple[Entry, float]] = {}
        """The entries, and the monotonic time of each one's last attempt."""

    @property
    def is_empty(self) -> bool:
        """Return whether there are none, as nearly always: then nobody needs to make their names."""
        return not self._entries

    def note(self, kind: Kind, name: str, fault: str, number: int = 1, since: float | None = None) -> None:
        """Note that an object, or a ``number`` of them, could not be handled; log it if that is new."""
        key = kind.name, name
        before = self._entries.get(key)
        if since is None:
            since = self._clock.wall() if before is None else before[0].since
        self._entries[key] = Entry(kind.name, name, fault, since, number), self._clock.monotonic()
        if before is None or before[0].fault != fault:
            delay = {"tried_again_after": RETRY_DELAY} if kind.is_tried_again else {}
            _log.error(
                f"this node cannot handle a stored {kind.name}: it is set aside, the others go on",
                **{kind.name: name, "fault": fault, "remedy": kind.remedy, **delay},
            )

    def removed(self, kind: Kind, name: str) -> None:
        """Note that an object is no longer there."""
        self._entries.pop((kind.name, name), None)

    def handled(self, kind: Kind, names: Iterable[str]) -> None:
        """Note that objects were handled, whether they were set aside before or not."""
        if not self._entries:
            return
        for name in names:
            if self._entries.pop((kind.name, name), None) is not None:
                _log.info(f"a {kind.name} that was set aside goes on", **{kind.name: name})

    def waits(self, kind: Kind, name: str) -> bool:
        """Return whether an object was tried so recently that it is not tried again yet."""
        if not self._entries:
            return False
        found = self._entries.get((kind.name, name))
        return found is not None and self._clock.monotonic() - found[1] < RETRY_DELAY

    def entries(self) -> Sequence[Entry]:
        """Return the objects that are set aside now."""
        now = self._clock.monotonic()
        self._entries = {key: one for key, one in self._entries.items() if now - one[1] < LIFETIME}
        return [entry for entry, _ in self._entries.values()]

    def number(self, kind: Kind) -> int:
        """Return how many objects of a kind are set aside."""
        return sum(one.number for one in self.entries() if one.kind == kind.name) if self._entries else 0
