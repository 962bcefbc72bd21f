"""The jobs that a node has in memory: leased from the store or in the foreground, waiting for its workers or with them.

The window is bounded. Its size follows what the workers of each function get through in about half a second; what does
not fit stays in the store, in order, and is claimed as places become free.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from mainspring.clock import from_us, to_us
from mainspring.ids import slot_of
from mainspring.jobs import rules
from mainspring.jobs.accounts import open_own
from mainspring.jobs.gate import MOST, Gate
from mainspring.jobs.held import Held
from mainspring.jobs.model import Job, Priority, State
from mainspring.jobs.store import Assign, Claim, ClaimByKey, Want

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.ids import Handles, Term
    from mainspring.jobs.accounts import OpenAccount
    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.held import FunctionQueue, Worker
    from mainspring.jobs.store import ClaimedByKey
    from mainspring.jobs.timers import Timer, Timers
    from mainspring.storage.commit_queue import CommitQueue

SMALLEST = 64
LARGEST = 20_000
WINDOW_SECONDS = 0.5
LINGER = 0.002
"""Seconds that a worker which has just ended a job waits for the next one before it is told that there is none."""
LINGER_FUNCTIONS = 8
"""A worker of more functions is told at once: waiting for each of them would cost more than it saves."""
HINTED = 0.01
"""Seconds after which a claim is repeated that has not found what another node had said to be there: a claim passes over rows
that somebody works on at that moment, as does a node whose client has just begun to wait for the job."""
STALLED = 1.0
"""Seconds after which a node of many gives back what waits for its busy workers: others may be free."""
SOON = 0.001
"""Seconds before a queue is served again because of the time alone."""
BYTES = 64 * 2**20
"""Payloads in the window of one function, about."""


class Allowance(NamedTuple):
    """What a node may take of a function's stored jobs, where several nodes share them."""

    limit: int | None = None
    """How many at most; None: as many as it has room for."""
    slots: frozenset[int] | None = None
    """Of which hash slots; None: of all."""
    overdue: float = 0.0
    """Jobs that wait for so many seconds are anybody's, whatever slot and limit; infinite: none at all."""


EVERYTHING = Allowance()


