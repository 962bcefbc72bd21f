"""A node's statistics about attempts: their outcomes, errors, durations, and the waiting times of their jobs.

Any client can name new functions, so the figures are bounded: `MAX_COUNTED` functions have their own counters, and
the `MAX_MEASURED` busiest of them have their own distributions. All others are counted together, as `OTHER`.

No figure ever decreases. A function that has counters keeps them. When a function is no longer among the busiest, its
distributions are kept but not shown, and its attempts are counted as `OTHER`. When it is among the busiest again, its own
distributions continue.

`Recorder` writes the series of the functions to the store every few seconds, from the differences of their figures. So jobs
and attempts cost no more than the figures themselves, and a store gets rows of functions that were used alone. Jobs may also
begin or cease to wait without figures, for example where they are cancelled without a worker: once a minute, the numbers of
waiting jobs of all other functions in memory are compared. Failed attempts are also grouped by type of error (`ErrorGroups`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.clock import to_us
from mainspring.jobs.model import UNREADABLE, decode_failure
from mainspring.jobs.rules import WORKER_LOST, Event, Outcome, was_tried
from mainspring.namespaces import SEPARATOR, split
from mainspring.series import (
    HALF_HOUR,
    KEPT,
    MESSAGE_LIMIT,
    MINUTE,
    Bucket,
    ErrorGroup,
    Row,
    SaveSeries,
    add_error,
    begin_of,
    oldest_kept,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mainspring.clock import Clock
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement
    from mainspring.storage.commit_queue import CommitQueue

UNKNOWN_ERROR = "unknown"
"""The type of a failure that is not readable."""
_ERROR_TYPES = {Outcome.LOST: "WorkerLost", Outcome.TIMED_OUT: "Timeout"}


class ErrorGroups:
    """Groups failed attempts until they are taken. ``now_us`` returns the wall time in microseconds."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._groups: dict[bytes, dict[str, ErrorGroup]] = {}

    def add(self, function: bytes, settlement: Settlement) -> None:
        """Add an attempt that failed, timed out or was lost. ``function`` is the name under which it is counted."""
        kind, message = _ERROR_TYPES.get(settlement.outcome or Outcome.FAILED, UNKNOWN_ERROR), settlement.why
        if settlement.error:
            failed = decode_failure(settlement.error)
            if failed.type != UNREADABLE:
                kind, message = failed.type, failed.message
        now_us = self._now_us()
        group = ErrorGroup(1, now_us, now_us, settlement.job.id, message.partition("\n")[0][:MESSAGE_LIMIT])
        add_error(self._groups.setdefault(function, {}), kind[:MESSAGE_LIMIT], group)

    def take(self) -> dict[bytes, dict[str, ErrorGroup]]:
        """Return the groups by function and type, and begin with none."""
        taken, self._groups = self._groups, {}
        return taken


MAX_COUNTED: Final = 1000
MAX_MEASURED: Final = 100
OTHER: Final = b"_other"
"""The name of all functions without their own figures. A function with this very name is counted with them."""
RANK_INTERVAL: Final = 60.0
"""Seconds between two rankings of the functions."""
STAY_FACTOR: Final = 2.0
"""A function replaces a measured one only if it has more than this many times its attempts: figures should not come and go."""

BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""The upper bounds of the distributions, in seconds. Longer durations are also counted."""
OUTCOMES: Final = ("succeeded", "failed", "retried", "timed_out", "lost", "cancelled", "released", "snoozed")
"""``retried``: a failure that the worker reported and after which the job runs again; ``failed``: the job does not run again."""

_BOUNDS_US: Final = [round(bound * 1_000_000) for bound in BOUNDS]
_PLACES: Final = {outcome: OUTCOMES.index(outcome.value) for outcome in Outcome}
_SUCCEEDED: Final = Outcome.SUCCEEDED
_ERRORS: Final = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST})
_RETRIED: Final = OUTCOMES.index("retried")


class Distribution:
    """A histogram of durations with the upper bounds `BOUNDS` and one more bin above the last; and the sum of the durations.

    `Attempts` writes its fields directly: a call for each attempt would double the cost.
    """

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total_us = 0


class Figures:
    """The figures of one function, or of `OTHER`."""

    __slots__ = ("busy", "name", "outcomes", "ran", "ran_counts", "ranked", "submitted", "waited", "waited_counts")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.submitted = 0
        """New jobs, without those that joined others."""
        self.outcomes = [0] * len(OUTCOMES)
        self.ran: Distribution | None = None
        self.waited: Distribution | None = None
        """Its own distributions; None if it was never among the busiest."""
        self.ran_counts: Distribution
        self.waited_counts: Distribution
        """The distributions that count its attempts: its own or those of `OTHER`."""
        self.ranked = 0
        """The number of attempts at the last ranking."""
        self.busy = 0.0
        """The number of recent attempts: each ranking halves the weight of earlier ones."""

    def measure(self) -> None:
        """Count in the function's own distributions from now on."""
        if self.ran is None or self.waited is None:
            self.ran, self.waited = Distribution(), Distribution()
        self.ran_counts, self.waited_counts = self.ran, self.waited

    @property
    def measured(self) -> bool:
        """Whether the function's own distributions count its attempts now."""
        return self.ran_counts is self.ran


