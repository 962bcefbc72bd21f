"""Suspects: jobs that may be the cause of lost workers or nodes. They run alone, or a few at a time.

*Suspects of lost workers* (`IsolationQueue`). Workers of the extension that can isolate (``worker.isolates``) run such a job in a
separate process, so that they are not lost with it. If a function has no such worker, the node runs one such job at a time: a
worker that is then lost with other jobs had only one suspect.

*Suspects of lost nodes* (`Suspects`) begin one after the other, because one of them may kill nodes. Each is recorded as running
before it is handed out: if the node does not survive it, an attempt of that job is counted. The next one begins when it has
ended,
or has run for a while: a job that kills a node mostly does so at once, and a job that runs for an hour must not delay the others.
Suspects that are still running then count an attempt if the node is lost, as any other running job does. Functions take turns,
and
a function whose workers are all busy passes its turn on.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mainspring.jobs.model import State
from mainspring.jobs.store import Assign

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.held import FunctionQueue, Held
    from mainspring.jobs.table import Context

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


ALONE_FOR: Final = 10.0
"""Seconds for which no other suspect begins after one has begun."""
WORKER_WAIT: Final = 1.0
"""Seconds that a suspect waits for a worker before another function has its turn."""
MAX_RUNNING: Final = 8
"""The most suspects that run at the same time."""


class Suspects:
    """The suspects of a node. They are held, and in no function queue before their turn. ``serve`` hands out a queue's jobs."""

    def __init__(self, context: Context, serve: Callable[[FunctionQueue], None]) -> None:
        self._dispatch, self._commits, self._timers = context.dispatch, context.commits, context.timers
        self._clock = context.clock
        self._serve = serve
        self._waiting: dict[FunctionQueue, deque[Held]] = {}
        """By function, in the order of the turns."""
        self._running: dict[Held, None] = {}
        """The suspects that run on after their turn."""
        self.alone: Held | None = None
        """The suspect whose turn it is: it is being recorded, waits for its worker, or has not run for long."""

    def add(self, held: Held) -> None:
        """Add a job that waits for its turn; ``next`` begins the turn."""
        self._waiting.setdefault(held.queue, deque()).append(held)

    def of(self, queue: FunctionQueue) -> list[Held]:
        """Return the jobs of a function that wait for their turn."""
        return list(self._waiting.get(queue, ()))

    def next(self) -> None:
        """Record the next suspect as running, unless another one has its turn, and then hand it out."""
        if self.alone is not None or not self._waiting or len(self._running) >= MAX_RUNNING or self._dispatch.paused:
            return
        queue = next(iter(self._waiting))
        waiting = self._waiting.pop(queue)
        held = self.alone = waiting.popleft()
        if waiting:
            self._waiting[queue] = waiting  # behind the other functions
        if held.recorded:  # it had its turn already, and no worker was free
            self._dispatch.restore(held)
            self._admit(held)
            return
        held.recorded = True
        self._commits.put(Assign([held.job]), lambda _: self._recorded(held), lambda _: self._not_recorded(held))

    def _recorded(self, held: Held) -> None:
        if self.alone is held:  # otherwise it was cancelled or given back meanwhile
            held.job.state = int(State.RUNNING)
            self._dispatch.push(held, first=True)
            self._admit(held)

    def _not_recorded(self, held: Held) -> None:
        """Postpone a suspect whose record failed; periodic work begins the next turn."""
        if self.alone is held:
            held.recorded = False
            self._put_off(held)

    def _admit(self, held: Held) -> None:
        self._timers.at(self._clock.monotonic() + WORKER_WAIT, lambda: self._look_for_worker(held))
        self._serve(held.queue)

    def _look_for_worker(self, held: Held) -> None:
        if self.alone is not held:
            return
        now = self._clock.monotonic()
        if held.worker is not None:
            self._timers.at(now + ALONE_FOR - WORKER_WAIT, lambda: self._end_turn(held))
        elif any(queue is not held.queue for queue in self._waiting):
            self._dispatch.drop(held)
            self._put_off(held)
            self.next()
        else:
            self._timers.at(now + WORKER_WAIT, lambda: self._look_for_worker(held))

    def _put_off(self, held: Held) -> None:
        """Let a job wait again: as the first of its function, which has the last turn."""
        self.alone = None
        waiting = self._waiting.pop(held.queue, deque())
        waiting.appendleft(held)
        self._waiting[held.queue] = waiting

    def _end_turn(self, held: Held) -> None:
        if self.alone is held:
            self.alone = None
            self._running[held] = None
            self.next()

    def left(self, held: Held) -> None:
        """Remove a job that is no longer held; if it had its turn or was running, begin the next turn."""
        waiting = self._waiting.get(held.queue)
        if held is self.alone:
            self.alone = None
            self.next()
        elif held in self._running:
            del self._running[held]
            self.next()
        elif waiting is not None and held in waiting:
            waiting.remove(held)
            if not waiting:
                del self._waiting[held.queue]
