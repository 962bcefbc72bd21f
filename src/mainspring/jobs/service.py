"""What the faces call: the jobs of one node, from submission to settlement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.errors import ConflictError, NotFoundError
from mainspring.jobs import rules
from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.intake import Intake
from mainspring.jobs.listeners import Listeners
from mainspring.jobs.model import State
from mainspring.jobs.remembered import Remembered
from mainspring.jobs.settling import Settling, failure
from mainspring.jobs.store import Assign, Cancel, Count, Find, FindUnique, Recover, Redrive, Sweep, Wake
from mainspring.jobs.timers import Timers
from mainspring.jobs.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock
    from mainspring.errors import MainspringError, StoreError
    from mainspring.events.hub import Hub
    from mainspring.ids import Handles, Term
    from mainspring.jobs.held import Ability, FunctionQueue, Held, Worker
    from mainspring.jobs.listeners import Listener
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import Cancelled, Found, Redriven, Woken
    from mainspring.storage.commit_queue import CommitQueue

TICK = 0.25
"""Seconds between looks at what needs no exact time: windows, silent workers, what runs for long."""
RECORD_AFTER = 1.0
"""A job that runs for so many seconds is recorded as running."""
SILENT_AFTER = 1.0
"""A worker that was woken and did nothing for so many seconds no longer keeps others asleep."""
SWEEP_EVERY = 10.0


class JobService:
    """The jobs slice of a node.

    ``earlier`` is called with a monotonic time when ``tick`` is wanted sooner than it said. ``retention`` and
    ``dead_retention`` are seconds for which ended jobs, and dead letters, are kept. ``lost_limit`` is ``--job-retries``.
    """

    def __init__(
        self,
        commits: CommitQueue,
        clock: Clock,
        term: Term,
        handles: Handles,
        hub: Hub,
        *,
        earlier: Callable[[float], object],
        round_robin: bool = False,
        wakeup: int = 1,
        foreground_bytes: int = 2**30,
        lost_limit: int | None = None,
        retention: float = 86_400.0,
        dead_retention: float = 14 * 86_400.0,
    ) -> None:
        self.commits = commits
        self.clock = clock
        self.term = term
        self.handles = handles
        self.hub = hub
        self.dispatch = Dispatch(round_robin=round_robin, wakeup=wakeup)
        self.timers = Timers(earlier)
        self.listeners = Listeners()
        self.remembered = Remembered()
        self.window = Window(commits, self.dispatch, self.timers, clock, term, handles)
        self.settling = Settling(self.window, self.listeners, hub, lost_limit=lost_limit)
        self.intake = Intake(self.window, self.listeners, hub, foreground_bytes=foreground_bytes)
        self.settling.wake_at = self.intake.wake_at = self._wake_at
        self.window.started = self._started
        self.window.exhausted = self._exhausted
        self._lost_limit = lost_limit
        self._retention = retention
        self._dead_retention = dead_retention
        self._next_wake_us = 0
        self._waking = False
        self._adapted = clock.monotonic()
        self._swept = clock.monotonic()
        self._woken: dict[Worker, float] = {}

    def start(self, ready: Callable[[int], None], failed: Callable[[StoreError], None]) -> None:
        """Give back what an earlier run of this node held, and learn what waits; then call ``ready`` with how many."""

        def counted(counts: dict[tuple[bytes, int, int], int], recovered: int) -> None:
            for (function, state, priority), number in counts.items():
                if State(state).ended:
                    continue
                queue = self.dispatch.queue(function)
                queue.live += number
                if state == State.PENDING:
                    queue.backlog[priority] = number
            self._wake()
            ready(recovered)

        def recovered(number: int) -> None:
            self.commits.put(Count(lambda counts: counted(counts, number), failed))

        self.commits.put(Recover(self.term, recovered, failed))

    # ---- time ----

    def tick(self) -> float:
        """Do what is due; returns the monotonic time of the next tick that is wanted."""
        now = self.clock.monotonic()
        self.timers.run(now)
        if now - self._adapted >= TICK:
            self.window.adapt(now - self._adapted)
            self._adapted = now
            self._record_running()
            self._pass_over_silent(now)
            for queue in self.dispatch.queues.values():
                self.window.serve(queue)
            if self.settling.unsettled:
                self.settling.try_again()
            if self._next_wake_us and self.clock.wall() * 1_000_000 >= self._next_wake_us:
                self._wake()  # the wall clock was stepped
        if now - self._swept >= SWEEP_EVERY:
            self._swept = now
            self._sweep()
        following = self.timers.next()
        return min(now + TICK, following) if following is not None else now + TICK

    def _wake_at(self, due_us: int) -> None:
        """Look for due jobs at a wall time, if not before."""
        if self._next_wake_us and self._next_wake_us <= due_us:
            return
        self._next_wake_us = due_us
        wait = due_us / 1_000_000 - self.clock.wall()
        self.timers.at(self.clock.monotonic() + max(wait, 0), self._wake_if_due)

    def _wake_if_due(self) -> None:
        if self._next_wake_us and self.clock.wall() * 1_000_000 >= self._next_wake_us:
            self._wake()

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._next_wake_us = 0
            self.commits.put(Wake(round(self.clock.wall() * 1_000_000), self._woke, self._not_woken))

    def _woke(self, woken: Woken) -> None:
        self._waking = False
        for (function, priority), number in woken.due.items():
            queue = self.dispatch.queue(function)
            queue.backlog[priority] += number
            self.window.serve(queue)
        for job, before in woken.expired:
            self._ended_in_store(job, before)
        if woken.next_us:
            self._wake_at(woken.next_us)

    def _not_woken(self, error: StoreError) -> None:
        del error
        self._waking = False
        self._wake_at(round((self.clock.wall() + 1) * 1_000_000))

    def _ended_in_store(self, job: Job, before: int) -> None:
        """A stored job that waited has ended without having been held."""
        queue = self.dispatch.queue(job.function)
        queue.live -= 1
        if before == State.PENDING:
            queue.backlog[job.priority] -= 1
        self.settling.tell(job)
        if self.hub.active:
            self.hub.publish(job)

    def _record_running(self) -> None:
        before_us = round((self.clock.wall() - RECORD_AFTER) * 1_000_000)
        long = [
            held
            for worker in self.dispatch.workers
            for held in worker.running.values()
            if held.stored and not held.recorded and held.started_us <= before_us
        ]
        if long:
            for held in long:
                held.recorded = True
            self.commits.put(Assign([held.job for held in long], lambda _: None, lambda _: None))

    def _pass_over_silent(self, now: float) -> None:
        """A woken worker that stays silent must not strand a job: wake the next one in its place."""
        woken = {
            worker: self._woken.get(worker, now) for worker in self.dispatch.workers if worker.woken_for is not None
        }
        for worker, since in list(woken.items()):
            if now - since >= SILENT_AFTER:
                self.dispatch.answered(worker)
                del woken[worker]
        self._woken = woken

    def _sweep(self) -> None:
        wall = self.clock.wall()
        self.commits.put(
            Sweep(
                round((wall - self._retention) * 1_000_000),
                round((wall - self._dead_retention) * 1_000_000),
                lambda forgotten: self._sweep() if forgotten else None,
                lambda _: None,
            )
        )

    # ---- workers ----

    def register(self, worker: Worker, function: bytes, ability: Ability) -> None:
        """A worker can run a function."""
        self.window.serve(self.dispatch.register(worker, function, ability))

    def unregister(self, worker: Worker, function: bytes) -> None:
        """A worker can no longer run a function; what it runs of it goes to another one, as in Gearman."""
        queue = self.dispatch.queues.get(function)
        if queue is None or queue not in worker.abilities:
            return
        self.dispatch.unregister(worker, queue)
        for held in list(worker.running.values()):
            if held.queue is queue:
                self.settling.lost(held, "its worker said CANT_DO")
        self.window.serve(queue)

    def ready(self, worker: Worker, places: int) -> None:
        """A streaming worker takes so many more jobs."""
        self.dispatch.stream(worker, places)
        while worker.credit > 0:
            held = self.dispatch.grab(worker)
            if held is None:
                break
            worker.credit -= 1
            self.window.start(held, worker)
            worker.face.assign(held)
        for queue in worker.abilities:
            self.window.refill(queue)

    def gone(self, worker: Worker) -> None:
        """A worker's connection has ended."""
        queues = list(worker.abilities)
        woken_for = worker.woken_for
        self.settling.worker_gone(worker, "its worker's connection ended")
        self.dispatch.remove(worker)
        if woken_for is not None:
            self.window.serve(woken_for)
        for queue in queues:
            if not queue.workers:
                self._give_back(queue)

    def _give_back(self, queue: FunctionQueue) -> None:
        """Nobody here can run what waits in memory: it goes back to the store, which is where it is bounded."""
        while queue.size:
            held = self.dispatch.pop_last(queue, -1)
            if held is None:
                break
            if held.stored and not held.adopting:
                self.settling.released(held)
            else:
                self.dispatch.push(held)
                break

    def _started(self, held: Held, worker: Worker) -> None:
        held.started_us = round(self.clock.wall() * 1_000_000)
        if self.hub.active:
            self.hub.publish(self.seen(held))
        options = held.job.options
        ability = worker.abilities.get(held.queue)
        timeout = options.timeout if options is not None else None
        heartbeat = options.heartbeat if options is not None else None
        requeue = False
        if ability is not None:
            if timeout is None:
                timeout, requeue = ability.timeout, ability.requeue
            if heartbeat is None:
                heartbeat = ability.heartbeat
        if timeout is not None:
            self._limit(held, timeout, lambda: self._timed_out(held, timeout, requeue=requeue))
        if heartbeat is not None and worker.streams:
            held.beat = self.clock.monotonic()
            self._limit(held, heartbeat, lambda: self._missed_beat(held, heartbeat))

    def _limit(self, held: Held, seconds: float, then: Callable[[], None]) -> None:
        lease = held.lease

        def over() -> None:
            if held.worker is not None and held.lease == lease:
                then()

        self.timers.at(self.clock.monotonic() + seconds, over)

    def _timed_out(self, held: Held, timeout: float, *, requeue: bool) -> None:
        worker = held.worker
        assert worker is not None
        worker.face.stop(held, b"timeout")
        if requeue:
            self.settling.lost(held, f"it ran for longer than {timeout:g} s")
        else:
            self.settling.failed(held, failure("Timeout", f"the attempt ran for longer than {timeout:g} s"))

    def _missed_beat(self, held: Held, heartbeat: float) -> None:
        worker = held.worker
        assert worker is not None
        left = held.beat + heartbeat - self.clock.monotonic()
        if left > 0:
            self._limit(held, left, lambda: self._missed_beat(held, heartbeat))
            return
        worker.face.stop(held, b"lost")
        self.settling.lost(held, f"its worker sent no heartbeat for {heartbeat:g} s")

    def _exhausted(self, held: Held) -> bool:
        """Settle a claimed job that has no attempt left: its node was lost at the last one."""
        policy = self.settling.policy(held)
        if held.job.attempt and rules.out_of_attempts(held.job, policy, self._lost_limit):
            held.job.attempt -= 1
            self.settling.failed(held, failure("WorkerLost", "its node was lost at the last attempt"), final=True)
            return True
        return False

    @staticmethod
    def pass_over(worker: Worker | None, handle: bytes) -> bool:
        """Say whether what a plain worker reports of a job is passed over, because it was cancelled while it ran."""
        return worker is not None and handle in worker.passed

    # ---- progress ----

    def data(self, held: Held, data: bytes) -> None:
        """Part of a result."""
        held.beat = self.clock.monotonic()
        for listener in self.listeners.of(held.job.id):
            listener.data(held.handle, data)

    def warning(self, held: Held, data: bytes) -> None:
        """A warning."""
        held.beat = self.clock.monotonic()
        for listener in self.listeners.of(held.job.id):
            listener.warning(held.handle, data)

    def status(self, held: Held, numerator: bytes, denominator: bytes) -> None:
        """How far a worker is."""
        held.beat = self.clock.monotonic()
        held.numerator, held.denominator = numerator, denominator
        for listener in self.listeners.of(held.job.id):
            listener.status(held.handle, numerator, denominator)

    # ---- clients ----

    def wait(self, job_id: int, listener: Listener, unknown: Callable[[], None]) -> None:
        """Tell a listener when a job has ended, at once if it has."""
        self.listeners.add(job_id, listener)
        if self.handles.of(job_id) in self.window.held:
            return

        def found(jobs: dict[int, Job]) -> None:
            job = jobs.get(job_id)
            if job is not None and not State(job.state).ended:
                return
            if self.listeners.listens(job_id, listener):
                if job is not None:
                    self.settling.tell(job)
                elif self.handles.of(job_id) not in self.window.held:
                    self.listeners.take(job_id)
                    unknown()

        self.commits.put(Find([job_id], found, lambda _: unknown()))

    def client_gone(self, listener: Listener) -> None:
        """A client has left: foreground jobs that nobody waits for any more are dropped, unless they run."""
        for job_id in self.listeners.leave(listener):
            held = self.window.held.get(self.handles.of(job_id))
            if held is not None and not held.stored and not held.adopting and held.worker is None:
                self._drop(held)

    def _drop(self, held: Held) -> None:
        self.dispatch.drop(held)
        self.window.release(held)

    def cancel(
        self, job_id: int, reason: str, done: Callable[[str], None], failed: Callable[[MainspringError], None]
    ) -> None:
        """Cancel a job; ``done`` is told ``cancelled``, ``running`` (its worker was asked), or the state it had ended in."""
        held = self.window.held.get(self.handles.of(job_id))
        if held is not None:
            self._cancel_held(held, reason, done)
            return

        def cancelled(outcome: Cancelled) -> None:
            job = outcome.job
            if job is None:
                failed(NotFoundError(f"no job has the handle {self.handles.of(job_id).decode()}"))
            elif outcome.before <= State.PENDING:
                self._ended_in_store(job, outcome.before)
                done("cancelled")
            elif State(outcome.before).held:
                # It was claimed while the request was under way.
                self.cancel(job_id, reason, done, failed)
            else:
                done(State(outcome.before).name.lower())

        error = failure("Cancelled", reason)
        self.commits.put(Cancel(job_id, error, round(self.clock.wall() * 1_000_000), cancelled, failed))

    def _cancel_held(self, held: Held, reason: str, done: Callable[[str], None]) -> None:
        worker = held.worker
        if worker is not None and worker.streams:
            held.cancelled = True
            worker.face.stop(held, b"cancelled")
            done("running")
            return
        self.dispatch.drop(held)
        if worker is not None:
            worker.passed.add(held.handle)  # a plain worker cannot be told
        self.settling.cancelled(held, reason, lambda _: done("cancelled"))

    def retry(self, job_id: int, done: Callable[[Job], None], failed: Callable[[MainspringError], None]) -> None:
        """Put an ended, unsuccessful job back to pending."""

        def redriven(outcome: Redriven) -> None:
            job = outcome.job
            handle = self.handles.of(job_id).decode()
            if job is None:
                failed(NotFoundError(f"no job has the handle {handle}"))
            elif outcome.rival is not None:
                rival = self.handles.of(outcome.rival).decode()
                failed(
                    ConflictError(f"the unique of {handle} is live again as {rival}: wait for that job, or cancel it")
                )
            elif not outcome.redriven:
                state = State(job.state).name.lower()
                failed(ConflictError(f"{handle} is {state}: only failed, cancelled and expired jobs can be retried"))
            else:
                queue = self.dispatch.queue(job.function)
                queue.live += 1
                queue.backlog[job.priority] += 1
                self.window.serve(queue)
                if self.hub.active:
                    self.hub.publish(job)
                done(job)

        self.commits.put(Redrive(job_id, redriven, failed))

    @staticmethod
    def worker_name(held: Held) -> str | None:
        """Return the name of the worker that has a job; None where it waits."""
        return held.worker.face.name() if held.worker is not None else None

    @staticmethod
    def seen(held: Held) -> Job:
        """Return a job in memory as the outside sees it: running once a worker has it."""
        if held.worker is None:
            return held.job
        return msgspec.structs.replace(
            held.job, state=int(State.RUNNING), started_us=held.started_us, attempt=held.job.attempt + 1
        )

    def find(self, job_id: int, done: Callable[[Job | None], None], failed: Callable[[StoreError], None]) -> None:
        """Look a job up, wherever it is; one in memory is told as it is there."""
        held = self.window.held.get(self.handles.of(job_id))
        if held is not None:
            done(self.seen(held))
            return
        self.commits.put(Find([job_id], lambda jobs: done(jobs.get(job_id)), failed))

    def find_unique(
        self, unique: bytes, done: Callable[[Found | None], None], failed: Callable[[StoreError], None]
    ) -> None:
        """Look a live stored job up by its unique, whatever its function."""
        self.commits.put(FindUnique([(None, unique)], lambda found: done(found[0]), failed))
