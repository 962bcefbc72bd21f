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
    """Runs by number, up to ``most_bytes`` and ``CACHE_RUNS``. A run that is in use stays, whatever its size."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._runs: dict[int, Run] = {}
        """The one that was used last is the last one."""
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

    def get(self, number: int) -> Run | None:
        """Return a run; None if it is not in memory."""
        return self._runs.get(number)

    def __contains__(self, run: Run) -> bool:
        return self._runs.get(run.id) is run

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    def add(self, run: Run) -> None:
        """Take a run into memory."""
        self._runs[run.id] = run

    def use(self, run: Run) -> None:
        """Note that the code of a run has run: its size may have changed, and it is evicted after the others."""
        size = run.instance.size
        self._size += size - run.size
        run.size = size
        self._runs[run.id] = self._runs.pop(run.id)

    def drop(self, run: Run) -> None:
        """Take a run out of memory; do nothing if it is not there."""
        self.release(run)
        if run in self:
            del self._runs[run.id]
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
