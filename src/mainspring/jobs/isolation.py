"""Isolation of jobs that ran in lost workers: each runs in a process of its own, and few run at a time.

Workers of the extension that can isolate (``worker.isolates``) run such a job in a separate process, so that they are not lost
with it. If a function has no such worker, the node runs one such job at a time: a worker that is then lost with other jobs had
only one suspect.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.held import FunctionQueue, Held

JOBS_PER_WORKER: Final = 8
"""Such jobs of one function that run at a time for each of its workers: each process may need much memory."""
MAX_ISOLATED: Final = 1000
"""Waiting jobs of one function at which claims for it stop: they are in memory."""


class IsolationQueue:
    """The isolated jobs of a node. They are held, and in no function queue before their turn.

    ``serve`` calls ``next`` for a queue, and hands out its jobs: its workers may be asleep.
    """

    def __init__(self, dispatch: Dispatch, serve: Callable[[FunctionQueue], None]) -> None:
        self._dispatch = dispatch
        self._serve = serve
        self.waiting: dict[FunctionQueue, deque[Held]] = {}
        self._out: dict[FunctionQueue, dict[Held, None]] = {}

    def add(self, held: Held) -> None:
        """Add a job that waits for its turn; serving its queue begins the turn."""
        self.waiting.setdefault(held.queue, deque()).append(held)

    def of(self, queue: FunctionQueue) -> list[Held]:
        """Return the jobs of a function that wait for their turn."""
        return list(self.waiting.get(queue, ()))

    def is_full(self, queue: FunctionQueue) -> bool:
        """Return whether too many jobs of a function wait."""
        return queue in self.waiting and len(self.waiting[queue]) >= MAX_ISOLATED

    def next(self, queue: FunctionQueue) -> None:
        """Put the jobs of a function whose turn it is into its queue."""
        waiting = self.waiting.get(queue)
        while waiting and self._has_room(queue):
            held = waiting.popleft()
            self._out.setdefault(queue, {})[held] = None
            self._dispatch.push(held, first=True)
        if waiting is not None and not waiting:
            del self.waiting[queue]

    def _has_room(self, queue: FunctionQueue) -> bool:
        isolating = sum(worker.isolates for worker in queue.workers)
        if isolating:
            return len(self._out.get(queue, ())) < JOBS_PER_WORKER * isolating
        return not self._out

    def left(self, held: Held) -> None:
        """Remove a job that its worker has left, or that waits no longer; the end of its turn begins the next turn."""
        queue = held.queue
        waiting = self.waiting.get(queue)
        if waiting is not None and held in waiting:
            waiting.remove(held)
            if not waiting:
                del self.waiting[queue]
        out = self._out.get(queue)
        if out is not None and held in out:
            del out[held]
            if not out:
                del self._out[queue]
            for other in list(self.waiting):
                if self._has_room(other):
                    self._serve(other)
