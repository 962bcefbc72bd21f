"""A node's part in a fleet with a shared store: messages, the backlog of other nodes' jobs, recovery, and reports of progress.

Other nodes and users' own transactions submit jobs, and other nodes claim them. Hints of the relay announce that at once, but may
be lost, and nothing announces the end of a user's transaction; so nodes also read the backlog, each at times of its own.

Progress reports of workers go to waiting clients here and at other nodes (`Reports`); a single node has the first part alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.clock import to_us
from mainspring.events import (
    Abandoned,
    Ask,
    Direct,
    FollowLog,
    FollowStreams,
    FollowValues,
    InterestsChanged,
    Logged,
    Message,
    Pending,
    Progress,
    ProgressText,
    Running,
    Settled,
    Stop,
    StopRequested,
    StreamsWritten,
    TakeSlots,
    ValuesPublished,
)
from mainspring.jobs.function_index import count_in_flight
from mainspring.jobs.held import ProgressSubscribers
from mainspring.jobs.store import DrainInbox, FindSubscribers, ReadBacklog, Recover
from mainspring.jobs.store.nodes import REFUSED, REFUSED_REMEDY
from mainspring.storage.reads import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.errors import StoreError
    from mainspring.events import AboutWaiters, Relay
    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.claiming import ClaimQuota
    from mainspring.jobs.held import FunctionQueue, Held
    from mainspring.jobs.outcomes import Subscriptions
    from mainspring.jobs.requests import Clients, RemoteJobs
    from mainspring.jobs.settlement import Ends
    from mainspring.jobs.store import Backlog, DrainedInbox, Recovered, RefusedSubmissions, Signs
    from mainspring.jobs.table import Context
    from mainspring.jobs.token_grants import TokenGrants
    from mainspring.storage.reads import SetAside

SUBMISSION: Final = Kind("submission", REFUSED_REMEDY, is_tried_again=False)
BACKLOG_INTERVAL = 1.0
"""Seconds between readings of the backlog. Idle nodes take turns, so that one of them reads in each interval."""
IDLE_INTERVALS: Final = 3
"""The most intervals between two readings of an idle node: so long, it does not know what other nodes have changed."""
COUNTS_MAX_AGE: Final = 1.0
"""Seconds after which counts of jobs are read again before they are shown."""
COUNTS_TIMEOUT: Final = 1.0
"""The most seconds to wait for fresh counts."""
REFRESH_INTERVAL = 5.0
"""Seconds between lookups of the jobs that clients here wait for; they replace messages that the relay lost."""


def _ignore(_: Direct | FollowLog | Logged | AboutWaiters) -> None:
    """Drop a message."""


def _ignore_change() -> None:
    """Record nothing."""


def _ignore_recovery(_: Sequence[int], __: Recovered) -> None:
    """Record nothing."""


class Shared(NamedTuple):
    """A node's connection to the other nodes of its store."""

    relay: Relay
    may_hand_out: Callable[[], bool]
    """Returns whether the node's lease is valid, and no other node may be about to end its term. A suspended node may receive
    messages of workers before its timers run and end its lease."""
    elsewhere: Callable[[], frozenset[bytes] | None]
    """Returns the functions of the other nodes' workers; None while they are unknown."""
    share: Callable[[FunctionQueue], ClaimQuota] | None = None
    """Returns this node's present quota of a function's stored jobs; None: there are no quotas."""
    direct: Callable[[Direct], None] = _ignore
    """Is called with requests to workers of this node."""
    logs: Callable[[FollowLog | Logged], None] = _ignore
    """Is called with messages about logs of jobs."""
    waiters: Callable[[AboutWaiters], None] = _ignore
    """Is called with messages about published values and streams."""
    recovered: Callable[[Sequence[int], Recovered], None] = _ignore_recovery
    """Is called with ended terms and each part of their jobs that this node has given back."""
    interests_changed: Callable[[], object] = _ignore_change
    """Is called when another node has changed interests in events."""


