"""A node's figures about attempts: how they ended, how long they ran, and how long their jobs had waited before.

Any client can name new functions, so the figures are bounded: `MAX_COUNTED` functions have counters of their own, and
the `MAX_MEASURED` busiest of them have distributions of their own. All others are counted together, as `OTHER`.

No figure ever falls. A function that was given counters keeps them. One that is no longer among the busiest keeps what its
distributions have, unseen; its attempts are counted as `OTHER` from then on, until it is among the busiest again and its own
distributions go on where they were.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from mainspring.jobs.rules import WORKER_LOST, Event, Outcome, was_tried

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement

MAX_COUNTED: Final = 1000
MAX_MEASURED: Final = 100
OTHER: Final = b"_other"
"""The name that stands for all functions without figures of their own. A function that really has this name is among them."""
RANK_INTERVAL: Final = 60.0
"""Seconds between two looks at which functions are the busiest."""
STAY_FACTOR: Final = 2.0
"""A function takes the place of another one with fewer than half as many attempts: figures should not come and go."""

BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""The upper bounds of the distributions, in seconds. Longer durations are counted, too."""
OUTCOMES: Final = ("succeeded", "failed", "retried", "timed_out", "lost", "cancelled", "released", "snoozed")
"""``retried``: a failure that its worker reported, after which the job runs again; ``failed``: one after which it does not."""

_BOUNDS_US: Final = [round(bound * 1_000_000) for bound in BOUNDS]
_PLACES: Final = {outcome: OUTCOMES.index(outcome.value) for outcome in Outcome}
_SUCCEEDED: Final = Outcome.SUCCEEDED
_RETRIED: Final = OUTCOMES.index("retried")


class Distribution:
    """How many durations were up to each of `BOUNDS` (and above the one before), and above the last; and their sum.

    `Attempts` adds to them itself: a call for each attempt would cost as much as the rest.
    """

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total_us = 0


class Figures:
    """What was counted of one function, or of `OTHER`."""

    __slots__ = ("busy", "name", "outcomes", "ran", "ran_counts", "ranked", "waited", "waited_counts")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.outcomes = [0] * len(OUTCOMES)
        self.ran: Distribution | None = None
        self.waited: Distribution | None = None
        """Its own distributions; None where it was never among the busiest."""
        self.ran_counts: Distribution
        self.waited_counts: Distribution
        """Where its attempts are counted: in its own distributions or in those of `OTHER`."""
        self.ranked = 0
        """How many attempts it had at the last ranking."""
        self.busy = 0.0
        """How many attempts it had recently: at each ranking, earlier ones count half as much as before."""

    def measure(self) -> None:
        """Count in its own distributions from now on."""
        if self.ran is None or self.waited is None:
            self.ran, self.waited = Distribution(), Distribution()
        self.ran_counts, self.waited_counts = self.ran, self.waited

    @property
    def measured(self) -> bool:
        """Whether it is counted in its own distributions now."""
        return self.ran_counts is self.ran


def waited_us(job: Job, started_us: int) -> int:
    """Return how long a job had waited when an attempt started: since it was submitted, or was due; -1 where that is not known.

    The time at which a job went back to its place after an attempt is not recorded. The job is as it was at the start.
    """
    since_us = job.due_us
    if since_us < job.created_us and not was_tried(job):
        since_us = job.created_us
    if not since_us:
        return -1
    return max(started_us - since_us, 0)  # the clock of the node that took it may be ahead


class Attempts:
    """Counts a node's attempts when they have ended, many at a time; everything else happens when the figures are read."""

    def __init__(self) -> None:
        self._other = Figures(OTHER)
        self._other.measure()
        self._functions: dict[bytes, Figures] = {}
        self._measured = 0
        self._ranked_at = float("-inf")

    # ---- for ended attempts ----

    def ended(self, settlements: Sequence[Settlement]) -> None:
        """Count attempts that have ended; see ``AttemptsEnded``."""
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
                # As in `waited_us`: nobody changes the job any more. A call for each would cost as much as the rest.
                since_us, created_us = job.due_us, job.created_us
                if since_us < created_us and settlement.counted == 1 and job.suspects < WORKER_LOST:
                    since_us = created_us
                waited_us = settlement.started_us - since_us if since_us else -1
                if waited_us < 0 and since_us:
                    waited_us = 0
            elif outcome is Outcome.FAILED and settlement.event is Event.RETRY:
                figures.outcomes[_RETRIED] += 1
                waited_us = settlement.waited_us
            else:
                figures.outcomes[_PLACES[outcome]] += 1
                waited_us = settlement.waited_us
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
        """Return the figures at this moment (monotonic seconds), those of `OTHER` last."""
        if now - self._ranked_at >= RANK_INTERVAL:
            self._ranked_at = now
            self._rank()
        yield from self._functions.values()
        yield self._other

    def _rank(self) -> None:
        """Find the busiest functions."""
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
