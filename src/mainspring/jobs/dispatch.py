"""Matching jobs in memory to workers that wait: a state machine without I/O.

Within a function, higher priorities go first, and within a priority older jobs. A plain worker sleeps until it is woken, and
then asks; at any time as many sleepers are woken as there are jobs for them, not more. A woken worker may stay silent, ask for
a job of another function, or leave: each of these wakes the next one. A streaming worker is handed jobs while it has credit.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from mainspring.jobs.held import Ability, FunctionQueue, Held, Worker
from mainspring.jobs.key_queue import merge_by_age
from mainspring.jobs.names import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Effect = tuple[Worker, "Held | None"]
"""Hand the job to the worker; without a job, wake it."""

_NO_ABILITY = Ability()
MAX_IDLE_FUNCTIONS = 1000
"""Functions that are kept although nobody here has to do with them; of more, those are rows of the store alone."""
FUNCTIONS_PER_STEP = 1000
"""Functions that are looked at in one step."""
MAX_DROPPED = 1000
"""So many jobs that were taken out may stay in a queue until somebody meets them."""


class Dispatch:
    """The functions and their queues.

    ``round_robin``: a worker's functions take turns; otherwise they are drained in reverse order of registration, as gearmand
    does. ``wakeup``: how many sleepers are woken for one job, 0 for all: one is enough. ``most``: how many functions there may
    be, with those that are rows of the store; 0 for any number. ``on_new_queue`` is called with each new queue. On a
    shared store ``lease_valid`` returns whether the node still holds its lease, and with it its jobs.
    """

    def __init__(
        self,
        *,
        round_robin: bool = False,
        wakeup: int = 1,
        most: int = 0,
        on_new_queue: Callable[[FunctionQueue], None] | None = None,
        lease_valid: Callable[[], bool] | None = None,
    ) -> None:
        self.queues: dict[bytes, FunctionQueue] = {}
        self.order: list[FunctionQueue] = []
        """The same by their serials, with some that were forgotten since."""
        self.complete = True
        """Every function that has jobs in the store has its queue here. It never holds again once they were too many."""
        self.rows = Rows()
        """Those that have none."""
        self.most = most
        self._on_new_queue = on_new_queue
        self._serial = 0
        self.workers: dict[Worker, None] = {}
        self.paused = False
        """No job is handed out: the node ends, drains or has no term."""
        self._lease_valid = lease_valid
        self._round_robin = round_robin
        self._wakeup = wakeup or 1_000_000

    def queue(self, name: bytes) -> FunctionQueue:
        """Return a function's queue, a new one for a new name: this node has to do with it."""
        queue = self.queues.get(name)
        if queue is None:
            self._serial += 1
            queue = self.queues[name] = FunctionQueue(name, self._serial)
            self.order.append(queue)
            self.rows.left(name)
            if self._on_new_queue is not None:
                self._on_new_queue(queue)
        return queue

    def tracked(self, name: bytes) -> FunctionQueue | None:
        """Return a function's queue for what the store has of it; None where the store alone counts that."""
        queue = self.queues.get(name)
        if queue is None:
            if not self.complete or len(self.queues) >= MAX_IDLE_FUNCTIONS:
                self.complete = False
                self.rows.add(name)
                return None
            queue = self.queue(name)
        return queue

    def admits(self, name: bytes) -> bool:
        """Return whether a job or a worker may name a function: it is known, or there is room for one more."""
        return (
            not self.most
            or name in self.queues
            or (not self.complete and name in self.rows)
            or len(self.queues) + self.rows.number < self.most
        )

    def limit_queue(self, name: bytes, maximum: tuple[int, int, int] | None) -> None:
        """Set the ``maxqueue`` of a function that is known."""
        queue = self.queues.get(name)
        if queue is None and name in self.rows:
            queue = self.queue(name)
        if queue is not None:
            queue.maximum = maximum

    def may_live(self, name: bytes) -> bool:
        """Return whether the store may have jobs of a function that have not ended."""
        queue = self.queues.get(name)
        return not self.complete if queue is None else bool(queue.live) or not queue.counted

    def tidy(self) -> Iterator[None]:
        """Forget functions that nobody here has to do with, where they are many: what is left of them is in the store.

        Each step looks at some of them, and lets go of them: to free very many at once takes its time, too.
        """
        many = len(self.queues) - (min(MAX_IDLE_FUNCTIONS, self.most // 10) if self.most else MAX_IDLE_FUNCTIONS)
        start = 0
        while part := self.order[start : start + FUNCTIONS_PER_STEP]:
            kept = []
            for queue in part:
                if self.queues.get(queue.name) is not queue:
                    continue
                if queue.admission is not None:
                    queue.admission.tidy()
                if many > 0 and queue.is_idle():
                    del self.queues[queue.name]
                    if queue.live:
                        self.complete = False
                        self.rows.add(queue.name)
                    many -= 1
                else:
                    kept.append(queue)
            self.order[start : start + len(part)] = kept
            start += len(kept)
            yield

    # ---- workers ----

    def register(self, worker: Worker, name: bytes, ability: Ability = _NO_ABILITY) -> FunctionQueue:
        """A worker can run a function; one that it registers again is its newest."""
        queue = self.queue(name)
        self.workers[worker] = None
        worker.abilities.pop(queue, None)
        worker.abilities[queue] = ability
        queue.workers[worker] = queue.workers.get(worker, 0) + 1
        if worker.credit > 0:
            queue.takers[worker] = None
        if worker.asleep:
            queue.sleepers[worker] = None
        return queue

    def unregister(self, worker: Worker, queue: FunctionQueue) -> None:
        """A worker can no longer run a function."""
        worker.abilities.pop(queue, None)
        queue.workers.pop(worker, None)
        queue.sleepers.pop(worker, None)
        queue.takers.pop(worker, None)
        if worker.woken_for is queue:
            self.answered(worker)

    def leave(self, worker: Worker) -> None:
        """A worker is gone: it gets nothing more. What it ran is in ``worker.running``, and it is still to be unregistered."""
        worker.gone = True
        worker.credit = worker.grabbing = 0
        self.answered(worker)
        self.workers.pop(worker, None)

    @staticmethod
    def offer(worker: Worker) -> None:
        """A worker takes jobs as they come, while it has credit."""
        for queue in worker.abilities:
            queue.takers[worker] = None

    @staticmethod
    def withdraw(worker: Worker) -> None:
        """A worker takes no more jobs as they come."""
        worker.credit = 0
        for queue in worker.abilities:
            queue.takers.pop(worker, None)

    def sleep(self, worker: Worker) -> bool:
        """A worker goes to sleep; True where there is work for it, so that it is woken at once."""
        self.workers[worker] = None
        self.answered(worker)
        for queue in worker.abilities:
            if queue.size > queue.woken and not self.holds_back() and queue.startable(queue.woken + 1) > queue.woken:
                self.rouse(worker)
                self._wake(worker, queue)
                return True
        worker.asleep = True
        for queue in worker.abilities:
            queue.sleepers[worker] = None
        return False

    @staticmethod
    def _wake(worker: Worker, queue: FunctionQueue) -> None:
        worker.woken_for = queue
        queue.woken += 1

    def rouse(self, worker: Worker) -> None:
        """A worker is no longer asleep: it was woken, or does something of its own accord."""
        if worker.asleep:
            worker.asleep = False
            for queue in worker.abilities:
                queue.sleepers.pop(worker, None)

    def answered(self, worker: Worker) -> FunctionQueue | None:
        """A worker that was woken has done something, or never will; returns the function that it was woken for."""
        queue = worker.woken_for
        if queue is not None:
            worker.woken_for = None
            queue.woken -= 1
        return queue

    # ---- jobs ----

    def pause(self) -> None:
        """Hand out no job until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Hand out jobs again."""
        self.paused = False

    def holds_back(self) -> bool:
        """Return whether nothing may be handed out at this moment."""
        return self.paused or (self._lease_valid is not None and not self._lease_valid())

    @staticmethod
    def push(held: Held, *, first: bool = False) -> None:
        """A job waits for a worker; ``first``: before the others of its priority, for one that had its turn already."""
        queue = held.queue
        queue.size += 1
        held.queued = True
        if queue.admission is not None:
            queue.admission.push(held, first=first)
        elif first:
            queue.ready_queues()[held.job.priority].appendleft(held)
        else:
            queue.ready_queues()[held.job.priority].append(held)

    @staticmethod
    def merge(queue: FunctionQueue, claimed: list[Held]) -> None:
        """Let jobs of the store wait, each priority in the order in which it came, in their places among those that are here.

        Foreground jobs are here at once and take no places in the window, so that stored ones may be older than they.
        """
        for held in claimed:
            held.queued = True
        queue.size += len(claimed)
        if queue.admission is not None:
            queue.admission.merge(claimed)
            return
        for priority, ready in enumerate(queue.ready_queues()):
            merge_by_age(ready, deque(held for held in claimed if held.job.priority == priority))

    @staticmethod
    def drop(held: Held) -> None:
        """Take a job out that may wait in its queue."""
        if held.queued:
            held.queued = False
            queue = held.queue
            queue.size -= 1
            if queue.admission is not None:
                queue.admission.drop(held)
                return
            queue.dropped += 1
            if queue.dropped > MAX_DROPPED and queue.dropped > queue.size:
                # Where nobody asks for jobs, nobody passes over them: clients that come and leave must not fill the memory.
                queue.dropped = 0
                for ready in queue.ready:
                    waiting = [other for other in ready if other.queued]
                    ready.clear()
                    ready.extend(waiting)

    @staticmethod
    def restore(held: Held) -> None:
        """Let a job that was taken out wait again, before the others of its priority."""
        with contextlib.suppress(ValueError):
            # Nobody may have met it yet, and it must not be there twice.
            held.queue.ready_queues()[held.job.priority].remove(held)
        Dispatch.push(held, first=True)

    @staticmethod
    def pop(queue: FunctionQueue) -> Held | None:
        """Take the next job of a function."""
        if queue.size:
            if queue.admission is not None:
                held = queue.admission.pop()
                if held is not None:
                    held.admission = queue.admission
                    held.queued = False
                    queue.size -= 1
                return held
            for ready in queue.ready:
                while ready:
                    held = ready.popleft()
                    if held.queued:
                        held.queued = False
                        queue.size -= 1
                        return held
        return None

    def grab(self, worker: Worker) -> Held | None:
        """Give a worker the next job of its functions."""
        if self.holds_back():
            return None
        queues = list(worker.abilities)
        if len(queues) == 1:
            return self.pop(queues[0])
        if self._round_robin and queues:
            worker.turn %= len(queues)
            for turn in range(len(queues)):
                at = (worker.turn + turn) % len(queues)
                held = self.pop(queues[at])
                if held is not None:
                    worker.turn = at + 1
                    return held
            return None
        for queue in reversed(queues):
            held = self.pop(queue)
            if held is not None:
                return held
        return None

    def match(self, queue: FunctionQueue) -> Iterator[Effect]:
        """Hand a function's jobs to workers that take them as they come, and wake sleepers for the rest."""
        if self.holds_back():
            return
        takers = queue.takers
        while queue.size and takers:
            worker = next(iter(takers))
            if worker.gone:
                del takers[worker]
                continue
            held = self.pop(queue)
            if held is None:
                break
            worker.credit -= 1
            if worker.credit > 0:  # they take turns
                del takers[worker]
                takers[worker] = None
            else:
                self.withdraw(worker)
            yield worker, held
        while queue.sleepers and queue.startable(queue.woken + 1) * self._wakeup > queue.woken:
            worker = next(iter(queue.sleepers))
            if worker.gone:
                del queue.sleepers[worker]
                continue
            self.rouse(worker)
            self._wake(worker, queue)
            yield worker, None
