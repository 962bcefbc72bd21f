"""The jobs service of one node, which the faces call: from submission to settlement.

Before the node takes requests, `Startup` gives its earlier run's jobs back, and counts the waiting jobs. The first use of a
namespace prepares the node for it (`NamespaceGate`). `Workers` registers workers, and notes their readiness and their departure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring import namespaces
from mainspring.clock import to_us
from mainspring.errors import UsageError
from mainspring.features import Feature
from mainspring.ids import Term
from mainspring.jobs.admission import open_own
from mainspring.jobs.assignment import Assigner, TimeLimits
from mainspring.jobs.attempts import Attempts
from mainspring.jobs.completions import Completions
from mainspring.jobs.dispatch import Dispatch
from mainspring.jobs.foreground import Foreground
from mainspring.jobs.function_index import Counting, Registered, Roster, nobody
from mainspring.jobs.function_limits import Functions, FunctionTimes
from mainspring.jobs.intake import Intake, KeyedIntake, NodeJobLifecycle
from mainspring.jobs.lost_slots import LostSlots
from mainspring.jobs.maintenance import DueJobs, Maintenance
from mainspring.jobs.outcomes import OutcomeReader, Subscriptions, Waits
from mainspring.jobs.requests import Clients, JobChanges, RemoteJobs, StoredChanges
from mainspring.jobs.roots import RootJobs
from mainspring.jobs.settlement import Ends, Settling
from mainspring.jobs.settlement_records import Remembering, ResultRetention, SettledDeliveries
from mainspring.jobs.sharing import Reports, Sharing
from mainspring.jobs.store import Recover
from mainspring.jobs.table import Context, JobTable, Listeners, Uniques
from mainspring.jobs.tending import LIST_INTERVAL, Tending
from mainspring.jobs.token_grants import GrantedAccounts
from mainspring.jobs.user_data import ArgumentRules
from mainspring.loop_shares import LoopShares
from mainspring.namespaces import split_text
from mainspring.resources import holds
from mainspring.resources.service import Resources
from mainspring.storage.reads import SetAside
from mainspring.turns_of_loop import LongWork, Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import MainspringError, StoreError
    from mainspring.events import Hub
    from mainspring.ids import Handles
    from mainspring.jobs.held import Ability, FunctionQueue, Held, Worker
    from mainspring.jobs.lateness import DueRow
    from mainspring.jobs.roots import Roots
    from mainspring.jobs.rules import Settlement
    from mainspring.jobs.settlement import AttemptsEnded
    from mainspring.jobs.sharing import Shared
    from mainspring.jobs.store import Recovered
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads


class JobService:
    """The jobs slice of a node. Faces and the server call its parts; its own methods need several of them.

    ``earlier`` is called with a monotonic time if the next ``tick`` is needed sooner than its last result. ``retention`` and
    ``dead_retention`` are seconds for which ended jobs, and dead letters, are kept. ``lost_limit`` is ``--job-retries``.
    ``attempts_ended`` are called with settlements after their commit. ``lacks`` is what the store does not do; ``shared`` is for
    one that other nodes share. ``prefers`` is as in `Dispatch`. ``roots`` is given if the node runs workflows. ``arguments`` are
    the rules for arguments. ``set_aside`` has the jobs that this node cannot read.
    ``dated`` is called with committed times by which jobs should have begun and ended. ``first`` returns whether the node is
    first in line for a name (`storage.agenda`).
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        handles: Handles,
        hub: Hub,
        *,
        earlier: Callable[[float], object],
        shared: Shared | None = None,
        lacks: frozenset[Feature] = frozenset(),
        round_robin: bool = False,
        wakeup: int = 1,
        most_functions: int = 0,
        foreground_bytes: int = 2**30,
        lost_limit: int | None = None,
        retention: float = 86_400.0,
        dead_retention: float = 14 * 86_400.0,
        attempts_ended: Sequence[AttemptsEnded] = (),
        roots: Roots | None = None,
        prefers: Callable[[bytes], Callable[[Held], Worker | None] | None] | None = None,
        arguments: ArgumentRules | None = None,
        set_aside: SetAside | None = None,
        dated: Callable[[Sequence[DueRow]], None] = lambda _: None,
        first: Callable[[str], bool] | None = None,
    ) -> None:
        self.commits = commits
        self.lacks = lacks
        self.reads = reads
        self.arguments = arguments = ArgumentRules() if arguments is None else arguments
        self.results = results = ResultRetention(commits, clock.monotonic, arguments)
        self.clock = clock
        self.term = Term(0)
        self.handles = handles
        self.hub = hub
        alone = shared is None
        # The parts call later ones through methods of the service alone, and not before all are created.
        self.dispatch = dispatch = Dispatch(
            round_robin=round_robin,
            wakeup=wakeup,
            most=most_functions,
            on_new_queue=self._on_new_queue,
            may_hand_out=None if shared is None else shared.may_hand_out,
            prefers=prefers,
        )
        self.timers = timers = Timers(earlier)
        self.slices = slices = LongWork(lambda step: timers.at(clock.monotonic(), step), clock.monotonic)
        self.loop_shares = LoopShares(timers.at, clock.monotonic)
        self.listeners = listeners = Listeners(handles)
        self.namespace_gate = NamespaceGate(listeners, lacks)
        self.settled_deliveries = SettledDeliveries()
        leased = None if alone else GrantedAccounts()
        accounts = (lambda _: open_own) if leased is None else leased.opener
        self.table = table = JobTable(dispatch, clock, handles, accounts)
        self.uniques = uniques = Uniques(commits)
        context = Context(table, dispatch, commits, timers, clock, handles, listeners, hub, uniques, slices)
        self._context = context
        self._tending: Tending | None = None
        limits = TimeLimits(context, expired=self._expired, timed_out=self._timed_out, silent=self._silent)
        self.roots = root_jobs = RootJobs(context, roots)
        self.assigner = assigner = Assigner(
            context,
            limits,
            begin=root_jobs.begin_waiting,
            give_back=self._give_back,
            release=self._release,
            hand_back=self.hand_back,
            refused=self._refused,
            keep=self.keep,
            denied=self._denied,
            lacking=self._lacking,
            withheld=None if alone else self._withheld,
            leased=leased,
            share=None if shared is None else shared.share,
        )
        due_jobs = DueJobs(context, assigner)
        self.wake_at: Final = due_jobs.wake_at
        self.subscriptions = subscriptions = None if alone else Subscriptions(context, assigner, self._noted)
        self.outcomes = outcomes = OutcomeReader(context) if subscriptions is None else subscriptions.outcomes
        self.attempts = attempts = Attempts(lambda: round(clock.wall() * 1_000_000))
        self.ends = ends = Ends(
            context,
            assigner,
            wake_at=due_jobs.wake_at,
            drop=None if subscriptions is None else subscriptions.drop,
            attempts_ended=(attempts.ended, self._step_ended, *attempts_ended),
            remembering=Remembering(handles, clock, arguments, results),
        )
        if set_aside is None:
            set_aside = SetAside(clock)
        self.settling = settling = Settling(
            clock, ends, lost_limit=lost_limit, set_aside=set_aside, handle_of=handles.of
        )
        times = FunctionTimes()
        self.intake = intake = Intake(context, assigner, root_jobs, due_jobs.wake_at, attempts.submitted, times)
        self.keyed_intake = KeyedIntake(context, intake, root_jobs, times)
        self.foreground = foreground = Foreground(
            context, assigner, intake, root_jobs, outcomes, limit=foreground_bytes, subscriptions=subscriptions
        )
        self._maintenance = Maintenance(
            context,
            assigner,
            ends,
            due_jobs,
            retention=retention,
            dead_retention=dead_retention,
            results=results,
            shared=not alone,
        )
        self.waits = Waits(context, assigner, outcomes, subscriptions)
        self.completions = Completions(
            context,
            reads,
            ends,
            due_jobs,
            policy=settling.policy,
            arguments=arguments,
            results=results,
            first=first,
            paused=lambda: dispatch.paused or not table.term or Feature.COMPLETIONS in lacks,
        )
        remote_jobs = None if shared is None else RemoteJobs(context, shared.relay)
        self.stored_changes = stored_changes = StoredChanges(context, assigner, due_jobs)
        self.clients = clients = Clients(
            context,
            reads,
            settling,
            ends,
            stored_changes,
            root_jobs,
            keeps_requests=alone and Feature.WORKFLOWS not in lacks,
            remote_jobs=remote_jobs,
        )
        self.lost_slots = lost_slots = LostSlots(
            context, reads, settling, ends, assigner.hold_requests, None if shared is None else shared.relay
        )
        self.changes = JobChanges(context, settling, ends, stored_changes)
        self.resources = Resources(commits, clock, assigner.hold_requests.changed)
        self.functions = Functions(
            context,
            reads,
            assigner.serve,
            times,
            self.resources,
            kept=Feature.LIMITS not in lacks,
            shared=not alone,
        )
        self.workers = Workers(context, assigner, settling, foreground, self.functions, root_jobs)
        self._counting = Counting(context, assigner, reads)
        self.registered = Registered(dispatch, clock, nobody if shared is None else shared.elsewhere)
        self.roster = Roster(dispatch, commits, reads, clock)
        self.reports = reports = Reports(context, None if shared is None else shared.relay)
        self.sharing: Sharing | None = None
        if shared is not None:
            assert subscriptions is not None
            assert remote_jobs is not None
            assert assigner.token_grants is not None
            self.sharing = Sharing(
                context,
                assigner,
                shared,
                assigner.token_grants,
                subscriptions,
                remote_jobs,
                reports,
                ends,
                clients,
                lost_slots.asked,
                due_jobs.wake_at,
                set_aside,
            )
            self.sharing.add_reader(self.functions.read_signs)
        self.lifecycle = NodeJobLifecycle(
            context, assigner, ends, intake, clients, times, root_jobs, dated, stored_changes
        )
        self.startup = Startup(context, self.functions, ends, self._counting, due_jobs, root_jobs, self.sharing)
        self._ends = False

    def tending(self, mine: Callable[[str], bool], interval: float = LIST_INTERVAL) -> Tending:
        """Return the part of the node that looks at managed resources for whose names it is the first in line.

        ``interval``: seconds between two readings of their names.
        """
        resources, changed = self.resources, self.assigner.hold_requests.changed
        self._tending = Tending(
            self._context,
            self.reads,
            self.intake,
            mine=mine,
            interval=interval,
            declared=resources.managed,
            changed=changed,
        )
        return self._tending

    def _lacking(self, names: Collection[str]) -> None:
        if self._tending is not None:
            self._tending.lacking(names)

    def _step_ended(self, settlements: Sequence[Settlement]) -> None:
        if self._tending is not None:
            self._tending.ended(settlements)

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after some seconds."""
        self.timers.at(self.clock.monotonic() + seconds, function)

    def settled_within(self, seconds: float, then: Callable[[], None]) -> None:
        """Call a function when all settlements so far are committed, and after some seconds at the latest."""
        waiting = [then]

        def go_on() -> None:
            if waiting:
                self.timers.cancel(timer)
                waiting.pop()()

        timer = self.timers.at(self.clock.monotonic() + seconds, go_on)
        self.ends.when_settled(go_on)

    @property
    def unsettled(self) -> bool:
        """Whether any settlements failed in the store and will be retried."""
        return bool(self.ends.unsettled)

    @property
    def jobs_of_others(self) -> tuple[int, int]:
        """The numbers of live and waiting jobs of the functions that are rows of the store alone."""
        return self.roster.jobs, self.roster.waiting

    def tick(self) -> float:
        """Do the work that is due; return the monotonic time of the next tick."""
        if self.sharing is not None:
            self.sharing.tick(self.clock.monotonic())
        self.functions.tick(self.clock.monotonic())
        self.roots.tick(self.clock.monotonic(), is_shared=self.sharing is not None)
        self.roster.tick(self.clock.monotonic())
        self.assigner.hold_requests.tick(self.clock.monotonic())
        self.lost_slots.tick(self.clock.monotonic())
        self.completions.tick()
        self.ends.report_ends()
        return self._maintenance.tick()

    def run_timers(self) -> float:
        """Run the timers that are due, in place of a tick; return the monotonic time of the next tick."""
        return self._maintenance.run_timers()

    @property
    def idle(self) -> bool:
        """Whether the node has no job, and no client or job waits for it."""
        busy = (
            self.table.held or self.table.on_the_way or self.ends.unsettled or len(self.listeners) or len(self.outcomes)
        )
        return not busy and self.commits.idle and (self.sharing is None or self.sharing.idle)

    def begin(self, term: Term) -> None:
        """Hold jobs under a term from now on: the first, or after `fenced` another one, under which `resume` hands them out."""
        self.table.begin(term)
        self.term = term
        self.assigner.begin_term()
        if self.subscriptions is not None:
            self.subscriptions.begin_again()

    def recover(self, terms: Sequence[int]) -> None:
        """Give back the jobs of other nodes' terms, which have ended."""
        assert self.sharing is not None
        self.sharing.recover(terms)

    def set_place(self, place: int, nodes: int) -> None:
        """Set this node's place among all that have the store open, from 0 on, and their number."""
        assert self.sharing is not None
        self.sharing.set_place(place, nodes)

    def resume(self) -> None:
        """Hand out jobs again, after `hand_back`, or after `fenced` once there is a new term; not after `end`."""
        if self._ends or not self.table.term:
            return
        self.dispatch.resume()
        self.assigner.serve_all()

    def hand_back(self) -> None:
        """Stop handing out jobs, and give waiting jobs back: a clean shutdown leaves no job as a suspect."""
        self.dispatch.pause()
        for held in list(self.table.held.values()):
            if held.stored and held.worker is None:
                self.settling.released(held)

    def end(self) -> None:
        """Stop handing out jobs for good: the node shuts down, whatever happens to its lease meanwhile."""
        self._ends = True
        self.hand_back()

    def counted(self, then: Callable[[], None]) -> None:
        """Call a function when the counts of jobs are at most a second old; at once where this node alone has the store.

        If the store does not answer, the function is called after a second with the last counts.
        """
        if self.sharing is None:
            then()
        else:
            self.sharing.counted(then)

    def _on_new_queue(self, queue: FunctionQueue) -> None:
        """Set up the queue of a function that this node begins to use."""
        queue.is_root = queue.name in self.roots.functions
        self.functions.apply(queue.name)
        if self.dispatch.complete:
            return
        if self.sharing is None:
            self._counting.ask(queue)
        else:
            queue.uncounted = True  # the next reading counts; a worker need not wait for it

    def _give_back(self, queue: FunctionQueue) -> None:
        self.workers.give_back(queue)

    def _release(self, held: Held) -> None:
        self.settling.released(held)

    def keep(
        self, held: Held, then: Callable[[], None], refused: Callable[[MainspringError], None] = lambda _: None
    ) -> None:
        """Store a foreground job, unless it is stored already, and then call a function. One that has ended stays as it is."""
        if held.adopting:
            assert held.then is not None
            held.then.append(lambda: self.keep(held, then, refused))
        elif held.stored:
            then()
        elif self.table.held.get(held.handle) is held:
            self.intake.store_foreground(held, held.job, then, refused)

    def _expired(self, held: Held) -> None:
        self.settling.expired(held)

    def _denied(self, held: Held, waits: holds.Waits) -> None:
        lacking = ", ".join(split_text(name)[1] for name in waits.lacking)
        behind = ", ".join(
            str(one.id) if one.kind == holds.HolderKind.PERSON else self.handles.of(one.id).decode()
            for one in waits.behind
        )
        why = f"the job has waited too long for slots of {lacking}"
        if waits.impossible:
            why += ", which has fewer than it needs"
        self.settling.denied(held, f"{why}; before it were {behind}" if behind else why)

    def _timed_out(self, held: Held, timeout: float, requeue: bool) -> None:
        self.settling.timed_out(held, timeout, requeue)

    def _silent(self, held: Held, heartbeat: float) -> None:
        self.settling.silent(held, heartbeat)

    def _refused(self, held: Held) -> bool:
        return self.settling.refuses(held)

    def _withheld(self, held: Held) -> bool:
        return self.subscriptions is not None and self.subscriptions.withholds(held)

    def _noted(self) -> None:
        if self.sharing is not None:
            self.sharing.noted()


