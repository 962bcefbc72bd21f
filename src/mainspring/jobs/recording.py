"""Writes the series of a node's functions to its store, every few seconds, from the differences of its figures.

So jobs and attempts cost no more than the figures themselves, and a store gets rows of functions that were used alone. Jobs may
also begin or cease to wait without figures, for example where they are cancelled without a worker: once a minute, the numbers of
waiting jobs of all other functions in memory are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.clock import to_us
from mainspring.jobs.attempts import OUTCOMES
from mainspring.namespaces import SEPARATOR, split
from mainspring.series.model import HALF_HOUR, KEPT, MINUTE, Bucket, Row, add_error, begin_of, oldest_kept
from mainspring.series.store import SaveSeries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.clock import Clock
    from mainspring.jobs.attempts import Attempts, Distribution, Figures
    from mainspring.jobs.held import FunctionQueue
    from mainspring.storage.commit_queue import CommitQueue

EVERY: Final = 5.0
"""Seconds between two writings in one minute. A later writing replaces the rows of an earlier one."""
BATCH: Final = 250
"""Rows in one operation: a few milliseconds of a transaction."""
MOST_UNSENT: Final = 20_000
"""Rows that wait while the store refuses; then the oldest are dropped."""


class _Seen(NamedTuple):
    """The figures of a function at the last writing."""

    submitted: int
    outcomes: list[int]
    waited: tuple[list[int], int]
    ran: tuple[list[int], int]


NOTHING: Final = _Seen(0, [0] * len(OUTCOMES), ([], 0), ([], 0))


class Recorder:
    """Records the figures of a node.

    ``term`` returns the node's current term, ``queue_of`` the queue of a function, if there is one, and ``queues`` all queues.
    ``mine`` returns whether this node writes the waiting jobs of a function without figures, as one node of the fleet does.
    """

    def __init__(
        self,
        attempts: Attempts,
        commits: CommitQueue,
        clock: Clock,
        term: Callable[[], int],
        queue_of: Callable[[bytes], FunctionQueue | None],
        queues: Callable[[], Iterable[FunctionQueue]],
        mine: Callable[[str], bool],
    ) -> None:
        self._attempts = attempts
        self._commits = commits
        self._clock = clock
        self._term = term
        self._queue_of = queue_of
        self._queues = queues
        self._mine = mine
        self._minute = begin_of(MINUTE, clock.wall())
        self._next = clock.monotonic() + EVERY
        self._seen: dict[bytes, _Seen] = {}
        self._waited: dict[bytes, int] = {}
        """The numbers of waiting jobs at the last writing. Before the first one, the store has the number of another term."""
        self._buckets: dict[int, dict[bytes, Bucket]] = {step: {} for step in KEPT}
        """The buckets under way, by their length in seconds and by function."""
        self._unsent: list[Row] = []
        self._sending = False

    def tick(self) -> None:
        """Write the minute under way from time to time, and once it is over. Call this about once a second."""
        now = self._clock.monotonic()
        minute = begin_of(MINUTE, self._clock.wall())
        if minute == self._minute and now < self._next:
            return
        self._next = now + EVERY
        self.write(is_over=minute != self._minute)
        if minute == self._minute:
            return
        self._buckets[MINUTE].clear()
        if begin_of(HALF_HOUR, minute) != begin_of(HALF_HOUR, self._minute):
            self._buckets[HALF_HOUR].clear()
        self._minute = minute

    def write(self, *, is_over: bool = True) -> None:
        """Write the minute and the half hour under way.

        A change of the number of waiting jobs alone is written once the minute is over, as every node of a store sees it.
        """
        errors = self._attempts.errors.take()
        names = set()
        for figures in self._attempts.figures(self._clock.monotonic()):
            name = figures.name
            names.add(name)
            bucket = self._difference(figures)
            for kind, group in errors.get(name, {}).items():
                add_error(bucket.errors, kind, group)
            self._add(name, bucket, self._queue_of(name), is_over=is_over)
        for queue in self._queues() if is_over else ():
            if queue.name in names:
                continue
            if self._mine(queue.name.decode("utf-8", "replace")):
                self._add(queue.name, Bucket(), queue, is_over=True)
            else:
                self._waited.pop(queue.name, None)  # another node writes it
        del self._unsent[:-MOST_UNSENT]
        self._send()

    def _add(self, name: bytes, bucket: Bucket, queue: FunctionQueue | None, *, is_over: bool) -> None:
        """Add what was counted of a function since the last writing, if it is worth a row."""
        if name.startswith(SEPARATOR):  # decisions of workflows
            return
        waiting = None if queue is None or not queue.counted else queue.waiting()
        is_changed = waiting is not None and waiting != self._waited.get(name)
        if bucket.is_empty() and not (is_over and is_changed):
            return
        if waiting is not None:
            bucket.count_waiting(waiting, to_us(self._clock.wall()))
            self._waited[name] = waiting
        for step, buckets in self._buckets.items():
            total = buckets.setdefault(name, Bucket())
            total.add(bucket)
            if step == MINUTE:
                total.errors.clear()
            self._unsent.append(Row(*split(name), step, begin_of(step, self._minute), self._term(), total))

    def _difference(self, figures: Figures) -> Bucket:
        """Return what was counted since the last writing."""
        before = self._seen.get(figures.name, NOTHING)
        waited, ran = _counts(figures.waited), _counts(figures.ran)
        if before.submitted == figures.submitted and before.outcomes == figures.outcomes and before.ran == ran:
            return Bucket()
        self._seen[figures.name] = _Seen(figures.submitted, figures.outcomes.copy(), waited, ran)
        outcomes = {
            name: number - old
            for name, number, old in zip(OUTCOMES, figures.outcomes, before.outcomes, strict=True)
            if number != old
        }
        return Bucket(
            figures.submitted - before.submitted,
            outcomes,
            _since(before.waited[0], waited[0]),
            waited[1] - before.waited[1],
            _since(before.ran[0], ran[0]),
            ran[1] - before.ran[1],
        )

    def _send(self) -> None:
        if self._sending or not self._unsent:
            return
        self._sending = True
        rows = self._unsent[:BATCH]
        del self._unsent[:BATCH]

        def sent(_: None) -> None:
            self._sending = False
            self._send()

        def refused(_: object) -> None:
            self._sending = False
            self._unsent[:0] = rows  # with the next writing

        oldest = {step: oldest_kept(step, self._clock.wall()) for step in KEPT}
        self._commits.put(SaveSeries(rows, oldest), sent, refused)


def _counts(distribution: Distribution | None) -> tuple[list[int], int]:
    """Return a copy of a distribution; empty for a function that has none of its own."""
    return ([], 0) if distribution is None else (distribution.counts.copy(), distribution.total_us)


def _since(before: list[int], now: list[int]) -> list[int]:
    """Return the difference of two histograms, without zeros at the end."""
    found = [number - (before[place] if before else 0) for place, number in enumerate(now)]
    while found and not found[-1]:
        found.pop()
    return found