class Sharing:
    """This node's part in the fleet. ``wake_at`` is called with the time at which a stored job is due."""

    def __init__(
        self,
        context: Context,
        assigner: Assigner,
        shared: Shared,
        token_grants: TokenGrants,
        subscriptions: Subscriptions,
        remote_jobs: RemoteJobs,
        reports: Reports,
        ends: Ends,
        clients: Clients,
        take_slots: Callable[[TakeSlots], None],
        wake_at: Callable[[int], None],
        set_aside: SetAside,
    ) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._timers, self._clock = context.timers, context.clock
        self._assigner = assigner
        self._token_grants = token_grants
        self._subscriptions = subscriptions
        self._remote_jobs = remote_jobs
        self._reports = reports
        self._ends = ends
        self._clients = clients
        self._take_slots = take_slots
        self._wake_at = wake_at
        self._set_aside = set_aside
        self._looking = self._draining = False
        self._idle = False
        """Whether no job waited in the store at the last reading."""
        self._place, self._nodes = 0, 1
        """The place of this node among all, from 0 on, and their number."""
        self._looked = self._asked = self._clock.monotonic()
        self._counted = float("-inf")
        """The monotonic time at which the present counts were requested."""
        self._counting: list[Callable[[], None]] = []
        """Functions to call when newer counts have come."""
        self._unrecovered: list[Sequence[int]] = []
        """Ended terms whose jobs are recovered once the subscriptions are renewed: this node's last term may be among them."""
        self._sign_readers: list[tuple[Callable[[Signs], None], Callable[[], bool]]] = []
        self._direct, self._logs, self._recovered = shared.direct, shared.logs, shared.recovered
        self._waiters = shared.waiters
        self._interests_changed = shared.interests_changed
        shared.relay.listen(self.receive)

    def receive(self, message: Message) -> None:
        """Process a message of another node, or of this one."""
        match message:
            case Pending(functions):
                for name in functions:
                    queue = self._dispatch.queues.get(name)
                    if queue is not None and queue.admission is not None:
                        self._token_grants.hint(queue)
                        self._assigner.hold_requests.hint(queue)
                    if queue is not None and queue.workers:
                        self._assigner.hint(queue)
            case Settled(ids):
                self._subscriptions.ask(ids)
            case Abandoned(terms):
                self.recover(terms)
            case Progress():
                self._reports.reported_elsewhere(message)
            case ProgressText():
                self._reports.text_elsewhere(message)
            case Ask(job_id, by):
                self._remote_jobs.asked(job_id, by)
            case StopRequested():
                self._remote_jobs.stop_requested(message)
            case Running():
                self._remote_jobs.answered(message)
            case Direct():
                self._direct(message)
            case FollowLog() | Logged():
                self._logs(message)
            case FollowValues() | ValuesPublished() | FollowStreams() | StreamsWritten():
                self._waiters(message)
            case InterestsChanged():
                self._interests_changed()
            case TakeSlots():
                self._take_slots(message)
            case Stop(job_id, reason):
                held = self._table.find(job_id)
                if held is not None:
                    self._clients.cancel_held(held, reason, lambda _: None)

    def tick(self, now: float) -> None:
        """Do the work that is due."""
        self._token_grants.tick()
        # With an empty backlog, new jobs are announced by hints; only a lost hint costs the time until the next reading.
        # A reading just before the turn, which somebody has asked for, counts for it.
        if not self._looking and self._looked <= self._turn(now) - BACKLOG_INTERVAL / 2:
            self.look()
        if now - self._asked >= REFRESH_INTERVAL:
            self._asked = now
            self._subscriptions.ask_all()

    def _turn(self, now: float) -> float:
        """Return the monotonic time at which this node's last turn to read the backlog has begun.

        Nodes have one clock, that of the store, and divide each of its intervals evenly by their places.
        """
        every = BACKLOG_INTERVAL * (min(self._nodes, IDLE_INTERVALS) if self._idle else 1)
        return now - (self._clock.wall() - self._place * every / self._nodes) % every

    @property
    def idle(self) -> bool:
        """Whether no job waited in the store at the last reading, and none of an ended term waits for its recovery."""
        return self._idle and not self._unrecovered

    def set_place(self, place: int, nodes: int) -> None:
        """Set this node's place among all nodes, from 0 on, and their number."""
        self._place, self._nodes = place, nodes

    def add_reader(self, read_signs: Callable[[Signs], None], awaits_times: Callable[[], bool] = lambda: True) -> None:
        """Pass signs to a part of the node that looks into the store by itself, unless signs show that there is nothing for it.

        ``awaits_times`` returns whether it has nothing that is due soon: then it needs the first time in the store. Other nodes
        read the same signs at other times.
        """
        self._sign_readers.append((read_signs, awaits_times))

    # ---- recovery ----

    def noted(self) -> None:
        """Recover the waiting terms, because the subscriptions are stored under the node's new term."""
        unrecovered, self._unrecovered = self._unrecovered, []
        for terms in unrecovered:
            self.recover(terms)

    def recover(self, terms: Sequence[int]) -> None:
        """Give back the jobs of ended terms, in parts."""
        if self._subscriptions.under_way:
            self._unrecovered.append(terms)
            return

        def recovered(outcome: Recovered) -> None:
            self._ends.recovered(outcome.lost)
            self._assigner.now_pending(outcome.pending, were_away=True)
            self._recovered(terms, outcome)
            if outcome.more:
                self.recover(terms)

        # Terms that could not be recovered now are reported as abandoned again.
        now_us = to_us(self._clock.wall())
        self._commits.put(Recover(self._table.term, terms, now_us=now_us), recovered, lambda _: None)

    # ---- backlog ----

    def look(self, then: Callable[[], None] = lambda: None, failed: Callable[[StoreError], None] | None = None) -> None:
        """Count the waiting jobs."""

        def looked(backlog: Backlog) -> None:
            # The rest of the group is counted first: the answer includes it already.
            self._commits.after_answers(lambda: learn(backlog))

        def learn(backlog: Backlog) -> None:
            self._looking = False
            self._counted = asked
            self._learn(backlog, functions)
            self._answer_counts()
            then()

        def not_looked(error: StoreError) -> None:
            self._looking = False
            self._answer_counts()
            if failed is not None:
                failed(error)

        asked = self._looked = self._clock.monotonic()
        self._looking = True
        # Where very many functions have jobs, only those that somebody here has to do with are counted.
        dispatch = self._dispatch
        functions = None if dispatch.complete else list(dispatch.queues)
        times = all(awaits_times() for _, awaits_times in self._sign_readers)
        self._commits.put(ReadBacklog(functions, times=times), looked, not_looked)

    def counted(self, then: Callable[[], None]) -> None:
        """Call a function when the counts are at most `COUNTS_MAX_AGE` old, or after `COUNTS_TIMEOUT` where the store is slow."""
        now = self._clock.monotonic()
        if now - self._counted <= COUNTS_MAX_AGE:
            then()
            return

        def give_up() -> None:
            if waiting in self._counting:
                self._counting.remove(waiting)
                then()

        def waiting() -> None:
            self._timers.cancel(timer)
            then()

        timer = self._timers.at(now + COUNTS_TIMEOUT, give_up)
        self._counting.append(waiting)
        if not self._looking:
            self.look()

    def _answer_counts(self) -> None:
        counting, self._counting = self._counting, []
        for function in counting:
            function()

    def _learn(self, backlog: Backlog, functions: Sequence[bytes] | None) -> None:
        """Take the counts of some functions; None: of all."""
        self._idle = not backlog.pending and not backlog.inbox
        dispatch = self._dispatch
        for name in backlog.live:
            dispatch.tracked(name)
        queues = dispatch.queues
        counted = {name: queues[name] for name in functions if name in queues} if functions is not None else queues
        for name, queue in counted.items():
            live = backlog.live.get(name, 0)
            if live or any(queue.backlog) or queue.away:
                for priority in range(3):
                    queue.backlog[priority] = backlog.pending.get((name, priority), 0)
                queue.away = max(live - sum(queue.backlog) - queue.leased, 0)
        count_in_flight(self._commits.waiting, counted)
        for queue in list(counted.values()):
            if queue.is_active():
                self._assigner.serve(queue)
        if backlog.next_us:
            self._wake_at(backlog.next_us)
        if backlog.inbox and not self._draining:
            self.drain_inbox()
        if backlog.refused is not None:
            self._note_refused(backlog.refused)
        if backlog.signs is not None:
            for read_signs, _ in self._sign_readers:
                read_signs(backlog.signs)

    def _note_refused(self, refused: RefusedSubmissions) -> None:
        """Show the submissions that became no jobs for as long as the store has them."""
        if not refused.number:
            self._set_aside.removed(SUBMISSION, REFUSED)
            return
        fault = f"{refused.number} submissions in SQL became no jobs; the last one: {refused.reason}"
        self._set_aside.note(SUBMISSION, REFUSED, fault, refused.number, refused.since_us / 1e6)

    def drain_inbox(self, then: Callable[[], None] = lambda: None) -> None:
        """Move jobs that users submitted in their own transactions from the inbox to the queue.

        ``then`` is called after one portion of them, or when the store has refused it.
        """

        def taken(outcome: DrainedInbox) -> None:
            self._draining = False
            then()
            self._assigner.now_pending(outcome.pending, were_away=False)
            if outcome.next_us:
                self._wake_at(outcome.next_us)
            if outcome.more:
                self.drain_inbox()

        def not_taken(error: StoreError) -> None:
            del error  # the next reading finds them again
            self._draining = False
            then()

        self._draining = True
        self._commits.put(DrainInbox(), taken, not_taken)


