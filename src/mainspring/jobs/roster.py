"""All functions of a node: those that it has to do with, and those that are rows of its store alone.

Pages of them are made as they are asked for. How many they are, and which of the store's are the busiest, is read now and then:
page by page, one after the other, and seldom, for nobody waits for it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from mainspring.jobs.held import FunctionQueue
from mainspring.jobs.store import CountLive, ShowLive
from mainspring.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.store import Counted
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads

PAGE_SIZE: Final = 500
"""Functions of a page at most: it is made in about a millisecond."""
BUSIEST: Final = 1000
"""Functions that are known by name: those with the most waiting jobs."""
READ_INTERVAL: Final = 5.0
"""Seconds between two readings at least."""
PAUSE_FACTOR: Final = 20
"""Reading takes at most about one part in so many of the time."""
LOG_INTERVAL: Final = 60.0
"""Seconds between two lines of the log about refused functions."""

_serial = attrgetter("serial")
log = structlog.get_logger("mainspring.functions")


class Page(NamedTuple):
    """Some functions. Those that are rows of the store are queues that nobody else has."""

    functions: Sequence[FunctionQueue]
    next: Place | None
    """Where the next page begins; None where this was the last."""


class Place(NamedTuple):
    """A place between two pages. The functions in memory come first, in the order in which the node has met them."""

    serial: int = 0
    """Behind this one of those in memory."""
    row: bytes | None = None
    """Behind this one of the store's, where those in memory, up to ``serial``, are done."""


FIRST_PLACE: Final = Place()


class Roster:
    """Makes pages, and counts.

    A function that is there from the first page to the last is in one of them, unless it moves meanwhile. What is counted of the
    store is as of the last reading; where all functions are in memory, nothing is read.
    """

    def __init__(self, dispatch: Dispatch, commits: CommitQueue, reads: Reads, clock: Clock) -> None:
        self._dispatch = dispatch
        self._commits = commits
        self._reads = reads
        self._clock = clock
        self._refusals = LogLimit(LOG_INTERVAL)
        self._next = float("-inf")
        """The monotonic time of the next reading; infinite while one is under way."""
        self._rows: dict[bytes, FunctionQueue] = {}
        self.jobs = self.waiting = 0
        """How many live jobs the functions have that are rows of the store alone, and how many of these wait."""

    # ---- pages ----

    @property
    def short(self) -> bool:
        """Whether all functions are in memory, and few."""
        return self._dispatch.complete and len(self._dispatch.order) <= PAGE_SIZE

    def page(
        self, place: Place, then: Callable[[Page], None], failed: Callable[[StoreError], None], limit: int = PAGE_SIZE
    ) -> None:
        """Make the page that begins at a place; at once as long as it is of functions in memory."""
        if place.row is None:
            then(self._in_memory(place.serial, limit))
            return
        serial = place.serial

        def counted(outcome: Counted) -> None:
            queues = self._dispatch.queues
            rows = [
                queues.get(row.name, row)
                for row in _rows_of(outcome.counts)
                if row.name not in queues or queues[row.name].serial > serial
            ]
            then(Page(rows, None if outcome.next is None else Place(serial, outcome.next)))

        self._reads.ask(ShowLive(place.row, limit), counted, failed)

    def _in_memory(self, serial: int, limit: int) -> Page:
        order, queues = self._dispatch.order, self._dispatch.queues
        start = bisect_right(order, serial, key=_serial)
        met = order[start : start + limit]
        functions = [queue for queue in met if queues.get(queue.name) is queue]
        serial = met[-1].serial if met else serial
        if start + limit < len(order):
            return Page(functions, Place(serial))
        return Page(functions, None if self._dispatch.complete else Place(serial, b""))

    def find(
        self,
        names: Sequence[bytes],
        then: Callable[[Mapping[bytes, FunctionQueue]], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        """Look some functions up: those that are in memory, or have jobs in the store."""
        queues = self._dispatch.queues
        here = {name: queues[name] for name in names if name in queues}
        others = [name for name in names if name not in here]
        if self._dispatch.complete or not others:
            then(here)
            return

        def counted(outcome: Counted) -> None:
            then({row.name: row for row in _rows_of(outcome.counts)} | here)

        self._commits.put(CountLive(others), counted, failed)

    # ---- counts ----

    def functions(self) -> Iterator[FunctionQueue]:
        """Return the functions in memory, and the busiest of the others."""
        queues = self._dispatch.queues
        yield from queues.values()
        for name, row in self._rows.items():
            if name not in queues:
                yield row

    @property
    def number(self) -> int:
        """How many functions there are, about."""
        return len(self._dispatch.queues) + self._dispatch.rows.number

    def too_many(self) -> str:
        """Return why a new function is refused, and say so to whoever can change it."""
        most = self._dispatch.most
        if self._refusals.left_out(self._clock.monotonic()) is not None:
            log.warning(
                "new functions are refused",
                functions=most,
                do="look at `mainspring functions list` for names that programs make up, or raise --max-functions",
            )
        return f"this server has {most} functions, and takes no more (--max-functions): use fewer names"

    def tick(self, now: float) -> None:
        """Begin a reading where it is time."""
        if not self._dispatch.complete and now >= self._next:
            self._next = float("inf")
            self._dispatch.rows.begin()
            self._read(_Sums(now), b"")

    def _read(self, sums: _Sums, after: bytes) -> None:
        self._reads.ask(ShowLive(after), lambda page: self._add(sums, page), self._not_read)

    def _add(self, sums: _Sums, page: Counted) -> None:
        queues = self._dispatch.queues
        rows = [row for row in _rows_of(page.counts) if row.name not in queues]
        sums.add(rows)
        for row in rows:
            self._dispatch.rows.met(row.name)
        if page.next is not None:
            self._read(sums, page.next)
            return
        self._rows = {row.name: row for row in sums.busiest()}
        self._dispatch.rows.end()
        self.jobs, self.waiting = sums.jobs, sums.waiting
        ended = self._clock.monotonic()
        self._next = ended + max(READ_INTERVAL, PAUSE_FACTOR * (ended - sums.began))

    def _not_read(self, error: StoreError) -> None:
        del error  # the figures stay as they are
        self._dispatch.rows.give_up()
        self._next = self._clock.monotonic() + READ_INTERVAL


class _Sums:
    """What a reading has found so far."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.jobs = self.waiting = 0
        self._rows: list[FunctionQueue] = []

    def add(self, rows: list[FunctionQueue]) -> None:
        """Add the functions of a page."""
        self.jobs += sum(row.live for row in rows)
        self.waiting += sum(row.waiting() for row in rows)
        self._rows += rows
        if len(self._rows) > 4 * BUSIEST:
            self._rows = self.busiest()

    def busiest(self) -> list[FunctionQueue]:
        """Return the functions with the most waiting jobs."""
        return heapq.nlargest(BUSIEST, self._rows, key=lambda row: row.waiting())


def _rows_of(counts: Mapping[tuple[bytes, int, int], int]) -> list[FunctionQueue]:
    """Return functions as the store counts them, in its order, as queues that nobody else has."""
    rows: dict[bytes, FunctionQueue] = {}
    for (name, state, priority), number in counts.items():
        row = rows.get(name)
        if row is None:
            row = rows[name] = FunctionQueue(name)
        row.count(state, priority, number)
    return list(rows.values())
