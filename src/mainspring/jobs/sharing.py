"""What a node does because other nodes have the same store open.

Others put jobs into it, take them and settle them. Messages of the relay say so at once, if they arrive; a look into the store
every second is what can be relied on. A client that waits here for a job that another node runs is noted in the store, so
that whoever settles it knows whom to tell, and so that nobody drops a foreground job for which somebody waits elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mainspring.events.relay import Ask, Message, Pending, Progress, Running, Settled, Stop
from mainspring.jobs import rules
from mainspring.jobs.counting import count_coming
from mainspring.jobs.failures import failure
from mainspring.jobs.held import Watchers
from mainspring.jobs.holders import Holders
from mainspring.jobs.leasing import Leasing
from mainspring.jobs.model import Job, State
from mainspring.jobs.store import Find, Leave, Look, Recover, TakeInbox, Wait
from mainspring.jobs.store import Watchers as FindWatchers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.errors import StoreError
    from mainspring.events.relay import Relay
    from mainspring.jobs.held import Held
    from mainspring.jobs.rules import Settlement
    from mainspring.jobs.service import JobService
    from mainspring.jobs.store import Outlook, Recovered, Taken

LOOK_EVERY = 1.0
"""Seconds between looks at what waits in the store. Nodes that have nothing to do share them: together they look so often."""
LOOK_SHARED = 5
"""Among so many nodes at most."""
COUNTED_FOR = 1.0
"""Seconds after which the counts of jobs are read again before they are shown."""
COUNT_PATIENCE = 1.0
"""Seconds to wait for that at most."""
ASK_EVERY = 5.0
"""Seconds between questions for the jobs that clients here wait for: what the relay has lost is found then."""
ASK_MOST = 1000
GONE = failure("Lost", "the node that waited for it was cut off from the store, and nobody else waited")
WATCHERS_FOR = 1.0
"""Seconds for which the nodes that want to know of a job's progress are remembered."""