MOST_TEXTS: Final = 1000
"""Texts of jobs that do not run here; the oldest is dropped."""
SUBSCRIBERS_TTL: Final = 1.0
"""Seconds for which the subscribers of a job's progress are cached."""


class Reports:
    """Forwards progress reports. ``relay`` is given if the store is shared."""

    def __init__(self, context: Context, relay: Relay | None) -> None:
        self._table, self._commits, self._clock = context.table, context.commits, context.clock
        self._handles, self._listeners = context.handles, context.listeners
        self._relay = relay
        self._texts: dict[int, bytes] = {}
        """The texts of the progress of jobs that run at other nodes, or are root jobs."""
        self._roots: dict[int, ProgressSubscribers] = {}
        """The subscribers of the root jobs whose runs have reported progress last."""

    def data(self, held: Held, data: bytes) -> None:
        """Part of a result."""
        self._report(held, Progress(held.job.id, "data", data, b""))

    def warning(self, held: Held, data: bytes) -> None:
        """A warning."""
        self._report(held, Progress(held.job.id, "warning", data, b""))

    def status(self, held: Held, numerator: bytes, denominator: bytes) -> None:
        """The progress of a worker."""
        held.numerator, held.denominator = numerator, denominator
        held.reported = True
        if held.text:
            self._send_text(held, held.text)
        self._report(held, Progress(held.job.id, "status", numerator, denominator))

    def text(self, held: Held, text: bytes) -> None:
        """The text of the next progress of a worker."""
        if held.text and not text:
            self._send_text(held, text)  # later reports have none, and would leave the last one
        held.text = text

    def _send_text(self, held: Held, text: bytes) -> None:
        if self._relay is not None and held.stored:
            self._send(self._relay, held, ProgressText(held.job.id, text.decode()))

    def text_of(self, job_id: int) -> bytes:
        """Return the text of the last progress of a job that runs; empty for none."""
        held = self._table.find(job_id)
        return self._texts.get(job_id, b"") if held is None else held.text

    def text_elsewhere(self, message: ProgressText) -> None:
        """Keep the text of the next progress of a job that runs at another node."""
        self._keep_text(message.id, message.text.encode())

    def _keep_text(self, job_id: int, text: bytes) -> None:
        self._texts.pop(job_id, None)
        self._texts[job_id] = text
        if len(self._texts) > MOST_TEXTS:
            del self._texts[next(iter(self._texts))]

    def _report(self, held: Held, progress: Progress) -> None:
        held.beat = self._clock.monotonic()
        self._tell(held.handle, progress)
        if self._relay is not None and held.stored:
            self._send(self._relay, held, progress)

    def reported_elsewhere(self, progress: Progress) -> None:
        """Notify listeners of a job that runs at another node."""
        self._tell(self._handles.of(progress.id), progress)

    def report_root(self, job_id: int, numerator: bytes, denominator: bytes, text: str) -> None:
        """Notify listeners of a root job of the progress of its run, also those at other nodes."""
        if self._listeners.of(job_id):
            self._keep_text(job_id, text.encode())
        progress = Progress(job_id, "status", numerator, denominator)
        self.reported_elsewhere(progress)
        if self._relay is not None:
            subscribers = self._roots.pop(job_id, None)
            self._roots[job_id] = subscribers = self._read_subscribers(self._relay, job_id, subscribers)
            if len(self._roots) > MOST_TEXTS:
                del self._roots[next(iter(self._roots))]
            self._send_to(self._relay, subscribers, ProgressText(job_id, text))
            self._send_to(self._relay, subscribers, progress)

    def _tell(self, handle: bytes, progress: Progress) -> None:
        for listener in self._listeners.of(progress.id):
            if progress.kind == "status":
                listener.status(handle, progress.first, progress.second)
            elif progress.kind == "data":
                listener.data(handle, progress.first)
            else:
                listener.warning(handle, progress.first)

    def _send(self, relay: Relay, held: Held, message: Progress | ProgressText) -> None:
        """Send a job's progress to the other nodes whose clients wait for it."""
        held.subscribers = self._read_subscribers(relay, held.job.id, held.subscribers)
        self._send_to(relay, held.subscribers, message)

    def _read_subscribers(
        self, relay: Relay, job_id: int, subscribers: ProgressSubscribers | None
    ) -> ProgressSubscribers:
        """Return the subscribers of a job; they are read again if the last read is too old."""
        now = self._clock.monotonic()
        if subscribers is None:
            subscribers = ProgressSubscribers(now)
            self._find_subscribers(relay, job_id, subscribers)
        elif now - subscribers.read_at >= SUBSCRIBERS_TTL:
            subscribers.read_at = now
            self._find_subscribers(relay, job_id, subscribers)
        return subscribers

    @staticmethod
    def _send_to(relay: Relay, subscribers: ProgressSubscribers, message: Progress | ProgressText) -> None:
        if subscribers.unsent is not None:
            subscribers.unsent.append(message)
            return
        for term in subscribers.terms:
            relay.send(term, message)

    def _find_subscribers(self, relay: Relay, job_id: int, subscribers: ProgressSubscribers) -> None:
        def found(terms: dict[int, list[int]]) -> None:
            subscribers.terms = terms.get(job_id, [])
            unsent, subscribers.unsent = subscribers.unsent, None
            for message in unsent or ():
                for term in subscribers.terms:
                    relay.send(term, message)

        def failed(error: StoreError) -> None:
            del error
            subscribers.unsent = None

        self._commits.put(FindSubscribers(self._table.term, [job_id]), found, failed)
