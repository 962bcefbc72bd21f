"""All functions of a node, a page at a time: those that it has to do with, and those that are rows of its store alone."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.jobs.held import FunctionQueue
from mainspring.jobs.store import CountLive, ShowLive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.errors import StoreError
    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.store import Counted
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads

PAGE: Final = 500
"""Functions of a page at most: it is made in about a millisecond."""
_serial = attrgetter("serial")


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


BEGIN: Final = Place()


class Roster:
    """Makes pages. A function that is there from the first page to the last is in one of them, unless it moves meanwhile."""

    def __init__(self, dispatch: Dispatch, commits: CommitQueue, reads: Reads) -> None:
        self._dispatch = dispatch
        self._commits = commits
        self._reads = reads

    @property
    def short(self) -> bool:
        """Whether all functions are in memory, and few."""
        return self._dispatch.complete and len(self._dispatch.order) <= PAGE

    def page(
        self, place: Place, then: Callable[[Page], None], failed: Callable[[StoreError], None], limit: int = PAGE
    ) -> None:
        """Make the page that begins at a place; at once as long as it is of functions in memory."""
        if place.row is None:
            then(self._in_memory(place.serial, limit))
            return
        serial = place.serial

        def counted(outcome: Counted) -> None:
            known = self._dispatch.queues
            rows = [
                known.get(row.name, row)
                for row in rows_of(outcome.counts)
                if row.name not in known or known[row.name].serial > serial
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
        known = self._dispatch.queues
        here = {name: known[name] for name in names if name in known}
        others = [name for name in names if name not in here]
        if self._dispatch.complete or not others:
            then(here)
            return

        def counted(outcome: Counted) -> None:
            then({row.name: row for row in rows_of(outcome.counts)} | here)

        self._commits.put(CountLive(others), counted, failed)


def rows_of(counts: Mapping[tuple[bytes, int, int], int]) -> list[FunctionQueue]:
    """Return functions as the store counts them, in its order, as queues that nobody else has."""
    rows: dict[bytes, FunctionQueue] = {}
    for (name, state, priority), number in counts.items():
        row = rows.get(name)
        if row is None:
            row = rows[name] = FunctionQueue(name)
        row.count(state, priority, number)
    return list(rows.values())