class Startup:
    """Runs once, before the node takes requests. ``sharing`` is given if the store is shared."""

    def __init__(
        self,
        context: Context,
        functions: Functions,
        ends: Ends,
        counting: Counting,
        due_jobs: DueJobs,
        roots: RootJobs,
        sharing: Sharing | None,
    ) -> None:
        self._table, self._commits, self._clock = context.table, context.commits, context.clock
        self._functions = functions
        self._ends = ends
        self._counting = counting
        self._due_jobs = due_jobs
        self._roots = roots
        self._sharing = sharing

    def run(self, ready: Callable[[int], None], failed: Callable[[StoreError], None]) -> None:
        """Give back the jobs that an earlier run of this node held, and count the waiting jobs; then call ``ready``.

        ``ready`` takes the number of jobs given back. On a shared store it is 0: the nodes agree on who recovers jobs, and when.
        """

        def loaded() -> None:
            if self._sharing is not None:
                self._sharing.look(lambda: ready(0), failed)
            else:
                self._commits.put(Recover(self._table.term, now_us=to_us(self._clock.wall())), recovered, failed)

        def recovered(outcome: Recovered) -> None:
            self._ends.recovered(outcome.lost)
            self._counting.begin(lambda: counted(outcome.number), failed)

        def counted(number: int) -> None:
            self._due_jobs.wake()
            self._roots.begin_counted()
            ready(number)

        self._functions.load(loaded, failed)


