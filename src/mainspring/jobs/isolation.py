"""Jobs that were running in workers which were lost: each in a process of its own, and few at a time.

Workers of the extension that can do it (``worker.isolates``) run such a job in a process that has no other, so that they are not
lost with it. Where a function has none of them, one such job of this node is under way at a time: what is lost then with other
jobs beside it, is not lost because of two suspects.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.held import FunctionQueue, Held

JOBS_PER_WORKER: Final = 8
"""Such jobs of one function that are under way at a time for each worker of it: a process of its own may take much memory."""
MAX_ISOLATED: Final = 1000
"""Where so many of one function wait, nothing more of it is claimed: they are in memory."""


class IsolationQueue:
    """Those of a node. They are held, and stand in no queue before their turn.

    ``serve`` calls ``next`` for a queue, and hands out what is in it: its workers may be asleep.
    """

    def __init__(self, dispatch: Dispatch, serve: Callable[[FunctionQueue], None]) -> None:
        self._dispatch = dispatch
        self._serve = serve
        self.waiting: dict[FunctionQueue, deque[Held]] = {}
        self._out: dict[FunctionQueue, dict[Held, None]] = {}

    def add(self, held: Held) -> None:
        """Let a job wait for its turn; serving its queue begins it."""
        self.waiting.setdefault(held.queue, deque()).append(held)

    def of(self, queue: FunctionQueue) -> list[Held]:
        """Return the jobs of a function that wait for their turn."""
        return list(self.waiting.get(queue, ()))

    def is_full(self, queue: FunctionQueue) -> bool:
        """Return whether too many of a function wait."""
        return queue in self.waiting and len(self.waiting[queue]) >= MAX_ISOLATED

    def next(self, queue: FunctionQueue) -> None:
        """Put those of a function into its queue whose turn it is."""
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
        """A job waits no longer, or its worker has it no longer; where it had its turn, the next one has it."""
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
