"""The jobs that a node has in memory: leased from the store or in the foreground, waiting for its workers or with them.

Here is what is held, and how it goes out to workers. How much may be here, and how it comes from the store, is in `claiming`; who
waits for it while it comes, in `lingering`; which of it waits for its turn to be alone, in `suspects` and `isolated`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.clock import from_us
from mainspring.jobs.accounts import open_own
from mainspring.jobs.claiming import Claiming
from mainspring.jobs.gate import Gate
from mainspring.jobs.held import Held
from mainspring.jobs.isolated import Isolated
from mainspring.jobs.lingering import Lingering
from mainspring.jobs.shrinking import shrink
from mainspring.jobs.suspects import Suspects

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock
    from mainspring.ids import Handles, Term
    from mainspring.jobs.accounts import OpenAccount
    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.held import FunctionQueue, Worker
    from mainspring.jobs.model import Job
    from mainspring.jobs.timers import Timer, Timers
    from mainspring.storage.commit_queue import CommitQueue

SOON = 0.001
"""Seconds before a queue is served again because of the time alone."""


class Window:
    """What this node holds."""

    def __init__(
        self, commits: CommitQueue, dispatch: Dispatch, timers: Timers, clock: Clock, term: Term, handles: Handles
    ) -> None:
        self.commits = commits
        self.dispatch = dispatch
        self.timers = timers
        self.clock = clock
        self.term = term
        self.handles = handles
        self.held: dict[bytes, Held] = {}
        self.foreground: dict[tuple[bytes, bytes], Held] = {}
        """Foreground jobs with a unique, by function and unique."""
        self.foreground_bytes = 0
        """Payloads of jobs that are nowhere but in memory."""
        self.entered: Callable[[Held], None] = lambda _: None
        """Set by the service: called with a stored job that waits in memory from now on, and may expire there."""
        self.started: Callable[[Held], None] = lambda _: None
        """Set by the service: called when a worker gets a job."""
        self.give_back: Callable[[FunctionQueue], None] = lambda _: None
        """Set by the service: called where what waits of a function has nobody here who could run it soon."""
        self.accounts: Callable[[FunctionQueue], OpenAccount] = lambda _: open_own
        """Set where the store is shared: how the tokens of a function are come by."""
        self._deliveries = 0
        self._clocked: dict[FunctionQueue, tuple[float, Timer]] = {}
        """When queues are served again because time lets more of their jobs start."""
        self.suspects = Suspects(self)
        self.isolated = Isolated(self)
        self.lingering = Lingering(self)
        self.claiming = Claiming(self)

    # ---- held ----

    def foreground_of(self, unique: bytes) -> Held | None:
        """Return a foreground job by its unique, whatever its function; looks at the functions or the jobs, which are fewer."""
        queues = self.dispatch.queues
        if len(self.foreground) < len(queues):
            return next((held for (_, other), held in self.foreground.items() if other == unique), None)
        return next((self.foreground[name, unique] for name in queues if (name, unique) in self.foreground), None)

    def hold(self, job: Job, *, stored: bool) -> Held:
        """Take a job into memory; the caller pushes it and serves its queue."""
        handle = self.handles.of(job.id)
        queue = self.dispatch.queue(job.function)
        if job.key and queue.gate is None:
            self.gate(queue)
        held = self.held[handle] = Held(job, handle, queue, stored=stored)
        if not stored:
            queue.foreground += 1
            self.foreground_bytes += len(job.payload)
        elif job.expires_us:
            self.entered(held)
        return held

    def release(self, held: Held) -> None:
        """Forget a job: it ended, or goes back to the store. It is with no worker afterwards."""
        del self.held[held.handle]
        if held.queued:
            self.dispatch.drop(held)
            self.claiming.refill(held.queue)
        job = held.job
        if not held.stored:
            held.queue.foreground -= 1
            self.foreground_bytes -= len(job.payload)
            if job.unique and self.foreground.get((job.function, job.unique)) is held:
                del self.foreground[job.function, job.unique]
        self.take_back(held)
        if job.suspects:  # others never wait for their turn to be alone
            self.suspects.left(held)

    def tidy(self) -> None:
        """Give back the memory of jobs that are gone."""
        shrink(self.held)
        shrink(self.foreground)

    def forget_stored(self) -> list[tuple[Held, Worker | None]]:
        """Forget all stored jobs, for other nodes have them; returns them, each with the worker that had it."""
        forgotten = []
        for held in [held for held in self.held.values() if held.stored]:
            forgotten.append((held, held.worker))
            self.release(held)
        return forgotten

    # ---- going out ----

    def serve(self, queue: FunctionQueue) -> None:
        """Hand out what waits to whoever waits for it, and claim more where there is room."""
        if self.isolated.waiting:
            self.isolated.next(queue)
        if queue.size and (queue.takers or queue.sleepers):
            for worker, held in self.dispatch.match(queue):
                if held is None:
                    worker.face.wake()
                else:
                    if worker.grabbing:
                        worker.grabbing -= 1
                    self.start(held, worker)
                    worker.face.assign(held)
        if queue.gate is not None:
            self._look_again(queue, queue.gate)
        self.claiming.refill(queue)

    def start(self, held: Held, worker: Worker) -> None:
        """Note that a worker has a job from now on."""
        self._deliveries += 1
        queue = held.queue
        held.worker = worker
        held.ability = worker.abilities.get(queue)
        if worker.streams:  # others have no word for it
            held.lease = b"%d.%d.%d" % (self.term, held.job.attempt + 1, self._deliveries)
        queue.running += 1
        worker.running[held.handle] = held
        if held.timers:
            self._disarm(held)
        self.started(held)

    def grab(self, worker: Worker) -> Held | None:
        """Give a plain worker that asks a job that is in memory."""
        woken_for = None
        if worker.asleep or worker.woken_for is not None:
            woken_for = self.dispatch.answered(worker)
            self.dispatch.rouse(worker)
        held = self.dispatch.grab(worker)
        if held is not None:
            self.start(held, worker)
            queue = held.queue
            if queue.backlog[0] or queue.backlog[1] or queue.backlog[2] or queue.uncounted:
                self.claiming.refill(queue)
        if woken_for is not None and (held is None or held.queue is not woken_for):
            self.serve(woken_for)  # it was woken for a job that it did not take: somebody else has to
        return held

    def sleep(self, worker: Worker) -> bool:
        """A plain worker goes to sleep; True where it must be woken at once, because there is work for it."""
        woken_for = worker.woken_for
        work = self.dispatch.sleep(worker)
        if woken_for is not None and worker.woken_for is not woken_for:
            self.serve(woken_for)  # it was woken for a job that it did not ask for: somebody else has to
        if not work:
            for queue in worker.abilities:
                self.claiming.refill(queue)
        return work

    def take_back(self, held: Held) -> None:
        """A worker no longer has the job, and nothing limits it any more."""
        if held.timers:
            self._disarm(held)
        worker = held.worker
        if worker is not None:
            held.worker = None
            held.queue.running -= 1
            held.queue.settled += 1
            worker.ended = True
            del worker.running[held.handle]
        if held.job.suspects:
            self.isolated.left(held)

    def limit(self, held: Held, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after a while, unless the job got a worker, left it or was released before."""
        waiting = [timer for timer in held.timers or () if timer.function is not None]
        held.timers = [*waiting, self.timers.at(self.clock.monotonic() + seconds, function)]

    def _disarm(self, held: Held) -> None:
        for timer in held.timers or ():
            self.timers.cancel(timer)
        held.timers = None

    # ---- what is in the store ----

    def no_longer_pending(self, queue: FunctionQueue, priority: int) -> None:
        """A job of the store is not pending any more. Where another node submitted it, it may not have been counted."""
        queue.backlog[priority] -= 1
        if queue.backlog[priority] < 0:
            self.commits.afterwards(queue.forget_debts)

    def no_longer_away(self, queue: FunctionQueue, number: int = 1) -> None:
        """Jobs of the store have become due, or those of another node have come back. They may not have been counted."""
        queue.away -= number
        if queue.away < 0:
            # The operation that counts them may be answered in the same group.
            self.commits.afterwards(queue.forget_debts)

    # ---- limits, pauses and keys ----

    def gate(self, queue: FunctionQueue) -> Gate[Held]:
        """Return a function's gate; the jobs that are here pass through it from now on."""
        gate = queue.gate
        if gate is None:
            gate = Gate(self.clock, self.accounts(queue))
            waiting = queue.queued()
            for ready in queue.ready:
                ready.clear()
            queue.dropped = 0
            for worker in queue.workers:
                for held in worker.running.values():
                    if held.queue is queue:
                        gate.count(held.job.key)
                        held.gate = gate
            for held in waiting:
                gate.push(held)
            queue.gate = gate
        return gate

    @staticmethod
    def open_gate(queue: FunctionQueue) -> None:
        """Nothing limits a function any more, and its jobs have no keys: they go on without a gate."""
        gate, queue.gate = queue.gate, None
        if gate is not None:
            for held in sorted(gate.queued(), key=lambda held: held.job.id):
                queue.lines()[held.job.priority].append(held)

    def serve_at(self, queue: FunctionQueue, time_us: int) -> None:
        """Serve a queue at a monotonic time, or soon after it."""
        at = max(from_us(time_us), self.clock.monotonic() + SOON)
        known = self._clocked.get(queue)
        if known is not None:
            if known[0] <= at:
                return
            self.timers.cancel(known[1])

        def again() -> None:
            del self._clocked[queue]
            self.serve(queue)

        self._clocked[queue] = at, self.timers.at(at, again)

    def _look_again(self, queue: FunctionQueue, gate: Gate[Held]) -> None:
        """Serve a queue again when time lets more of its jobs start."""
        following = gate.next_us()
        if following is not None:
            self.serve_at(queue, following)
