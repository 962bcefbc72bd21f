"""Matching of jobs in memory to waiting workers: a state machine without I/O.

Within a function, higher priorities go first, and within a priority older jobs. A plain worker sleeps until it is woken, and
then requests a job; no more sleepers are awake than there are jobs for them. A woken worker may stay silent, request a job of
another function, or leave: each of these wakes the next one. A streaming worker receives jobs while it has credit.

`match_preferred` matches a function's jobs to the workers that they prefer.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from typing import TYPE_CHECKING

from mainspring.access.caller import LOCAL
from mainspring.jobs.admission import merge_by_age
from mainspring.jobs.held import Ability, FunctionQueue, Held, Preference, Rows, Worker
from mainspring.namespaces import DEFAULT, RESERVE, namespace_of, places_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.access.caller import Caller
    from mainspring.jobs.model import Job

Effect = tuple[Worker, "Held | None"]
"""Hand the job to the worker; without a job, wake it."""

_NO_ABILITY = Ability()
MAX_IDLE_FUNCTIONS = 1000
"""Idle functions that are kept in memory; further idle functions are rows of the store alone."""
MAX_NEW_ROWS = 1000
"""New functions whose first jobs are awaited: some of them may be refused."""
FUNCTIONS_PER_STEP = 1000
"""Functions that one step processes."""
MAX_DROPPED = 1000
"""Removed jobs whose entries may stay in a queue."""


class Dispatch:
    """The functions and their queues.

    ``round_robin``: a worker's functions take turns; otherwise they are drained in reverse order of registration, as gearmand
    does. ``wakeup``: how many sleepers are woken for one job, 0 for all: one is enough. ``most``: the most functions, including
    those that are rows of the store; 0 for any number. ``on_new_queue`` is called with each new queue. On a shared store
    ``may_hand_out`` returns whether the node still has its lease and its session. ``prefers`` returns the function that chooses
    the preferred worker of a function's jobs, by the function's name; None for most functions.
    """

    def __init__(
        self,
        *,
        round_robin: bool = False,
        wakeup: int = 1,
        most: int = 0,
        on_new_queue: Callable[[FunctionQueue], None] | None = None,
        may_hand_out: Callable[[], bool] | None = None,
        prefers: Callable[[bytes], Callable[[Held], Worker | None] | None] | None = None,
    ) -> None:
        self.queues: dict[bytes, FunctionQueue] = {}
        self.order: list[FunctionQueue] = []
        """The same queues by their serials, with some that were forgotten since."""
        self._of_namespaces: Counter[str] = Counter()
        """The number of the queues by namespace."""
        self._large: set[str] = set()
        """The namespaces with more functions than their share; there are at most a few."""
        self.complete = True
        """Whether every function with stored jobs has a queue here. It stays False once there were too many functions."""
        self.rows = Rows()
        """The functions with stored jobs and without a queue."""
        self.moved = 0
        """How often functions became rows: because they lost their queues, or because the first jobs of new ones were stored."""
        self.new_rows: set[bytes] = set()
        """New functions without a queue whose first jobs are not stored yet."""
        self.most = most
        self._on_new_queue = on_new_queue
        self._serial = 0
        self.workers: dict[Worker, None] = {}
        self.paused = False
        """No job is handed out: the node shuts down, drains or has no term."""
        self._may_hand_out = may_hand_out
        self._prefers = prefers
        self._round_robin = round_robin
        self._wakeup = wakeup or 1_000_000

    def queue(self, name: bytes) -> FunctionQueue:
        """Return the queue of a function that this node uses, and create it if there is none."""
        queue = self.queues.get(name)
        if queue is None:
            self._serial += 1
            of = None if self._prefers is None else self._prefers(name)
            queue = self.queues[name] = FunctionQueue(name, self._serial, None if of is None else Preference(of))
            self.order.append(queue)
            self._of_namespaces[namespace_of(name)] += 1
            self.rows.left(name)
            self._note_size(namespace_of(name))
            if self._on_new_queue is not None:
                self._on_new_queue(queue)
        return queue

    def tracked(self, name: bytes) -> FunctionQueue | None:
        """Return the queue that tracks a function's stored jobs; None if the store alone counts them."""
        queue = self.queues.get(name)
        if queue is None:
            if not self.complete or len(self.queues) >= MAX_IDLE_FUNCTIONS:
                self.complete = False
                if self.rows.add(name):
                    self._note_size(namespace_of(name))
                    if len(self.new_rows) >= MAX_NEW_ROWS:
                        self.new_rows.pop()
                    self.new_rows.add(name)
                return None
            queue = self.queue(name)
        return queue

    def stored(self, jobs: Sequence[Job]) -> None:
        """Count new functions whose first jobs are stored now."""
        first = self.new_rows.intersection([job.function for job in jobs])
        if first:
            self.new_rows -= first
            self.moved += 1

    def admits(self, name: bytes, caller: Caller = LOCAL) -> bool:
        """Return whether a job or a worker of a caller may name a function: it exists, or one more may be created."""
        return (
            not self.most
            or name in self.queues
            or (not self.complete and name in self.rows)
            or self.places_left(namespace_of(name), caller) > 0
        )

    def places_left(self, namespace: str, caller: Caller) -> int:
        """Return how many functions a caller may create in a namespace; at most 0: none.

        ``default`` may have all places while no other namespace has a function.
        """
        number, mine = self.number, self.number_of(namespace)
        if namespace == DEFAULT and mine == number:
            return self.most - number
        return places_left(self.most, number - self._beyond_shares(namespace), mine, spans=caller.spans_namespaces)

    def _beyond_shares(self, but: str) -> int:
        """Return the number of functions that namespaces have above their shares, for all but one.

        Schedules, decisions and submissions in SQL create functions without a look at the share, and ``default`` may have all
        places while it is alone. These functions take no places from other namespaces.
        """
        beyond = 0
        for namespace in self._large - {but}:
            more = self.number_of(namespace) - self._share
            if more > 0:
                beyond += more
            else:
                self._large.discard(namespace)
        return beyond

    @property
    def _share(self) -> int:
        return self.most - self.most // RESERVE

    def _note_size(self, namespace: str) -> None:
        if self.most and self.number_of(namespace) > self._share:
            self._large.add(namespace)

    def read_rows(self) -> None:
        """Use the reading of the rows of the store that has ended."""
        self.rows.end()
        for namespace in self.rows.namespaces:
            self._note_size(namespace)

    @property
    def number(self) -> int:
        """The approximate number of functions."""
        return len(self.queues) + self.rows.number

    def number_of(self, namespace: str) -> int:
        """Return the approximate number of functions of a namespace."""
        return self._of_namespaces[namespace] + self.rows.number_of(namespace)

    def limit_queue(self, name: bytes, maximum: tuple[int, int, int] | None) -> None:
        """Set the ``maxqueue`` of an existing function."""
        queue = self.queues.get(name)
        if queue is None and name in self.rows:
            queue = self.queue(name)
        if queue is not None:
            queue.maximum = maximum

    def forget(self, name: bytes) -> None:
        """Forget a function without jobs and workers."""
        if self.queues.pop(name, None) is not None:
            self._uncount(name)

    def _uncount(self, name: bytes) -> None:
        namespace = namespace_of(name)
        self._of_namespaces[namespace] -= 1
        if not self._of_namespaces[namespace]:
            del self._of_namespaces[namespace]  # clients make up namespaces, too

    def may_live(self, name: bytes) -> bool:
        """Return whether the store may have jobs of a function that have not ended."""
        queue = self.queues.get(name)
        return not self.complete if queue is None else bool(queue.live) or not queue.counted

    def tidy(self) -> Iterator[None]:
        """Forget idle functions if there are many; their jobs are in the store.

        Each step processes some functions, and frees them: to free very many at once takes long, too.
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
                    self._uncount(queue.name)
                    if queue.live:
                        self.complete = False
                        self.rows.add(queue.name)
                        self.moved += 1
                    many -= 1
                else:
                    kept.append(queue)
            self.order[start : start + len(part)] = kept
            start += len(kept)
            yield

    # ---- workers ----

    def register(self, worker: Worker, name: bytes, ability: Ability = _NO_ABILITY) -> FunctionQueue:
        """Register a worker for a function; a repeated registration makes the function the worker's newest."""
        queue = self.queue(name)
        self.workers[worker] = None
        worker.abilities.pop(queue, None)
        worker.abilities[queue] = ability
        queue.workers[worker] = queue.workers.get(worker, 0) + 1
        if worker.credit > 0 and worker.takes(queue):
            queue.takers[worker] = None
        if worker.asleep:
            queue.sleepers[worker] = None
        return queue

    def unregister(self, worker: Worker, queue: FunctionQueue) -> None:
        """Remove a worker from a function."""
        worker.abilities.pop(queue, None)
        queue.workers.pop(worker, None)
        queue.sleepers.pop(worker, None)
        queue.takers.pop(worker, None)
        if worker.woken_for is queue:
            self.answered(worker)

    def leave(self, worker: Worker) -> None:
        """Assign no more jobs to a departed worker. Its jobs are in ``worker.running``; the caller still has to unregister it."""
        worker.gone = True
        worker.credit = worker.grabbing = 0
        self.answered(worker)
        self.workers.pop(worker, None)

    @staticmethod
    def offer(worker: Worker) -> None:
        """Assign jobs to a worker as they come, while it has credit."""
        for queue in worker.abilities:
            if not worker.is_full or worker.takes(queue):
                queue.takers[worker] = None

    @staticmethod
    def hold_off(worker: Worker, full: bool) -> list[FunctionQueue]:
        """Assign no jobs with heartbeat timeouts to a ``full`` worker; return the functions that another one takes again."""
        worker.is_full = full
        timed = [queue for queue, ability in worker.abilities.items() if ability.heartbeat is not None]
        for queue in timed:
            if full:
                queue.takers.pop(worker, None)
            elif worker.credit > 0:
                queue.takers[worker] = None
        return [] if full else timed

    @staticmethod
    def withdraw(worker: Worker) -> None:
        """Stop assigning jobs to a worker as they come."""
        worker.credit = 0
        for queue in worker.abilities:
            queue.takers.pop(worker, None)

    def sleep(self, worker: Worker) -> bool:
        """Put a worker to sleep; return True if there is a job for it, so that it is woken at once."""
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
        """Mark a worker as awake: it was woken, or sent a request by itself."""
        if worker.asleep:
            worker.asleep = False
            for queue in worker.abilities:
                queue.sleepers.pop(worker, None)

    def answered(self, worker: Worker) -> FunctionQueue | None:
        """End the wake-up of a worker, which has responded or never will; return the function that it was woken for."""
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
        """Return whether no job may be handed out now."""
        return self.paused or (self._may_hand_out is not None and not self._may_hand_out())

    @staticmethod
    def push(held: Held, *, first: bool = False) -> None:
        """Queue a job; ``first``: before the others of its priority, for a job that was handed out before."""
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
        """Queue claimed jobs of each priority, which come in order, among the queued jobs by age.

        Foreground jobs are queued at once and take no places in the window, so that claimed jobs may be older than they.
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
        """Remove a job from its queue, if it is queued."""
        if held.queued:
            held.queued = False
            queue = held.queue
            queue.size -= 1
            if queue.admission is not None:
                queue.admission.drop(held)
                return
            if queue.prefer is not None and queue.prefer.remove(held):
                return
            queue.dropped += 1
            if queue.dropped > MAX_DROPPED and queue.dropped > queue.size:
                # Without requests for jobs, no entry is skipped and freed: clients that come and leave must not fill the memory.
                queue.dropped = 0
                for ready in queue.ready:
                    waiting = [other for other in ready if other.queued]
                    ready.clear()
                    ready.extend(waiting)

    @staticmethod
    def restore(held: Held) -> None:
        """Queue a removed job again, before the others of its priority."""
        with contextlib.suppress(ValueError):
            # Its old entry may still be there, and it must not be queued twice.
            held.queue.ready_queues()[held.job.priority].remove(held)
        Dispatch.push(held, first=True)

    @staticmethod
    def pop(queue: FunctionQueue) -> Held | None:
        """Remove and return the next job of a function."""
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
        """Remove and return the next job of a worker's functions, without those whose jobs prefer workers."""
        if self.holds_back():
            return None
        queues = (
            [queue for queue in worker.abilities if worker.takes(queue)] if worker.is_full else list(worker.abilities)
        )
        if len(queues) == 1:
            return self.pop(queues[0]) if queues[0].prefer is None else None
        queues = [queue for queue in queues if queue.prefer is None]
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
        """Assign a function's jobs to workers with credit, and wake sleepers for the rest."""
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
            if worker.credit > 0:  # workers take turns
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


