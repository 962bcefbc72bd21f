"""Jobs that wait a moment for the worker that they prefer, because it can run them with less work than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

J = TypeVar("J")
W = TypeVar("W")

PREFERRED_WAIT = 0.05
"""Seconds for which a job waits for its preferred worker, if that has no credit and another one has. A worker that has a run of a
workflow in memory ends its present decision in a few milliseconds; any other one would have to replay the run."""


class Preference(Generic[J, W]):
    """The preferred workers of a function's jobs, and the jobs that wait for them.

    ``of`` returns the worker that a job prefers; None if it prefers none. Times are monotonic.
    """

    def __init__(self, of: Callable[[J], W | None]) -> None:
        self.of = of
        self._waiting: dict[J, tuple[W, float]] = {}
        """Each job's worker, and the time until which it waits for it; in the order of these times."""
        self._by_worker: dict[W, dict[J, None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def jobs(self) -> list[J]:
        """Return the waiting jobs, oldest first."""
        return list(self._waiting)

    def workers(self) -> list[W]:
        """Return the workers for which jobs wait."""
        return list(self._by_worker)

    def wait(self, job: J, worker: W, now: float) -> None:
        """Let a job wait for its preferred worker."""
        self._waiting[job] = worker, now + PREFERRED_WAIT
        self._by_worker.setdefault(worker, {})[job] = None

    def remove(self, job: J) -> bool:
        """Let a job wait no longer; return False if it did not."""
        entry = self._waiting.pop(job, None)
        if entry is None:
            return False
        worker = entry[0]
        jobs = self._by_worker[worker]
        del jobs[job]
        if not jobs:
            del self._by_worker[worker]
        return True

    def release(self, worker: W) -> list[J]:
        """Let no job wait for a worker any longer; return those that did, oldest first."""
        jobs = list(self._by_worker.pop(worker, ()))
        for job in jobs:
            del self._waiting[job]
        return jobs

    def first_for(self, worker: W) -> J | None:
        """Return the oldest job that waits for a worker."""
        return next(iter(self._by_worker.get(worker, ())), None)

    def overdue(self, now: float) -> J | None:
        """Return the oldest job if it has waited long enough, so that any worker may have it."""
        for job, (_, until) in self._waiting.items():
            return job if until <= now else None
        return None

    def next(self) -> float | None:
        """Return the time at which the oldest job has waited long enough."""
        for _, until in self._waiting.values():
            return until
        return None

    def clear(self) -> None:
        """Forget all waiting jobs."""
        self._waiting.clear()
        self._by_worker.clear()