def waited_us(job: Job, started_us: int) -> int:
    """Return how long a job had waited at the start of an attempt, since its submission or due time; -1 if that is unknown.

    The time at which a job was requeued after an attempt is not recorded. ``job`` is as it was at the start.
    """
    since_us = job.due_us
    if since_us < job.created_us and not was_tried(job):
        since_us = job.created_us
    if not since_us:
        return -1
    return max(started_us - since_us, 0)  # the clock of the node that accepted it may be ahead


class Attempts:
    """Counts a node's new jobs and ended attempts in batches. All other work is done when the figures are read.

    ``now_us`` returns the wall time in microseconds. ``errors`` has the failed attempts by type.
    """

    def __init__(self, now_us: Callable[[], int] = lambda: 0) -> None:
        self.errors = ErrorGroups(now_us)
        self._other = Figures(OTHER)
        self._other.measure()
        self._functions: dict[bytes, Figures] = {}
        self._measured = 0
        self._ranked_at = float("-inf")

    # ---- for new jobs and ended attempts ----

    def submitted(self, jobs: Sequence[Job]) -> None:
        """Count new jobs."""
        functions = self._functions
        if len(jobs) == 1:
            name = jobs[0].function
            (functions.get(name) or self._begin(name)).submitted += 1
            return
        for name, number in Counter([job.function for job in jobs]).items():
            (functions.get(name) or self._begin(name)).submitted += number

    def ended(self, settlements: Sequence[Settlement]) -> None:
        """Count ended attempts; see ``AttemptsEnded``."""
        functions = self._functions
        for settlement in settlements:
            outcome = settlement.outcome
            if outcome is None:
                continue  # no worker had the job
            job = settlement.job
            name = job.function
            figures = functions.get(name) or self._begin(name)
            if outcome is _SUCCEEDED:
                figures.outcomes[0] += 1
                # As in `waited_us`: the job does not change any more. A call for each attempt would double the cost.
                since_us, created_us = job.due_us, job.created_us
                if since_us < created_us and settlement.counted == 1 and job.suspects < WORKER_LOST:
                    since_us = created_us
                waited_us = settlement.started_us - since_us if since_us else -1
                if waited_us < 0 and since_us:
                    waited_us = 0
            elif outcome is Outcome.FAILED and settlement.event is Event.RETRY:
                figures.outcomes[_RETRIED] += 1
                waited_us = settlement.waited_us
                self.errors.add(figures.name, settlement)
            else:
                figures.outcomes[_PLACES[outcome]] += 1
                waited_us = settlement.waited_us
                if outcome in _ERRORS:
                    self.errors.add(figures.name, settlement)
            if waited_us >= 0:
                waited = figures.waited_counts
                waited.counts[bisect_left(_BOUNDS_US, waited_us)] += 1
                waited.total_us += waited_us
            us = settlement.ran_us
            if us > 0:
                ran = figures.ran_counts
                ran.counts[bisect_left(_BOUNDS_US, us)] += 1
                ran.total_us += us

    def _begin(self, name: bytes) -> Figures:
        if len(self._functions) >= MAX_COUNTED or name == OTHER:
            return self._other
        figures = self._functions[name] = Figures(name)
        if self._measured < MAX_MEASURED:
            self._measured += 1
            figures.measure()
        else:
            self._count_with_others(figures)
        return figures

    def _count_with_others(self, figures: Figures) -> None:
        figures.ran_counts, figures.waited_counts = self._other.ran_counts, self._other.waited_counts

    # ---- for a reader ----

    def figures(self, now: float) -> Iterator[Figures]:
        """Return the figures at ``now`` (monotonic seconds), those of `OTHER` last."""
        if now - self._ranked_at >= RANK_INTERVAL:
            self._ranked_at = now
            self._rank()
        yield from self._functions.values()
        yield self._other

    def _rank(self) -> None:
        """Rank the functions, and measure the busiest."""
        functions = self._functions.values()
        for figures in functions:
            total = sum(figures.outcomes)
            figures.busy = figures.busy / 2 + total - figures.ranked
            figures.ranked = total
        if len(self._functions) <= MAX_MEASURED:
            return
        busiest = heapq.nlargest(
            MAX_MEASURED, functions, key=lambda one: (one.busy * (STAY_FACTOR if one.measured else 1), one.measured)
        )
        for figures in set(functions).difference(busiest):
            self._count_with_others(figures)
        for figures in busiest:
            figures.measure()


RECORD_INTERVAL: Final = 5.0
"""Seconds between two writings in one minute. A later writing replaces the rows of an earlier one."""
SERIES_PER_OPERATION: Final = 250
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
        self._next = clock.monotonic() + RECORD_INTERVAL
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
        self._next = now + RECORD_INTERVAL
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
        rows = self._unsent[:SERIES_PER_OPERATION]
        del self._unsent[:SERIES_PER_OPERATION]

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
