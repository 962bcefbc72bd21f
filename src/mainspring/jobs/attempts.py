"""A node's statistics about attempts: their outcomes, their durations, and the waiting times of their jobs.

Any client can name new functions, so the figures are bounded: `MAX_COUNTED` functions have their own counters, and
the `MAX_MEASURED` busiest of them have their own distributions. All others are counted together, as `OTHER`.

No figure ever decreases. A function that has counters keeps them. When a function is no longer among the busiest, its
distributions are kept but not shown, and its attempts are counted as `OTHER`. When it is among the busiest again, its own
distributions continue.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Final

from mainspring.jobs.error_groups import ErrorGroups
from mainspring.jobs.rules import WORKER_LOST, Event, Outcome, was_tried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement

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