def match_preferred(
    dispatch: Dispatch, queue: FunctionQueue, prefer: Preference[Held, Worker], now: float
) -> Iterator[tuple[Worker, Held]]:
    """Assign a function's jobs to workers with credit, each to the worker that it prefers.

    While a preferred worker has no credit and another one has, the job waits for it, up to `PREFERRED_WAIT` seconds. Sleeping
    workers of the plain protocol are not woken.
    """
    if dispatch.holds_back():
        return
    for worker in prefer.workers():
        if worker.gone or not worker.takes(queue):
            for held in reversed(prefer.release(worker)):
                queue.ready_queues()[held.job.priority].appendleft(held)
        while worker.credit > 0 and (waited := prefer.first_for(worker)) is not None:
            dispatch.drop(waited)
            yield _give(dispatch, queue, worker, waited)
    while (taker := _taker(queue)) is not None and (overdue := prefer.overdue(now)) is not None:
        dispatch.drop(overdue)
        yield _give(dispatch, queue, taker, overdue)
    while (taker := _taker(queue)) is not None and (ready := dispatch.pop(queue)) is not None:
        wanted = prefer.of(ready)
        if wanted is None or wanted.gone or not wanted.takes(queue):
            wanted = taker
        if wanted.credit > 0:
            yield _give(dispatch, queue, wanted, ready)
        elif queue.admission is not None:  # the job has tokens of a limit already, and must not wait with them
            yield _give(dispatch, queue, taker, ready)
        else:
            prefer.wait(ready, wanted, now)
            ready.queued = True
            queue.size += 1


def _taker(queue: FunctionQueue) -> Worker | None:
    """Return the next worker of a function with credit."""
    while queue.takers:
        worker = next(iter(queue.takers))
        if not worker.gone:
            return worker
        del queue.takers[worker]
    return None


def _give(dispatch: Dispatch, queue: FunctionQueue, worker: Worker, held: Held) -> tuple[Worker, Held]:
    """Use one of a worker's places for a job; workers take turns."""
    worker.credit -= 1
    if worker.credit > 0:
        queue.takers.pop(worker, None)
        queue.takers[worker] = None
    else:
        dispatch.withdraw(worker)
    return worker, held