class Sharing:
    """The jobs slice of a node, as far as it has to do with the others."""

    def __init__(self, service: JobService, relay: Relay) -> None:
        self._service = service
        self._relay = relay
        self._window = service.window
        self._commits = service.commits
        self._listeners = service.listeners
        self._clock = service.clock
        self._looking = self._taking = False
        self._idle = False
        """Nothing waited in the store at the last look."""
        self.nodes = 1
        """How many there are, with this one."""
        self._looked = self._asked = self._clock.monotonic()
        self._counted = float("-inf")
        """When the present counts were asked for, by the monotonic clock."""
        self._counting: list[Callable[[], None]] = []
        """Called when newer counts have come."""
        self.holders = Holders(service.window, relay)
        self._leaves: dict[Leave, list[Held]] = {}
        """Operations under way about clients that have left, with the jobs that are not handed out before the answer."""
        self._noting = 0
        """Questions under way since the node has had its term, for all that somebody waits for here."""
        self._unrecovered: list[Sequence[int]] = []
        """Ended terms whose jobs are given back after those questions: this node's last one may be among them."""
        self._lookups = service.clients.lookups
        self._lookups.find = self.find
        service.window.claiming.shared = True
        self.leasing = Leasing(service.window)
        service.settling.drop = self._drop
        service.window.claiming.withholds = self._withholds
        service.foreground.left = self.left
        service.foreground.waited = self.waited
        relay.listen(self.hear)

    # ---- what the others do ----

    def hear(self, message: Message) -> None:
        """Take a message of another node, or of this one."""
        match message:
            case Pending(functions):
                for name in functions:
                    queue = self._window.dispatch.queues.get(name)
                    if queue is not None and queue.gate is not None:
                        self.leasing.hint(queue)
                    if queue is not None and queue.workers:
                        queue.hinted = True
                        self._window.claiming.hint(queue)
            case Settled(ids):
                self.ask(ids)
            case Progress(job_id, kind, first, second):
                self._tell_progress(job_id, kind, first, second)
            case Ask(job_id, by):
                self.holders.asked(job_id, by)
            case Running():
                self.holders.answered(message)
            case Stop(job_id, reason):
                held = self._window.held.get(self._service.handles.of(job_id))
                if held is not None:
                    self._service.clients.cancel_held(held, reason, lambda _: None)

    def _tell_progress(
        self, job_id: int, kind: Literal["data", "warning", "status"], first: bytes, second: bytes
    ) -> None:
        handle = self._service.handles.of(job_id)
        for listener in self._listeners.of(job_id):
            if kind == "status":
                listener.status(handle, first, second)
            elif kind == "data":
                listener.data(handle, first)
            else:
                listener.warning(handle, first)

    def tick(self, now: float) -> None:
        """Look into the store where it is time."""
        self.leasing.tick()
        # Where nothing waits, what begins to is hinted at; only a hint that is lost costs the time until this node looks itself.
        every = LOOK_EVERY * (min(self.nodes, LOOK_SHARED) if self._idle else 1)
        if now - self._looked >= every and not self._looking:
            self.look()
        if now - self._asked >= ASK_EVERY:
            self._asked = now
            for ids in self._waited_elsewhere():
                self.ask(ids)

    def _waited_elsewhere(self) -> Iterable[list[int]]:
        """Return the jobs that somebody here waits for and that are not in memory here, in parts."""
        held, handle = self._window.held, self._service.handles.of
        waited = [job_id for job_id in self._listeners.jobs() if handle(job_id) not in held]
        return [waited[start : start + ASK_MOST] for start in range(0, len(waited), ASK_MOST)]

    def look(self, then: Callable[[], None] = lambda: None, failed: Callable[[StoreError], None] | None = None) -> None:
        """Learn what waits."""

        def looked(outlook: Outlook) -> None:
            # The rest of the group is counted first: the answer includes it already.
            self._commits.afterwards(lambda: learn(outlook))

        def learn(outlook: Outlook) -> None:
            self._looking = False
            self._counted = asked
            self._learn(outlook, functions)
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
        dispatch = self._window.dispatch
        functions = None if dispatch.complete else list(dispatch.queues)
        self._commits.put(Look(looked, not_looked, functions))

    def counted(self, then: Callable[[], None]) -> None:
        """Call a function when the counts are at most `COUNTED_FOR` old, or after `COUNT_PATIENCE` where the store is slow."""
        now = self._clock.monotonic()
        if now - self._counted <= COUNTED_FOR:
            then()
            return

        def give_up() -> None:
            if waiting in self._counting:
                self._counting.remove(waiting)
                then()

        def waiting() -> None:
            timers.cancel(timer)
            then()

        timers = self._window.timers
        timer = timers.at(now + COUNT_PATIENCE, give_up)
        self._counting.append(waiting)
        if not self._looking:
            self.look()

    def _answer_counts(self) -> None:
        counting, self._counting = self._counting, []
        for function in counting:
            function()

    def _learn(self, outlook: Outlook, functions: Sequence[bytes] | None) -> None:
        """Take the counts of some functions; None: of all."""
        self._idle = not outlook.pending and not outlook.inbox
        dispatch = self._window.dispatch
        for name in outlook.live:
            dispatch.known(name)
        queues = dispatch.queues
        counted = {name: queues[name] for name in functions if name in queues} if functions is not None else queues
        for name, queue in counted.items():
            live = outlook.live.get(name, 0)
            if live or any(queue.backlog) or queue.away:
                for priority in range(3):
                    queue.backlog[priority] = outlook.pending.get((name, priority), 0)
                queue.away = max(live - sum(queue.backlog) - queue.leased, 0)
        count_coming(self._commits.waiting, counted)
        for queue in list(counted.values()):
            if queue.stirs():
                self._window.serve(queue)
        if outlook.next_us:
            self._service.wake_at(outlook.next_us)
        if outlook.inbox and not self._taking:
            self._take_inbox()

    def _take_inbox(self) -> None:
        """Move on what users' own transactions have submitted."""

        def taken(outcome: Taken) -> None:
            self._taking = False
            self._add_pending(outcome.pending)
            if outcome.next_us:
                self._service.wake_at(outcome.next_us)
            if outcome.more:
                self._take_inbox()

        def not_taken(error: StoreError) -> None:
            del error  # the next look finds it again
            self._taking = False

        self._taking = True
        self._commits.put(TakeInbox(taken, not_taken))

    def _add_pending(self, pending: dict[tuple[bytes, int], int]) -> None:
        for (function, priority), number in pending.items():
            queue = self._window.dispatch.known(function)
            if queue is not None:
                queue.backlog[priority] += number
                self._window.serve(queue)

    # ---- clients that wait here ----

    def ask(self, ids: Sequence[int]) -> None:
        """Ask the store for jobs that somebody here waits for, and note again that they do."""
        for job_id in self._askable(ids):
            self._look_up(job_id)

    def _look_up(self, job_id: int) -> None:
        self._lookups.look(job_id, lambda: self._tell_gone(job_id), of_all=True)

    def _askable(self, ids: Sequence[int]) -> list[int]:
        """Return the jobs that somebody waits for and that may be asked for: others are being stored, or looked up anyway."""
        on_the_way, will_look = self._service.foreground.on_the_way, self._lookups.will_look
        waited = [job_id for job_id in ids if self._listeners.of(job_id)]
        return [job_id for job_id in waited if job_id not in on_the_way and not will_look(job_id)]

    def find(
        self,
        ids: list[int],
        found: Callable[[dict[int, Job]], None],
        failed: Callable[[StoreError], None],
        room: int = 0,
    ) -> Find | Wait:
        """Look jobs up, and note that somebody here waits for them, once this node has a term to note it under."""
        term = self._window.term

        def noted(jobs: dict[int, Job]) -> None:
            found(jobs)
            for job_id in ids:
                self.waited(job_id, term)

        operation = Wait(term, ids, noted, failed, room) if term else Find(ids, noted, failed, room)
        self._commits.put(operation)
        return operation

    def waited(self, job_id: int, term: int) -> None:
        """Somebody here waits for a job, which was noted under a term."""
        for leave in self._leaves:
            if leave.open and job_id in leave.ids:
                leave.ids.remove(job_id)  # it was put while somebody else was on the way to the job
        if term != self._window.term:
            self.ask([job_id])  # the note has ended with its term

    def begin_again(self) -> None:
        """Note under the node's new term what its clients wait for, before what it has noted under the last one is forgotten."""

        def asked() -> None:
            self._noting -= 1
            if not self._noting:
                unrecovered, self._unrecovered = self._unrecovered, []
                for terms in unrecovered:
                    self.recover(terms)

        def ask(ids: list[int]) -> None:
            def found(jobs: dict[int, Job]) -> None:
                self._found(ids, jobs)
                asked()

            self.find(ids, found, lambda _: asked())

        parts = [self._askable(ids) for ids in self._waited_elsewhere()]
        self._noting += len(parts)
        for ids in parts:
            ask(ids)

    def _found(self, wanted: list[int], jobs: dict[int, Job]) -> None:
        for job_id in wanted:
            job = jobs.get(job_id)
            if job is None or State(job.state).ended:
                self._look_up(job_id)

    def _tell_gone(self, job_id: int) -> None:
        """Tell who waits for a foreground job that it is gone: this node's lease had ended, and with it what it had noted."""
        job = Job(job_id, b"", b"", state=int(State.FAILED), error=GONE)
        self._service.telling.tell(job, is_kept=False)

    def left(self, ids: list[int]) -> None:
        """Nobody here waits for some jobs any more: foreground ones that have not begun are dropped, unless others wait."""
        window = self._window
        leaving = []
        withdrawn: list[Held] = []
        for job_id in ids:
            held = window.held.get(self._service.handles.of(job_id))
            if held is None:
                leaving.append(job_id)
            elif held.stored and held.worker is None and held.job.foreground:
                leaving.append(job_id)
                if held.queued:
                    window.dispatch.drop(held)  # not to be handed out while the store is asked
                    withdrawn.append(held)
        if not leaving:
            return

        def done(dropped: set[int]) -> None:
            self._dropped(dropped)
            self._stay(self._leaves.pop(operation))

        def failed(error: StoreError) -> None:
            del error
            self._stay(self._leaves.pop(operation))

        operation = Leave(window.term, leaving, done, failed)
        self._leaves[operation] = withdrawn
        self._commits.put(operation)

    def _drop(self, settlement: Settlement) -> None:
        """Drop a foreground job that its worker has left, as if its last client had left only now."""
        job = settlement.job
        window = self._window

        def done(dropped: set[int]) -> None:
            self._stay(self._leaves.pop(operation))
            if dropped:
                queue = window.dispatch.known(job.function)
                if queue is None:
                    pass  # the store alone counts it
                elif rules.target(settlement.event) is State.PENDING:
                    window.no_longer_pending(queue, job.priority)
                else:
                    window.no_longer_away(queue)

        def failed(error: StoreError) -> None:
            del error  # the settlement has failed as well: the job is dropped when that is tried again
            self._stay(self._leaves.pop(operation))

        operation = Leave(window.term, [job.id], done, failed)
        self._leaves[operation] = []
        self._commits.put(operation)

    def _withholds(self, held: Held) -> bool:
        """Say whether the store is being asked to drop a job that was claimed meanwhile: it waits for the answer."""
        for operation, withdrawn in self._leaves.items():
            if held.job.id in operation.ids:
                withdrawn.append(held)
                return True
        return False

    def _dropped(self, ids: set[int]) -> None:
        window = self._window
        for job_id in ids:
            held = window.held.get(self._service.handles.of(job_id))
            if held is not None:
                held.queue.leased -= 1
                gate, held.gate = held.gate, None
                window.release(held)
                if gate is not None:  # it was handed out meanwhile
                    gate.give_back(held.job.key)
                    window.serve(held.queue)

    def _stay(self, withdrawn: Iterable[Held]) -> None:
        window = self._window
        for held in withdrawn:
            # Another answer of this kind may have come before, and it may run since.
            if window.held.get(held.handle) is held and held.worker is None and not held.queued:
                window.dispatch.restore(held)
                window.serve(held.queue)

    # ---- progress, for clients elsewhere ----

    def tell(self, held: Held, kind: Literal["data", "warning", "status"], first: bytes, second: bytes = b"") -> None:
        """Tell other nodes whose clients wait for a job how far it is."""
        now = self._clock.monotonic()
        watchers = held.watchers
        message = Progress(held.job.id, kind, first, second)
        if watchers is None:
            watchers = held.watchers = Watchers(now)
            self._find_watchers(held, watchers)
        elif now - watchers.asked >= WATCHERS_FOR:
            watchers.asked = now
            self._find_watchers(held, watchers)
        if watchers.untold is not None:
            watchers.untold.append(message)
            return
        for term in watchers.terms:
            self._relay.send(term, message)

    def _find_watchers(self, held: Held, watchers: Watchers) -> None:
        def found(terms: dict[int, list[int]]) -> None:
            watchers.terms = terms.get(held.job.id, [])
            untold, watchers.untold = watchers.untold, None
            for message in untold or ():
                for term in watchers.terms:
                    self._relay.send(term, message)

        def failed(error: StoreError) -> None:
            del error
            watchers.untold = None

        self._commits.put(FindWatchers(self._window.term, [held.job.id], found, failed))

    def stop(self, term: int, job_id: int, reason: str) -> None:
        """Ask the node that holds a job to cancel it."""
        self._relay.send(term, Stop(job_id, reason))

    # ---- nodes that are gone ----

    def recover(self, terms: Sequence[int]) -> None:
        """Give the jobs of ended terms back, a part at a time."""
        if self._noting:
            self._unrecovered.append(terms)
            return

        def recovered(outcome: Recovered) -> None:
            for (function, _), number in outcome.pending.items():
                queue = self._window.dispatch.known(function)
                if queue is not None:
                    self._window.no_longer_away(queue, number)
            self._add_pending(outcome.pending)
            self._service.settling.recovered(outcome.lost)
            if outcome.more:
                self.recover(terms)

        # What could not be given back now is found abandoned again.
        self._commits.put(Recover(self._window.term, recovered, lambda _: None, terms))
