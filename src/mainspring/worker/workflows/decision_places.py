"""The places of a worker for decisions: those of runs whose steps run or wait are free for others.

A node gives a worker so many decisions at a time. A decision whose run only waits for a step takes no time of the worker, but its
lease is needed, so that no other worker executes the step. The worker reports their number, and the node gives it as many others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from mainspring.worker.link import Link
    from mainspring.worker.session import Key
    from mainspring.worker.workflows.run_cache import RunCache
    from mainspring.worker.workflows.runs import Run

DECISIONS: Final = 100
"""Decisions that a worker takes at a time from each node, besides those that only keep a step."""
MOST_KEPT: Final = 1_000
"""Decisions that only keep a step and take no place; further ones do. They bound the steps that no other worker can get."""
FULL_AFTER: Final = 20
"""Ticks without a decision after which a full worker logs it; there are two a second."""
LINE_TICKS: Final = 120
"""Ticks between two such lines."""

_log = structlog.get_logger("mainspring.workflows")


class DecisionPlaces:
    """Counts the decisions of the runs in ``cache``, for each connection that ``agreed`` names."""

    def __init__(self, cache: RunCache) -> None:
        self._cache = cache
        self._reported: dict[Link, int] = {}
        """The last report to each node."""
        self._before: dict[Run, Key] = {}
        """The runs that kept a step at the last tick, with their deliveries."""
        self._decisions = 0
        self._full_ticks = 0

    def agreed(self, link: Link) -> None:
        """Report to a node over a new connection."""
        self._reported[link] = 0

    def lost(self, link: Link) -> None:
        """Forget a connection."""
        self._reported.pop(link, None)

    def tick(self) -> None:
        """Report to the nodes whose places become few; called twice a second."""
        held: dict[Link, int] = dict.fromkeys(self._reported, 0)
        for run in self._cache.deciding():
            if run.link in held:
                held[run.link] += 1
        kept = dict.fromkeys(held, 0)
        now: dict[Run, Key] = {}
        if any(2 * number >= DECISIONS or self._reported[link] for link, number in held.items()):
            for run in self._cache.deciding():
                if run.key is not None and run.keeps_step:
                    now[run] = run.key
                    if self._before.get(run) == run.key and run.link in kept:  # not one whose step is about to end
                        kept[run.link] += 1
        self._before = now
        is_full = False
        for link, number in kept.items():
            report = min(number, MOST_KEPT)
            if report != self._reported[link]:
                self._reported[link] = report
                link.session.keep_steps(report)
                link.flush()
            is_full = is_full or held[link] - report >= DECISIONS
        self._note(sum(kept.values()), is_full=is_full)

    def _note(self, kept: int, *, is_full: bool) -> None:
        """Log that all places are taken and nothing moves."""
        decisions = self._cache.numbers().decisions
        stands = is_full and decisions == self._decisions
        self._full_ticks = self._full_ticks + 1 if stands else 0
        self._decisions = decisions
        if self._full_ticks and (self._full_ticks - FULL_AFTER) % LINE_TICKS == 0 and self._full_ticks >= FULL_AFTER:
            _log.warning(
                "the worker takes no more decisions: all of its places are taken",
                places=DECISIONS,
                steps=kept,
                do="start more workers, or make the long steps activities: await task.submit(…)",
            )
