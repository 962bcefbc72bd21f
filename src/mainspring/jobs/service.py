"""What the faces call: the jobs of one node, from submission to settlement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.errors import ConflictError, NotFoundError
from mainspring.ids import Term
from mainspring.jobs import rules
from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.foreground import Foreground
from mainspring.jobs.functions import Functions
from mainspring.jobs.intake import Intake
from mainspring.jobs.limits import Limits
from mainspring.jobs.listeners import Listeners
from mainspring.jobs.model import State
from mainspring.jobs.remembered import Remembered
from mainspring.jobs.settling import ASKED, Settling, failure
from mainspring.jobs.sharing import Sharing
from mainspring.jobs.store import Cancel, Count, Find, FindUnique, Recover, Redrive
from mainspring.jobs.timers import Timers
from mainspring.jobs.uniques import Uniques
from mainspring.jobs.upkeep import Upkeep
from mainspring.jobs.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.clock import Clock
    from mainspring.errors import MainspringError, StoreError
    from mainspring.events.hub import Hub
    from mainspring.events.relay import Relay
    from mainspring.ids import Handles
    from mainspring.jobs.held import Ability, FunctionQueue, Held, Worker
    from mainspring.jobs.listeners import Listener
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import Cancelled, Found, Recovered, Redriven
    from mainspring.storage.commit_queue import CommitQueue

AGAIN = 0.25
"""Seconds after which the store is asked again where it could not answer."""


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
        self.uniques = Uniques(commits)
        self.intake = Intake(self.window, self.uniques, self.listeners, hub)
        self.foreground = Foreground(
            self.window, self.intake, self.uniques, self.listeners, hub, limit=foreground_bytes
        )
        self.window.started = self._started
        self.window.give_back = self._give_back
        self._limits = Limits(self.window, self.settling, lost_limit=lost_limit)
        self._upkeep = Upkeep(
            self.window, self.settling, self._ended_in_store, retention=retention, dead_retention=dead_retention
        )
        self.settling.wake_at = self.intake.wake_at = self.wake_at = self._upkeep.wake_at
        self.foreground.look = self._look_ended
        self.functions = Functions(self.window)
        self.sharing: Sharing | None = None
        self._ends = False
        self.looking: dict[int, int] = {}
        """Jobs that are being looked up for somebody who will be told, also where there is none; and how often."""

    def start(self, ready: Callable[[int], None], failed: Callable[[StoreError], None]) -> None:
        """Give back what an earlier run of this node held, and learn what waits; then call ``ready`` with how many.

        On a shared store nothing is given back here: who gives back what, and when, is for the nodes to agree on.
        """
        sharing = self.sharing
        if sharing is not None:
            self.functions.load(lambda: sharing.look(lambda: ready(0), failed), failed)
            return

        def counted(counts: dict[tuple[bytes, int, int], int], recovered: int) -> None:
            for (function, state, priority), number in counts.items():
                if State(state).ended:
                    continue
                queue = self.dispatch.queue(function)
                queue.live += number
                if state == State.PENDING:
                    queue.backlog[priority] = number
            self._upkeep.wake()
            ready(recovered)

        def recovered(outcome: Recovered) -> None:
            self.commits.put(Count(lambda counts: counted(counts, outcome.number), failed))

        self.functions.load(lambda: self.commits.put(Recover(self.term, recovered, failed)), failed)

    def tick(self) -> float:
        """Do what is due; returns the monotonic time of the next tick that is wanted."""
        if self.sharing is not None:
            self.sharing.tick(self.clock.monotonic())
        self.functions.tick(self.clock.monotonic())
        return self._upkeep.tick()

    def share(self, relay: Relay) -> Sharing:
        """Other nodes have the store open too."""
        self.sharing = Sharing(self, relay)
        return self.sharing

    def fenced(self) -> None:
        """This node's lease has ended: other nodes have its stored jobs, and it hands out nothing until it has a new term.

        Streaming workers are asked to stop; of others, what they report of these jobs is passed over.
        """
        self.dispatch.paused = True
        self.window.term = Term(0)
        if self.sharing is not None:
            self.sharing.leasing.forget()
        for held, worker in self.window.forget_stored():
            if held.gate is not None:
                held.gate.give_back(held.job.key)
                held.gate = None
            if worker is not None:
                if worker.streams:
                    worker.face.stop(held, b"lost")
                else:
                    worker.passed.add(held.handle)
                    worker.refused = True

    def begin_again(self, term: Term) -> None:
        """Hold jobs under a new term from now on; `resume` hands them out."""
        self.term = self.window.term = term
        if self.sharing is not None:
            self.sharing.begin_again()

    def resume(self) -> None:
        """Hand out jobs again, after `hand_back`, or after `fenced` once there is a new term; not after `end`."""
        if self._ends or not self.window.term:
            return
        self.dispatch.paused = False
        for queue in self.dispatch.queues.values():
            self.window.serve(queue)

    def hand_back(self) -> None:
        """Hand out nothing more, and give back what waits here: a node that ends politely leaves no job under suspicion."""
        self.dispatch.paused = True
        for held in list(self.window.held.values()):
            if held.stored and held.worker is None:
                self.settling.released(held)

    def end(self) -> None:
        """Hand out nothing any more: the node ends, whatever becomes of its lease until then."""
        self._ends = True
        self.hand_back()

    def _ended_in_store(self, job: Job, before: int) -> None:
        """A stored job that waited has ended without having been held."""
        queue = self.dispatch.queue(job.function)
        queue.live -= 1
        if before == State.PENDING:
            queue.backlog[job.priority] -= 1
        self.settling.tell(job)
        if self.hub.active:
            self.hub.publish(job)

    # ---- workers ----

    def register(self, worker: Worker, function: bytes, ability: Ability) -> None:
        """A worker can run a function."""
        if ability.limits is not None:
            self.functions.declare(function, ability.limits)
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
        self.window.lingering.answer(worker)
        self._left(queue)

    def ready(self, worker: Worker, places: int) -> None:
        """A streaming worker takes so many more jobs."""
        worker.streams = True
        worker.credit += places
        while worker.credit > 0:
            held = self.dispatch.grab(worker)
            if held is None:
                self.dispatch.offer(worker)
                break
            worker.credit -= 1
            self.window.start(held, worker)
            worker.face.assign(held)
        for queue in worker.abilities:
            self.window.claiming.refill(queue)

    def gone(self, worker: Worker) -> None:
        """A worker's connection has ended."""
        queues = list(worker.abilities)
        self.dispatch.remove(worker)  # first, so that it is not given back what it leaves behind
        self.settling.worker_gone(worker, "its worker's connection ended")
        for queue in queues:
            self._left(queue)

    def _left(self, queue: FunctionQueue) -> None:
        """A worker no longer runs a function: others take over what it was woken for, or nobody does."""
        if queue.workers:
            self.window.serve(queue)
        else:
            self._give_back(queue)

    def _give_back(self, queue: FunctionQueue) -> None:
        """Nobody here can run what waits in memory: it goes back to the store, which is where it is bounded."""
        for held in self.window.suspects.of(queue) + queue.queued():
            if held.stored:
                self.settling.released(held)
            elif self.sharing is not None:
                self.foreground.pass_on(held)

    def _started(self, held: Held) -> None:
        held.started_us = round(self.clock.wall() * 1_000_000)
        if self.hub.active:
            self.hub.publish(self.seen(held))
        self._limits.started(held)

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
        if self.sharing is not None and held.stored:
            self.sharing.tell(held, "data", data)

    def warning(self, held: Held, data: bytes) -> None:
        """A warning."""
        held.beat = self.clock.monotonic()
        for listener in self.listeners.of(held.job.id):
            listener.warning(held.handle, data)
        if self.sharing is not None and held.stored:
            self.sharing.tell(held, "warning", data)

    def status(self, held: Held, numerator: bytes, denominator: bytes) -> None:
        """How far a worker is."""
        held.beat = self.clock.monotonic()
        held.numerator, held.denominator = numerator, denominator
        for listener in self.listeners.of(held.job.id):
            listener.status(held.handle, numerator, denominator)
        if self.sharing is not None and held.stored:
            self.sharing.tell(held, "status", numerator, denominator)

    # ---- clients ----

    def wait(
        self,
        job_id: int,
        listener: Listener,
        unknown: Callable[[], None],
        looked_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Tell a listener when a job has ended, at once if it has; ``unknown`` is called where there is no such job.

        ``looked_up`` is called once, when the store need not be asked any more.
        """
        self.listeners.add(job_id, listener)
        if self.handles.of(job_id) in self.window.held:
            looked_up()
        else:
            self._look(job_id, listener, unknown, looked_up)

    def _look(
        self, job_id: int, listener: Listener, unknown: Callable[[], None], looked_up: Callable[[], None]
    ) -> None:
        self.looking[job_id] = self.looking.get(job_id, 0) + 1

        def looked() -> None:
            self.looking[job_id] -= 1
            if not self.looking[job_id]:
                del self.looking[job_id]

        def found(jobs: dict[int, Job]) -> None:
            looked()
            looked_up()
            job = jobs.get(job_id)
            if job is None:
                if self.handles.of(job_id) not in self.window.held:
                    self.listeners.remove(job_id, listener)
                    unknown()
            elif State(job.state).ended and self.listeners.listens(job_id, listener):
                self.settling.tell(job, asked=job_id)

        def failed(error: StoreError) -> None:
            # What cannot be looked up now is not unknown: who hears that submits the job again.
            del error
            self.timers.at(self.clock.monotonic() + AGAIN, again)

        def again() -> None:
            looked()
            if self.listeners.listens(job_id, listener):
                self._look(job_id, listener, unknown, looked_up)
            else:
                looked_up()

        if self.sharing is None:
            self.commits.put(Find([job_id], found, failed))
        else:
            self.sharing.find([job_id], found, failed)

    def _look_ended(self, job_id: int) -> None:
        for listener in self.listeners.of(job_id)[:1]:
            self._look(job_id, listener, lambda: None, lambda: None)

    def client_gone(self, listener: Listener) -> None:
        """A client has left: foreground jobs that nobody waits for any more are dropped, unless they run."""
        listener.gone = True
        alone = self.listeners.leave(listener)
        for job_id in alone:
            held = self.window.held.get(self.handles.of(job_id))
            if held is not None and not held.stored and not held.adopting and held.worker is None:
                self.window.release(held)
        if self.sharing is not None and alone:
            self.sharing.left(alone)

    def cancel(
        self, job_id: int, reason: str, done: Callable[[str], None], failed: Callable[[MainspringError], None]
    ) -> None:
        """Cancel a job; ``done`` is told ``cancelled``, ``running`` (its worker was asked), or the state it had ended in."""
        held = self.window.held.get(self.handles.of(job_id))
        if held is not None:
            if held.then is not None:
                held.then.append(lambda: self.cancel(job_id, reason, done, failed))
            else:
                self.cancel_held(held, reason, done)
            return

        def cancelled(outcome: Cancelled) -> None:
            job = outcome.job
            if job is None:
                failed(NotFoundError(f"no job has the handle {self.handles.of(job_id).decode()}"))
            elif outcome.before <= State.PENDING:
                self._ended_in_store(job, outcome.before)
                done("cancelled")
            elif State(outcome.before).held and self.sharing is not None and job.term != self.window.term:
                self.sharing.stop(job.term, job_id, reason)
                done("running")
            elif State(outcome.before).held:
                # It was claimed while the request was under way, or its settlement waits for the store.
                self.settling.try_again()
                self.cancel(job_id, reason, done, failed)
            else:
                done(State(outcome.before).name.lower())

        error = failure("Cancelled", reason)
        self.commits.put(Cancel(job_id, error, round(self.clock.wall() * 1_000_000), cancelled, failed))

    def cancel_held(self, held: Held, reason: str, done: Callable[[str], None]) -> None:
        """Cancel a job in memory."""
        worker = held.worker
        if worker is not None and worker.streams:
            held.cancelled = reason or ASKED
            worker.face.stop(held, b"cancelled")
            done("running")
            return
        if worker is not None:
            worker.passed.add(held.handle)  # a plain worker cannot be told
        self.settling.cancelled(held, reason, lambda _: done("cancelled"))

    def retry(self, job_id: int, done: Callable[[Job], None], failed: Callable[[MainspringError], None]) -> None:
        """Put an ended, unsuccessful job back to pending."""
        handle = self.handles.of(job_id).decode()

        def refuse(job: Job | None, rival: int | None = None) -> None:
            if job is None:
                failed(NotFoundError(f"no job has the handle {handle}"))
            elif rival is not None:
                other = self.handles.of(rival).decode()
                failed(
                    ConflictError(f"the unique of {handle} is live again as {other}: wait for that job, or cancel it")
                )
            else:
                state = State(job.state).name.lower()
                failed(ConflictError(f"{handle} is {state}: only failed, cancelled and expired jobs can be retried"))

        def found(job: Job | None) -> None:
            if job is None or job.state not in rules.sources(rules.Event.REDRIVE):
                refuse(job)
                return
            key = (job.function, job.unique)
            foreground = self.window.foreground.get(key)
            if foreground is not None:
                refuse(job, foreground.job.id)
                return
            # It counts from now on, so that foreground jobs of its unique ask the store.
            queue = self.dispatch.queue(job.function)
            queue.live += 1
            self.uniques.overtake(key)

            def redriven(outcome: Redriven) -> None:
                if outcome.job is None or not outcome.redriven:
                    queue.live -= 1
                    refuse(outcome.job, outcome.rival)
                    return
                queue.backlog[outcome.job.priority] += 1
                if self.hub.active:
                    self.hub.publish(outcome.job)
                done(outcome.job)
                self.window.serve(queue)

            def not_redriven(error: StoreError) -> None:
                queue.live -= 1
                failed(error)

            self.commits.put(Redrive(job_id, redriven, not_redriven))

        self.find(job_id, found, failed)

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
