"""What the store has of all the functions that a node has nothing to do with: how many they are, and the busiest of them.

They are read page by page, one after the other, and seldom: nobody waits for it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import structlog

from mainspring.jobs.roster import rows_of
from mainspring.jobs.store import ShowLive
from mainspring.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.store import Counted
    from mainspring.storage.reads import Reads

BUSIEST: Final = 1000
"""Functions that are known by name: those with the most waiting jobs."""
EVERY: Final = 5.0
"""Seconds between two readings at least."""
SHARE: Final = 20
"""Reading takes at most about one part in so many of the time."""
TOLD_EVERY: Final = 60.0
"""Seconds between two lines of the log about refused functions."""

log = structlog.get_logger("mainspring.functions")


class Census:
    """The functions of a node and of its store, as of the last reading. Where all are in memory, nothing is read."""

    def __init__(self, dispatch: Dispatch, reads: Reads, clock: Clock) -> None:
        self._dispatch = dispatch
        self._reads = reads
        self._clock = clock
        self._refusals = LogLimit(TOLD_EVERY)
        self._next = float("-inf")
        """The monotonic time of the next reading; infinite while one is under way."""
        self._rows: dict[bytes, FunctionQueue] = {}
        self.jobs = self.waiting = 0
        """How many live jobs the functions have that are rows of the store alone, and how many of these wait."""

    def functions(self) -> Iterator[FunctionQueue]:
        """Return the functions in memory, and the busiest of the others."""
        known = self._dispatch.queues
        yield from known.values()
        for name, row in self._rows.items():
            if name not in known:
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
        known = self._dispatch.queues
        rows = [row for row in rows_of(page.counts) if row.name not in known]
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
        self._next = ended + max(EVERY, SHARE * (ended - sums.began))

    def _not_read(self, error: StoreError) -> None:
        del error  # the figures stay as they are
        self._dispatch.rows.give_up()
        self._next = self._clock.monotonic() + EVERY


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
