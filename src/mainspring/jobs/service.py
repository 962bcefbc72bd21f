"""What the faces call: the jobs of one node, from submission to settlement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.ids import Term
from mainspring.jobs.attempts import Attempts
from mainspring.jobs.census import Census
from mainspring.jobs.clients import Clients
from mainspring.jobs.counting import Counting
from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.foreground import Foreground
from mainspring.jobs.functions import Functions
from mainspring.jobs.intake import Intake
from mainspring.jobs.limits import Limits
from mainspring.jobs.listeners import Listeners
from mainspring.jobs.model import State
from mainspring.jobs.registered import Registered
from mainspring.jobs.remembered import Remembered
from mainspring.jobs.roster import Roster
from mainspring.jobs.settling import Settling
from mainspring.jobs.sharing import Sharing
from mainspring.jobs.store import CountLive, Recover
from mainspring.jobs.telling import Telling
from mainspring.jobs.timers import Timers
from mainspring.jobs.uniques import Uniques
from mainspring.jobs.upkeep import Upkeep
from mainspring.jobs.window import Window
from mainspring.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.events.hub import Hub
    from mainspring.events.relay import Relay
    from mainspring.ids import Handles
    from mainspring.jobs.held import Ability, FunctionQueue, Held, Worker
    from mainspring.jobs.model import Job
    from mainspring.jobs.settling import AttemptsEnded
    from mainspring.jobs.store import Counted, Recovered
    from mainspring.storage.commit_queue import CommitQueue


FEW = 100
"""Functions that a worker may leave at once; of more, a part in each turn of the loop."""


class JobService:
    """The jobs slice of a node.

    ``earlier`` is called with a monotonic time when ``tick`` is wanted sooner than it said. ``retention`` and
    ``dead_retention`` are seconds for which ended jobs, and dead letters, are kept. ``lost_limit`` is ``--job-retries``.
    ``attempts_ended`` are called with settlements after their commit.
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
        most_functions: int = 0,
        foreground_bytes: int = 2**30,
        lost_limit: int | None = None,
        retention: float = 86_400.0,
        dead_retention: float = 14 * 86_400.0,
        attempts_ended: Sequence[AttemptsEnded] = (),
    ) -> None:
        self.commits = commits
        self.clock = clock
        self.term = term
        self.handles = handles
        self.hub = hub
        self.dispatch = Dispatch(round_robin=round_robin, wakeup=wakeup, most=most_functions)
        self.timers = Timers(earlier)
        self.slices = Slices(lambda step: self.timers.at(clock.monotonic(), step), clock.monotonic)
        self.listeners = Listeners()
        self.telling = Telling(handles, self.listeners)
        self.remembered = Remembered()
        self.window = Window(commits, self.dispatch, self.timers, clock, term, handles)
        self.attempts = Attempts()
        ends = (self.attempts.ended, *attempts_ended)
        self.settling = Settling(
            self.window, self.listeners, self.telling, hub, lost_limit=lost_limit, attempts_ended=ends
        )
        self.uniques = Uniques(commits)
        self.intake = Intake(self.window, self.uniques, self.listeners, hub)
        self.foreground = Foreground(
            self.window, self.intake, self.uniques, self.listeners, hub, limit=foreground_bytes
        )
        self.window.started = self._started
        self.window.give_back = self._give_back
        self._limits = Limits(self.window, self.settling, lost_limit=lost_limit)
        self._upkeep = Upkeep(
            self.window,
            self.settling,
            self.listeners,
            self.slices,
            self._ended_in_store,
            retention=retention,
            dead_retention=dead_retention,
        )
        self.clients = Clients(
            self.window,
            self.settling,
            self.uniques,
            self.listeners,
            hub,
            self.telling,
            self.slices,
            self._ended_in_store,
        )
        self.foreground.look = self.clients.look_ended
        self.settling.wake_at = self.intake.wake_at = self.wake_at = self._upkeep.wake_at
        self.functions = Functions(self.window)
        self._counting = Counting(self.window)
        self.dispatch.made = self._made
        self.registered = Registered(self.dispatch, clock)
        self.roster = Roster(self.dispatch, commits)
        self.census = Census(self.dispatch, commits, clock)
        self.sharing: Sharing | None = None
        self._ends = False

    def start(self, ready: Callable[[int], None], failed: Callable[[StoreError], None]) -> None:
        """Give back what an earlier run of this node held, and learn what waits; then call ``ready`` with how many.

        On a shared store nothing is given back here: who gives back what, and when, is for the nodes to agree on.
        """
        sharing = self.sharing
        if sharing is not None:
            self.functions.load(lambda: sharing.look(lambda: ready(0), failed), failed)
            return

        def counted(page: Counted, recovered: int) -> None:
            for (function, state, priority), number in page.counts.items():
                queue = self.dispatch.known(function)
                if queue is None:
                    pass  # the store alone counts it
                elif state == State.PENDING:
                    queue.backlog[priority] = number
                else:
                    queue.away += number
            if page.next is not None and self.dispatch.complete:
                count(recovered, page.next)
                return
            self._upkeep.wake()
            ready(recovered)

        def count(recovered: int, after: bytes = b"") -> None:
            self.commits.put(CountLive(lambda page: counted(page, recovered), failed, after=after))

        def recovered(outcome: Recovered) -> None:
            self.settling.recovered(outcome.lost)
            count(outcome.number)

        self.functions.load(lambda: self.commits.put(Recover(self.term, recovered, failed)), failed)

    def tick(self) -> float:
        """Do what is due; returns the monotonic time of the next tick that is wanted."""
        if self.sharing is not None:
            self.sharing.tick(self.clock.monotonic())
        self.functions.tick(self.clock.monotonic())
        self.census.tick(self.clock.monotonic())
        self.settling.tell_ends()
        return self._upkeep.tick()

    def share(self, relay: Relay) -> Sharing:
        """Other nodes have the store open too."""
        self.sharing = self.clients.sharing = Sharing(self, relay)
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
            held.queue.leased -= 1
            held.queue.away += 1
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
        queue = self.dispatch.known(job.function)
        if queue is None:
            pass  # the store alone counts it
        elif before == State.PENDING:
            self.window.no_longer_pending(queue, job.priority)
        else:
            self.window.no_longer_away(queue)
        self.telling.tell(job)
        if self.hub.active:
            self.hub.publish(job)

    def counted(self, then: Callable[[], None]) -> None:
        """Call a function when the counts of jobs are at most a second old; at once where this node alone has the store.

        Where the store does not answer, it is called after a second with the counts as they are known.
        """
        if self.sharing is None:
            then()
        else:
            self.sharing.counted(then)

    def _made(self, queue: FunctionQueue) -> None:
        """This node has to do with a function that it did not know, or had left to the store."""
        self.functions.apply(queue.name)
        if self.dispatch.complete:
            return
        if self.sharing is None:
            self._counting.ask(queue)
        else:
            queue.uncounted = True  # the next look counts; a worker need not wait for it

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

    def unregister_all(self, worker: Worker, then: Callable[[], None]) -> None:
        """A worker can no longer run anything; ``then`` is called once that is so."""

        def forget() -> Iterator[None]:
            for queue in list(worker.abilities):
                self.unregister(worker, queue.name)
                yield

        self._forget(worker, forget(), then)

    def _forget(self, worker: Worker, functions: Iterator[None], then: Callable[[], None] = lambda: None) -> None:
        """Have functions forget a worker, one with each step: at once where they are few."""
        if len(worker.abilities) > FEW:
            self.slices.run(functions, then)
            return
        for _ in functions:
            pass
        then()

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
        self.dispatch.leave(worker)  # first, so that it is not given back what it leaves behind
        self.settling.worker_gone(worker, "its worker's connection ended")

        def forget() -> Iterator[None]:
            for queue in list(worker.abilities):
                self.dispatch.unregister(worker, queue)
                self._left(queue)
                yield

        self._forget(worker, forget())

    def _left(self, queue: FunctionQueue) -> None:
        """A worker no longer runs a function: others take over what it was woken for, or nobody does."""
        if queue.workers:
            self.window.serve(queue)
        else:
            self._give_back(queue)

    def _give_back(self, queue: FunctionQueue) -> None:
        """Nobody here can run what waits in memory: it goes back to the store, which is where it is bounded."""
        for held in self.window.suspects.of(queue) + self.window.isolated.of(queue) + queue.queued():
            if held.stored:
                self.settling.released(held)
            elif self.sharing is not None:
                self.foreground.pass_on(held)

    def _started(self, held: Held) -> None:
        held.started_us = round(self.clock.wall() * 1_000_000)
        if self.hub.active:
            self.hub.publish(held.seen())
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
