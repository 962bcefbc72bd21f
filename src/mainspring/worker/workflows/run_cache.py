"""The runs in a worker's memory, and the deliveries of their decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.workflows.decider_workers import CacheReport

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from mainspring.worker.link import Link
    from mainspring.worker.session import Key
    from mainspring.worker.workflows.runs import Run

CACHE_RUNS: Final = 10_000
"""Runs in the cache."""


class RunCache:
    """Runs by connection and number, up to ``most_bytes`` and ``CACHE_RUNS``. A run that is in use stays, whatever its size.

    The numbers of runs are unique in one store, and the nodes of a worker may have several.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._runs: dict[tuple[Link, int], Run] = {}
        """The one that was used last is the last one."""
        self._links: dict[Link, None] = {}
        self._size = 0
        self._deliveries: dict[tuple[Link, Key], Run] = {}
        """The runs with a decision."""
        self._dropped: dict[Link, list[int]] = {}
        self._decisions = self._hits = self._replays = self._evictions = 0

    def numbers(self) -> CacheReport:
        """Return what is in the cache, and what has happened in it."""
        counted = self._decisions, self._hits, self._replays, self._evictions
        return CacheReport(len(self._runs), self._size, self._most_bytes, *counted)

    def count_decision(self, *, was_here: bool, replayed: bool) -> None:
        """Count a decision of a run that was in memory, or whose history was replayed for it; neither: its first one."""
        self._decisions += 1
        self._hits += was_here
        self._replays += replayed

    def get(self, link: Link, number: int) -> Run | None:
        """Return a run of a connection; None if it is not in memory."""
        return self._runs.get((link, number))

    def copies(self, run: Run) -> list[Run]:
        """Return the same run as other nodes of its store have given it before.

        A run of another store may have the same number, but not the same first event.
        """
        if len(self._links) == 1 or run.instance.started is None:
            return []
        others = [self._runs.get((link, run.id)) for link in self._links if link is not run.link]
        return [one for one in others if one is not None and one.instance.started == run.instance.started]

    def __contains__(self, run: Run) -> bool:
        return self._runs.get((run.link, run.id)) is run

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    def add(self, run: Run) -> None:
        """Take a run into memory."""
        self._runs[run.link, run.id] = run
        self._links[run.link] = None

    def use(self, run: Run) -> None:
        """Note that the code of a run has run: its size may have changed, and it is evicted after the others."""
        size = run.instance.size
        self._size += size - run.size
        run.size = size
        key = run.link, run.id
        self._runs[key] = self._runs.pop(key)

    def drop(self, run: Run) -> None:
        """Take a run out of memory; do nothing if it is not there."""
        self.release(run)
        if run in self:
            del self._runs[run.link, run.id]
            self._size -= run.size
            self._dropped.setdefault(run.link, []).append(run.id)

    def excess(self) -> Iterator[Run]:
        """Return idle runs, the least recently used first, until the cache is small enough. The caller drops each at once."""
        if self._large:
            for run in self:
                if not self._large:
                    break
                if run.idle:
                    self._evictions += 1
                    yield run

    @property
    def _large(self) -> bool:
        return self._size > self._most_bytes or len(self._runs) > CACHE_RUNS

    def take_dropped(self) -> dict[Link, list[int]]:
        """Return the numbers of the runs that were dropped since the last call."""
        dropped, self._dropped = self._dropped, {}
        return dropped

    # ---- deliveries ----

    def deciding(self) -> Collection[Run]:
        """Return the runs with a decision."""
        return self._deliveries.values()

    def hold(self, run: Run, key: Key) -> None:
        """Note the delivery of a run's decision."""
        self.release(run)
        run.key = key
        run.expected = False
        self._deliveries[run.link, key] = run

    def release(self, run: Run) -> Key | None:
        """Return the delivery of a run's decision, which the run no longer has."""
        key, run.key = run.key, None
        if key is not None:
            del self._deliveries[run.link, key]
        return key

    def decided(self, link: Link, key: Key) -> Run | None:
        """Return the run of a decision's delivery."""
        return self._deliveries.get((link, key))