class Window:
    """What this node holds, and how it comes by it."""

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
        self.refused: Callable[[Held], bool] = lambda _: False
        """Set by the service: settles a claimed job that may not be handed out any more, and says whether it did."""
        self.entered: Callable[[Held], None] = lambda _: None
        """Set by the service: called with a stored job that waits in memory from now on, and may expire there."""
        self.started: Callable[[Held], None] = lambda _: None
        """Set by the service: called when a worker gets a job."""
        self.give_back: Callable[[FunctionQueue], None] = lambda _: None
        """Set by the service: called where what waits of a function has nobody here who could run it soon."""
        self.shared = False
        """Other nodes put jobs into the store, and take them: what is known of the backlog is a hint."""
        self.share: Callable[[FunctionQueue], Allowance] = lambda _: EVERYTHING
        """Set where the store is shared: what this node may take of a function's stored jobs at this moment."""
        self.accounts: Callable[[FunctionQueue], OpenAccount] = lambda _: open_own
        """Set where the store is shared: how the tokens of a function are come by."""
        self.served: Callable[[FunctionQueue], None] = lambda _: None
        """Set where the store is shared: called with a function that has a gate where more of it could be started."""
        self._deliveries = 0
        self._clocked: dict[FunctionQueue, tuple[float, Timer]] = {}
        """When queues are served again because time lets more of their jobs start."""
        self._lingering: dict[Worker, float] = {}
        """Workers that wait a moment, and since when, the longest first."""
        self._suspects: list[Held] = []
        self._suspect: Held | None = None

    # ---- coming in ----

    def admits(self, queue: FunctionQueue, job: Job) -> bool:
        """Say whether a new, due job can be leased as it is stored, because a worker here will have it soon.

        Not while stored jobs of equal or higher priority wait: they came first.
        """
        if not queue.workers or self.dispatch.paused:
            return False
        if self.shared and not self._may_take(queue, job):
            return False
        priority = job.priority
        backlog = queue.backlog
        if backlog[0] or (priority and backlog[1]) or (priority == 2 and backlog[2]):
            return False
        if (queue.gate is not None or job.key) and not self._lets_in(queue, job.key):
            return False
        have = queue.size - queue.foreground + queue.inflight
        if queue.gate is not None:
            have -= queue.gate.parked
        if have >= self.room(queue):
            return priority == 0 and not self.shared and have < 2 * LARGEST
        return True

    def _lets_in(self, queue: FunctionQueue, key: bytes) -> bool:
        """Say whether a job of a key could start soon."""
        return self.gate(queue).admits(key) and queue.size + queue.inflight < MOST

    def _may_take(self, queue: FunctionQueue, job: Job) -> bool:
        """Say whether a new job is in this node's share."""
        share = self.share(queue)
        if share.limit is not None and queue.size + queue.inflight >= share.limit:
            return False
        return share.slots is None or slot_of(job.namespace, job.function, job.unique, job.id) in share.slots

    def room(self, queue: FunctionQueue) -> int:
        """Return how many waiting jobs of a function may be in memory.

        Where others share the store, no more than will be started soon: they may have workers that are free.
        """
        window = queue.window + queue.places() if self.shared else queue.window or SMALLEST
        if queue.mean_size > 1024:
            window = min(window, max(len(queue.workers), int(BYTES / queue.mean_size), 1))
        return window if queue.gate is None else queue.gate.room(window)

    # ---- limits, pauses and keys ----

    def gate(self, queue: FunctionQueue) -> Gate:
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
                        gate.count(held)
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
                queue.ready[held.job.priority].append(held)

    def _look_again(self, queue: FunctionQueue, gate: Gate) -> None:
        """Serve a queue again when time lets more of its jobs start."""
        following = gate.next_us()
        if following is not None:
            self.serve_at(queue, following)

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

    def refill(self, queue: FunctionQueue) -> None:
        """Claim more of a function's stored jobs, where some wait, workers are here, and half of the window is free."""
        if queue.gate is not None:
            self.served(queue)
        backlog = queue.backlog
        if not (backlog[0] or backlog[1] or backlog[2]) or queue.claiming or not queue.workers or self.dispatch.paused:
            return
        if queue.gate is not None and queue.gate.keyed:
            self._refill_by_key(queue, queue.gate)
            return
        window = self.room(queue)
        if queue.gate is not None and queue.gate.paused:
            return
        # Foreground jobs take no places, or a steady stream of them would keep the stored ones out. (Those that run are counted
        # too: that is a few places more.)
        have = max(queue.size - queue.foreground, 0) + queue.inflight
        limit = window - have
        if have * 2 > window:
            if not backlog[0]:
                return
            limit = min(backlog[0], window)  # high priority does not wait for a place
        if limit <= 0:
            return
        wants = [Want(queue.name, limit)]
        if self.shared:
            wants = self._shared_wants(queue, limit)
            if not wants:
                return
            limit = sum(want.limit for want in wants)
        queue.claiming = True
        self.commits.put(
            Claim(
                self.term,
                wants,
                lambda outcome: self._claimed(queue, [job for jobs in outcome for job in jobs], limit),
                lambda error: self._not_claimed(queue, error),
            )
        )

    def hint(self, queue: FunctionQueue) -> None:
        """Look whether the store has jobs of a function: another node has said so."""
        queue.backlog[Priority.NORMAL] = queue.backlog[Priority.NORMAL] or 1
        self.refill(queue)

    def _refill_by_key(self, queue: FunctionQueue, gate: Gate) -> None:
        """Claim more in turns of the keys, so that one that has very many jobs does not keep the others out."""
        window = self.room(queue)
        waiting = max(queue.size - queue.foreground, 0) + queue.inflight
        have = max(waiting - gate.parked, 0)
        if gate.paused or gate.is_dry(sum(queue.backlog)) or have * 2 > window or waiting >= MOST:
            return
        want = Want(queue.name, window - have)
        if self.shared:
            share = self.share(queue)
            if share.overdue == math.inf:
                return
            limit = want.limit if share.limit is None else min(want.limit, max(share.limit, 0))
            want = Want(queue.name, limit, share.slots, to_us(self.clock.wall() - share.overdue))
        if want.limit <= 0:
            return
        queue.claiming = True
        self.commits.put(
            ClaimByKey(
                self.term,
                want,
                gate.per_key(),
                gate.after,
                gate.enough(),
                lambda outcome: self._claimed_by_key(queue, outcome),
                lambda error: self._not_claimed(queue, error),
            )
        )

    def _claimed_by_key(self, queue: FunctionQueue, outcome: ClaimedByKey) -> None:
        gate = self.gate(queue)
        gate.after = outcome.after
        # What is left is of keys that have enough here: it is looked at again when one of them has not, or there is more.
        if not outcome.more or not outcome.jobs:
            gate.left = 0 if self.shared else sum(queue.backlog) - len(outcome.jobs)
        self._claimed(queue, outcome.jobs, len(outcome.jobs) if outcome.more else -1)

    def _shared_wants(self, queue: FunctionQueue, limit: int) -> list[Want]:
        """Return what this node may claim of what it has room for."""
        share = self.share(queue)
        if share.overdue == math.inf:
            return []
        overdue_us = to_us(self.clock.wall() - share.overdue)
        within = limit if share.limit is None else min(limit, share.limit)
        wants = [Want(queue.name, within, share.slots, overdue_us)] if within else []
        if within < limit:
            wants.append(Want(queue.name, limit - within, frozenset(), overdue_us))  # only what waits for too long
        return wants

    def _claimed(self, queue: FunctionQueue, jobs: list[Job], limit: int) -> None:
        queue.claiming = False
        size = 0
        older: list[Held] = []
        if jobs and jobs[0].term != self.term:
            jobs = []  # this node's term has ended since: whoever ended it gives them back
        for job in jobs:
            queue.backlog[job.priority] -= 1
            size += len(job.payload)
            held = self.hold(job, stored=True)
            if self.refused(held):
                continue
            if job.suspects >= rules.SUSPECTS_ALONE:
                self._suspects.append(held)
            elif self._is_older(held):
                older.append(held)
            else:
                self.dispatch.push(held)
        for held in reversed(older):
            self.dispatch.push(held, first=True)
        if self.shared:
            # Others take from it too. Where less came than was asked for, nothing is left for this node, until it looks again.
            backlog = queue.backlog if len(jobs) == limit else (0, 0, 0)
            queue.backlog[:] = [max(number, 0) for number in backlog]
            if queue.hinted and not jobs:
                self.timers.at(self.clock.monotonic() + HINTED, lambda: self.hint(queue))
            queue.hinted = False
        if jobs:
            queue.mean_size += (size / len(jobs) - queue.mean_size) / 4
        self.next_suspect()
        self.serve(queue)
        self._answer_grabs(queue)
        if not queue.workers:
            self.give_back(queue)

    @staticmethod
    def _is_older(held: Held) -> bool:
        """Say whether a job that had its turn already comes before those of its priority that are here: it keeps its place."""
        if held.queue.gate is not None:
            first = held.queue.gate.first(held)
            return first is not None and held.job.id < first.job.id
        ready = held.queue.ready[held.job.priority]
        return bool(ready) and held.job.id < ready[0].job.id

    def _not_claimed(self, queue: FunctionQueue, error: StoreError) -> None:
        del error  # the service hears of it from every operation that somebody waits for
        queue.claiming = False
        self._answer_grabs(queue)

    def _answer_grabs(self, queue: FunctionQueue) -> None:
        """Tell workers that asked while the store was being looked at, where nothing was found for them."""
        for worker in [one for one in queue.takers if one.grabbing]:
            self.answer_grab(worker)

    def answer_grab(self, worker: Worker) -> None:
        """Tell a worker that there is no job for it, unless a look at the store is still under way."""
        if worker.grabbing and not any(queue.claiming for queue in worker.abilities):
            asked, worker.grabbing = worker.grabbing, 0
            self.dispatch.withdraw(worker)
            for _ in range(asked):
                worker.face.no_job()

    # ---- one at a time: jobs that may be what kills nodes ----

    def next_suspect(self) -> None:
        """Record the next one as running, unless one is under way, and hand it out then."""
        if self._suspect is None and self._suspects:
            held = self._suspect = self._suspects.pop(0)
            held.recorded = True
            self.commits.put(
                Assign([held.job], lambda _: self._admit_suspect(held), lambda _: self._postpone_suspect(held))
            )

    def suspects(self, queue: FunctionQueue) -> list[Held]:
        """Return the jobs of a function that wait for their turn to be alone."""
        return [held for held in self._suspects if held.queue is queue]

    def _admit_suspect(self, held: Held) -> None:
        if self._suspect is not held:
            return  # it was cancelled or given back meanwhile
        held.job.state = int(State.RUNNING)
        self.dispatch.push(held)
        self.serve(held.queue)
        if not held.queue.workers:
            self.give_back(held.queue)

    def _postpone_suspect(self, held: Held) -> None:
        """The store could not take the record: the service asks for the next suspect again after a while."""
        if self._suspect is held:
            self._suspect = None
            held.recorded = False
            self._suspects.insert(0, held)

    # ---- going out ----

    def serve(self, queue: FunctionQueue) -> None:
        """Hand out what waits to whoever waits for it, and claim more where there is room."""
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
        self.refill(queue)

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

    def limit(self, held: Held, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after a while, unless the job got a worker, left it or was released before."""
        waiting = [timer for timer in held.timers or () if timer.function is not None]
        held.timers = [*waiting, self.timers.at(self.clock.monotonic() + seconds, function)]

    def _disarm(self, held: Held) -> None:
        for timer in held.timers or ():
            self.timers.cancel(timer)
        held.timers = None

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
            if queue.backlog[0] or queue.backlog[1] or queue.backlog[2]:
                self.refill(queue)
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
                self.refill(queue)
        return work

    def looks(self, worker: Worker) -> bool:
        """Say whether a worker that found nothing in memory has to wait until the store has been looked at."""
        asks = not worker.streams
        if asks:
            # Before the look: whoever asks is a place for a job, also where he never sleeps and is one at no other time.
            worker.grabbing += 1
            worker.credit += 1
            self.dispatch.offer(worker)
        for queue in worker.abilities:
            self.refill(queue)
        waits = asks and any(queue.claiming for queue in worker.abilities)
        if asks and not waits:
            worker.grabbing -= 1
            worker.credit -= 1
            if not worker.credit:
                self.dispatch.withdraw(worker)
        return waits

    def lingers(self, worker: Worker) -> bool:
        """Let a worker that has just ended a job, and found no other one, wait a moment for its answer.

        A client that waited for that job often sends its next one at once: it is then handed over as the answer, without the
        four packets by which the worker would go to sleep and be woken.
        """
        if not worker.ended or worker.streams or self.dispatch.paused or len(worker.abilities) > LINGER_FUNCTIONS:
            return False
        worker.ended = False
        now = self.clock.monotonic()
        if not self._lingering:
            self.timers.at(now + LINGER, self._end_lingering)
        self._lingering.pop(worker, None)
        self._lingering[worker] = now
        worker.grabbing += 1
        worker.credit += 1
        self.dispatch.offer(worker)
        return True

    def _end_lingering(self) -> None:
        now = self.clock.monotonic()
        for worker, since in list(self._lingering.items()):
            if now < since + LINGER:  # in the same words as the timer's time, or rounding makes it ask for now again
                self.timers.at(since + LINGER, self._end_lingering)
                break
            del self._lingering[worker]
            if worker in self.dispatch.workers:
                self.answer_grab(worker)

    def forget_stored(self) -> list[tuple[Held, Worker | None]]:
        """Forget all stored jobs, for other nodes have them; returns them, each with the worker that had it."""
        forgotten = []
        for held in [held for held in self.held.values() if held.stored]:
            forgotten.append((held, held.worker))
            self.release(held)
        return forgotten

    def release(self, held: Held) -> None:
        """Forget a job: it ended, or goes back to the store. It is with no worker afterwards."""
        del self.held[held.handle]
        if held.queued:
            self.dispatch.drop(held)
            self.refill(held.queue)
        job = held.job
        if not held.stored:
            held.queue.foreground -= 1
            self.foreground_bytes -= len(job.payload)
            if job.unique and self.foreground.get((job.function, job.unique)) is held:
                del self.foreground[job.function, job.unique]
        self.take_back(held)
        if self._suspects and held in self._suspects:
            self._suspects.remove(held)
        if held is self._suspect:
            self._suspect = None
            self.next_suspect()

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

    def adapt(self, seconds: float) -> None:
        """Fit each function's window to what its workers got through in the last so many seconds."""
        for queue in self.dispatch.queues.values():
            rate = queue.settled / seconds
            queue.ended += queue.settled
            queue.settled = 0
            wanted = int(rate * WINDOW_SECONDS)
            # Grows at once, shrinks slowly: a pause of the clients says little about the workers.
            wanted = max(wanted, queue.window * 3 // 4)
            if not self.shared:
                wanted = max(wanted, SMALLEST, 2 * len(queue.workers))
            queue.window = min(wanted, LARGEST)
            if self.shared:
                waits = queue.size and not rate and not (queue.places() and queue.startable(1))
                queue.stalled = queue.stalled + seconds if waits else 0.0
                if queue.stalled >= STALLED:
                    queue.stalled, queue.window = 0.0, 0
                    self.give_back(queue)
