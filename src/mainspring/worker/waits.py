"""The waits of a worker's tasks for other jobs, which the tasks report from any thread."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from mainspring.client.awaited_jobs import Awaited
    from mainspring.worker.current import CurrentJob


class Waits:
    """All waits of a worker's tasks.

    ``changed`` is called on the loop after a wait has begun or ended while at least ``places`` tasks wait. With fewer waiting
    tasks, no extra place is needed.
    """

    def __init__(self, places: int, changed: Callable[[], None]) -> None:
        self._places = places
        self._changed = changed
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: dict[Awaited, CurrentJob] = {}  # the oldest wait first
        self._counts: dict[CurrentJob, int] = {}
        self._scheduled = False
        self.begun = 0
        """The number of waits that have begun so far."""

    def attach(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()

    def begin(self, job: CurrentJob, awaited: Awaited) -> None:
        """Record that a task waits for a job; do nothing in a fork of a task."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self.begun += 1
            self._jobs[awaited] = job
            self._counts[job] = self._counts.get(job, 0) + 1
            self._notify(len(self._counts))

    def end(self, awaited: Awaited) -> None:
        """Record that a wait is over; do nothing if that is already recorded."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            job = self._jobs.pop(awaited, None)
            if job is None:
                return
            before = len(self._counts)
            self._counts[job] -= 1
            if not self._counts[job]:
                del self._counts[job]
            self._notify(before)

    def _notify(self, waiting: int) -> None:
        if waiting < self._places or self._scheduled or self._loop is None:
            return
        self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._report)
        except RuntimeError:
            pass  # the loop is closed: the worker has ended

    def _report(self) -> None:
        self._scheduled = False  # first, so that later changes schedule another call
        self._changed()

    # Called on the loop's thread.

    @property
    def many(self) -> bool:
        """Whether enough tasks wait to hold all places."""
        return len(self._counts) >= self._places

    def count(self, jobs: Iterable[CurrentJob]) -> int:
        """Return how many of these jobs wait."""
        with self._lock:
            return sum(job in self._counts for job in jobs)

    def newest(self, jobs: Container[CurrentJob]) -> list[Awaited]:
        """Return the jobs that these jobs wait for, the newest wait first."""
        with self._lock:
            return [awaited for awaited, job in reversed(self._jobs.items()) if job in jobs]

    def of(self, job: CurrentJob) -> list[Awaited]:
        """Return the jobs that one job waits for."""
        with self._lock:
            return [awaited for awaited, other in self._jobs.items() if other is job] if job in self._counts else []