class NamespaceGate:
    """Prepares a node for namespaces; ``lacks`` is what the store does not do."""

    def __init__(self, listeners: Listeners, lacks: frozenset[Feature]) -> None:
        self._listeners = listeners
        self._lacks = lacks

    def enter(self, namespace: str) -> None:
        """Prepare for jobs, clients and workers of a namespace. Raises UsageError if that is impossible."""
        if namespace == namespaces.DEFAULT:
            return
        namespaces.check(namespace)
        if Feature.NAMESPACES in self._lacks:
            raise UsageError(Feature.NAMESPACES.refusal)
        self._listeners.expect_namespaces()


FUNCTIONS_AT_ONCE: Final = 100
"""The most functions that a worker leaves at once; more are left in steps."""


class Workers:
    """Registers workers for functions, and requeues the jobs of departed workers."""

    def __init__(
        self,
        context: Context,
        assigner: Assigner,
        settling: Settling,
        foreground: Foreground,
        functions: Functions,
        roots: RootJobs,
    ) -> None:
        self._table, self._dispatch = context.table, context.dispatch
        self._assigner = assigner
        self._settling = settling
        self._foreground = foreground
        self._functions = functions
        self._roots = roots
        self._slices = context.slices

    def register(self, worker: Worker, function: bytes, ability: Ability) -> None:
        """Register a worker for a function, unless it has gone."""
        if worker.gone:
            return
        self._functions.declare_of(function, ability)
        self._assigner.serve(self._dispatch.register(worker, function, ability))

    def unregister(self, worker: Worker, function: bytes) -> None:
        """Unregister a worker from a function; its running jobs of it go to another worker, as in Gearman."""
        queue = self._dispatch.queues.get(function)
        if queue is None or queue not in worker.abilities:
            return
        self._dispatch.unregister(worker, queue)
        for held in list(worker.running.values()):
            if held.queue is queue:
                self._settling.lost(held, "its worker said CANT_DO")
        self._assigner.has_left(worker)
        self._left(queue)

    def unregister_all(self, worker: Worker, then: Callable[[], None]) -> None:
        """Unregister a worker from all functions; ``then`` is called at the end."""

        def forget() -> Iterator[None]:
            for queue in list(worker.abilities):
                self.unregister(worker, queue.name)
                yield

        self._forget(worker, forget(), then)

    def _forget(self, worker: Worker, functions: Iterator[None], then: Callable[[], None] = lambda: None) -> None:
        """Remove a worker from its functions, one with each step; at once if they are few."""
        if len(worker.abilities) > FUNCTIONS_AT_ONCE:
            self._slices.run(functions, then)
            return
        for _ in functions:
            pass
        then()

    def ready(self, worker: Worker, places: int) -> None:
        """Add to the credit of a streaming worker, and assign jobs to it; a worker that has gone gets none."""
        if worker.gone:
            return
        worker.streams = True
        worker.credit += places
        while worker.credit > 0:
            held = self._dispatch.grab(worker)
            if held is None:
                self._dispatch.offer(worker)
                break
            worker.credit -= 1
            self._assigner.start(held, worker)
            worker.connection.assign(held)
        self._assigner.refill(worker)

    def hold_off(self, worker: Worker, full: bool) -> None:
        """Assign no jobs with heartbeat timeouts to a ``full`` worker, or assign them again."""
        if full != worker.is_full and not worker.gone:
            for queue in self._dispatch.hold_off(worker, full):
                self._assigner.serve(queue)

    def gone(self, worker: Worker) -> None:
        """Remove a worker whose connection has ended."""
        self._dispatch.leave(worker)  # first, so that it does not get its own jobs back
        self._settling.worker_gone(worker, "its worker's connection ended")

        def forget() -> Iterator[None]:
            for queue in list(worker.abilities):
                self._dispatch.unregister(worker, queue)
                self._left(queue)
                yield

        self._forget(worker, forget())

    def _left(self, queue: FunctionQueue) -> None:
        """Serve a function that a worker has left, or give its jobs back if it was the last one."""
        if queue.workers:
            self._assigner.serve(queue)
        else:
            self.give_back(queue)

    def became_root(self, function: bytes) -> None:
        """Begin runs for a function's jobs from now on, also for those that wait; a job that a worker has ends as before."""
        if function in self._roots.functions:
            return
        self._roots.functions.add(function)
        queue = self._dispatch.queue(function)
        queue.is_root = True
        for held in self._assigner.waiting_apart(queue) + queue.queued():
            self._begin_run(held)
        self._assigner.serve(queue)

    def _begin_run(self, held: Held) -> None:
        if held.stored:
            self._settling.released(held)
        elif held.then is not None:  # it is being stored, and begins afterwards
            held.then.append(lambda: self._begin_stored(held))
        else:
            self._foreground.begin_held(held)

    def _begin_stored(self, held: Held) -> None:
        if self._table.find(held.job.id) is held and held.worker is None:
            self._begin_run(held)

    def give_back(self, queue: FunctionQueue) -> None:
        """Give a function's waiting jobs back to the store, because no worker here can run them."""
        for held in self._assigner.waiting_apart(queue) + queue.queued():
            if held.stored:
                self._settling.released(held)
            elif held.then is not None:  # it is being stored, and is given back afterwards
                held.then.append(lambda: None if queue.workers else self.give_back(queue))
            else:
                self._foreground.pass_on(held)

    @staticmethod
    def pass_over(worker: Worker | None, handle: bytes) -> bool:
        """Return whether a plain worker's reports about a job are ignored, because it was cancelled while it ran."""
        return worker is not None and handle in worker.ignored_results
