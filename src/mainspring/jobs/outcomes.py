"""Outcomes for waiting clients, whose jobs may be in this node's memory, held by another node, or only in the store.

`Waits` adds and removes waiting clients. `OutcomeReader` looks up the outcomes of jobs that have ended. Clients may wait for
any number of results, of any size, and read none. So only one lookup is in progress at a time. It reads each job once, however
many clients wait for it, and only if a client has room for the outcome. Its results have a limit in bytes, which is applied
before they are read. A single larger result is read alone.

On a shared store the node subscribes to its clients' jobs (`Subscriptions`). The node that settles a job reads which nodes to
notify, and no node drops a foreground job for which a client of another node waits. Messages that the relay loses are replaced by
periodic lookups.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.jobs import rules
from mainspring.jobs.model import Job, State, exception_of, failure
from mainspring.jobs.store import Find, Subscribe, Unsubscribe
from mainspring.namespaces import ANY, DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mainspring.errors import StoreError
    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.held import Held
    from mainspring.jobs.rules import Settlement
    from mainspring.jobs.table import Context, Listener


WAIT_RETRY_DELAY = 0.25
"""Seconds after which a failed lookup is repeated."""
LEAVE_STEP = 500
"""Jobs of a departed client that one step processes: the client may have waited for hundreds of thousands."""


class Waits:
    """Adds and removes waiting clients. ``subscriptions`` is given if the store is shared."""

    def __init__(
        self, context: Context, assigner: Assigner, outcomes: OutcomeReader, subscriptions: Subscriptions | None
    ) -> None:
        self._table, self._commits, self._listeners = context.table, context.commits, context.listeners
        self._clock, self._timers, self._slices = context.clock, context.timers, context.slices
        self._assigner = assigner
        self._outcomes = outcomes
        self._subscriptions = subscriptions

    def wait(
        self,
        job_id: int,
        listener: Listener,
        unknown: Callable[[], None],
        looked_up: Callable[[], None] = lambda: None,
        namespace: str = DEFAULT,
    ) -> None:
        """Notify a listener when a job has ended, at once if it has; call ``unknown`` if the namespace has no such job.

        ``looked_up`` is called once, when the lookup in the store is done or not needed.
        """
        held = self._table.find(job_id)
        if held is not None:
            if held.is_in(namespace):
                self._listeners.add(job_id, listener)
                looked_up()
            else:
                looked_up()
                unknown()
        elif not self._listeners.several_namespaces or namespace == ANY:
            self._look(job_id, listener, unknown, looked_up)
        else:
            self._check(job_id, listener, unknown, looked_up, namespace)

    def _check(
        self,
        job_id: int,
        listener: Listener,
        unknown: Callable[[], None],
        looked_up: Callable[[], None],
        namespace: str,
    ) -> None:
        """Wait for a stored job once the store has it in the namespace: a listener gets all that its job reports."""

        def found(jobs: dict[int, Job]) -> None:
            if job_id in jobs:
                self._wait(job_id, listener, unknown, looked_up)
            else:
                looked_up()
                unknown()

        def failed(error: StoreError) -> None:
            # A failed lookup does not mean an unknown job: a client would submit that job again.
            del error
            self._timers.at(
                self._clock.monotonic() + WAIT_RETRY_DELAY,
                lambda: self._check(job_id, listener, unknown, looked_up, namespace),
            )

        if not listener.gone:
            self._commits.put(Find([job_id], 0, namespace), found, failed)

    def _wait(
        self, job_id: int, listener: Listener, unknown: Callable[[], None], looked_up: Callable[[], None]
    ) -> None:
        if self._table.find(job_id) is not None:
            self._listeners.add(job_id, listener)
            looked_up()
        else:
            self._look(job_id, listener, unknown, looked_up)

    def _look(
        self, job_id: int, listener: Listener, unknown: Callable[[], None], looked_up: Callable[[], None]
    ) -> None:
        """Look a job up that is not in memory."""
        self._listeners.add(job_id, listener)

        def is_unknown() -> None:
            self._listeners.remove(job_id, listener)
            unknown()

        self._outcomes.look(job_id, is_unknown, looked_up)

    def has_room(self, listener: Listener) -> None:
        """Resume the lookups of a listener whose buffer was full."""
        self._outcomes.has_room(listener)

    def gone(self, listener: Listener) -> None:
        """Remove a departed client, and drop the waiting foreground jobs that it alone waited for."""
        listener.gone = True
        if self._leave(listener):
            self._slices.run(self._leave_all(listener))

    def _leave_all(self, listener: Listener) -> Iterator[None]:
        while self._leave(listener):
            yield

    def _leave(self, listener: Listener) -> bool:
        """Remove a departed client from some of its jobs; return whether there are more."""
        alone = self._listeners.leave(listener, LEAVE_STEP)
        for job_id in alone:
            held = self._table.find(job_id)
            if held is not None and not held.stored and not held.adopting and held.worker is None:
                self._assigner.release(held)
        if self._subscriptions is not None and alone:
            self._subscriptions.left(alone)
        if self._listeners.waits(listener):
            return True
        self._outcomes.gone(listener)
        return False


if TYPE_CHECKING:
    FindJobs = Callable[
        [list[int], Callable[[dict[int, Job]], None], Callable[[StoreError], None], int], Find | Subscribe
    ]
    """Puts a lookup of ids with a limit of bytes of results, and returns it."""

LOOKUP_RETRY_DELAY: Final = 0.25
"""Seconds after which a failed query is repeated."""
JOBS_PER_LOOKUP: Final = 256
"""Jobs of one lookup."""
RESULTS_BYTES: Final = 16 * 2**20
"""Bytes of the results of one lookup, unless a single result is larger."""


class _Wait(NamedTuple):
    """The functions to call once a job is looked up."""

    unknown: Callable[[], None]
    """Called if the store has no such job."""
    looked_up: Callable[[], None]
    """Called once, when the lookup is done or not needed."""
    of_all: bool
    """Whether ``unknown`` is for all listeners: then it is called after the callbacks of single listeners."""


def _nothing() -> None:
    pass


class OutcomeReader:
    """Looks jobs up, and notifies the listeners of ended ones.

    ``find`` puts the lookups on a shared store, where they also subscribe this node to the jobs.
    """

    def __init__(self, context: Context, find: FindJobs | None = None) -> None:
        self._commits = context.commits
        self._table, self._timers, self._clock = context.table, context.timers, context.clock
        self._handles, self._listeners = context.handles, context.listeners
        self.find = find or self._find
        self._queue: dict[int, list[_Wait]] = {}
        self._under_way: dict[int, list[_Wait]] = {}
        self._open: Find | Subscribe | None = None
        """The lookup in progress, while ids may still be added."""
        self._withheld: dict[int, list[_Wait]] = {}
        """The waits of jobs for which no listener has room now."""
        self._sizes: dict[int, int] = {}
        """The sizes of results that did not fit into a lookup."""

    def __len__(self) -> int:
        return len(self._queue) + len(self._under_way) + len(self._withheld)

    def look(
        self,
        job_id: int,
        unknown: Callable[[], None] = _nothing,
        looked_up: Callable[[], None] = _nothing,
        *,
        of_all: bool = False,
    ) -> None:
        """Look a job up, and notify its listeners if it has ended."""
        self._add(job_id, _Wait(unknown, looked_up, of_all))
        self._go_on()

    def will_look(self, job_id: int) -> bool:
        """Return whether a job will be looked up, at once or when a listener has room."""
        return job_id in self._queue or job_id in self._withheld

    def has_room(self, listener: Listener) -> None:
        """Look up the withheld outcomes of a listener that has room again."""
        jobs = self._listeners.withheld.pop(listener, None)
        if jobs:
            for job_id in jobs:
                self._queue.setdefault(job_id, []).extend(self._withheld.pop(job_id, ()))
            self._go_on()

    def gone(self, listener: Listener) -> None:
        """Cancel the lookups of a departed listener."""
        for job_id in self._listeners.withheld.pop(listener, ()):
            if not self._listeners.of(job_id):
                self._end(self._withheld.pop(job_id, ()))

    def _add(self, job_id: int, wait: _Wait) -> None:
        operation = self._open
        if (
            operation is not None
            and operation.open
            and len(operation.ids) < JOBS_PER_LOOKUP
            and self._is_wanted(job_id)
        ):
            if job_id in self._under_way:
                self._under_way[job_id].append(wait)
                return
            if job_id not in self._queue:
                self._under_way[job_id] = [wait]
                operation.ids.append(job_id)
                operation.rows += 1
                return
        # The store may have answered a lookup in progress before this request: the job is looked up again.
        self._queue.setdefault(job_id, []).append(wait)

    def _is_wanted(self, job_id: int) -> bool:
        return any(listener.has_room() for listener in self._listeners.of(job_id))

    def _go_on(self) -> None:
        while self._queue and not self._under_way:
            room = RESULTS_BYTES
            for job_id in list(islice(self._queue, JOBS_PER_LOOKUP)):
                size = self._sizes.get(job_id, 0)
                if size > RESULTS_BYTES and self._under_way:
                    continue  # it gets its own lookup
                self._sizes.pop(job_id, None)
                self._begin(job_id, self._queue.pop(job_id))
                if size > RESULTS_BYTES and self._under_way:
                    room = size
                    break
            if self._under_way:
                operation = self.find(list(self._under_way), self._found, self._failed, room)
                self._open = operation if room == RESULTS_BYTES else None

    def _begin(self, job_id: int, waits: list[_Wait]) -> None:
        """Add a job to the next lookup, unless no listener has room or its result is in memory."""
        if not self._is_wanted(job_id):
            for listener in self._listeners.of(job_id):
                self._listeners.withhold(job_id, listener)
            if self._listeners.of(job_id):
                self._withheld.setdefault(job_id, []).extend(waits)
            else:
                self._end(waits)
            return
        sent = self._listeners.under_way(job_id)
        if sent is None:
            self._under_way[job_id] = waits
        else:
            self._listeners.notify(sent)
            self._end(waits)

    def _find(
        self,
        ids: list[int],
        found: Callable[[dict[int, Job]], None],
        failed: Callable[[StoreError], None],
        room: int,
    ) -> Find:
        operation = Find(ids, room, self._listeners.namespace)
        self._commits.put(operation, found, failed)
        return operation

    def _found(self, jobs: dict[int, Job]) -> None:
        under_way, self._under_way, self._open = self._under_way, {}, None
        for job_id, waits in under_way.items():
            job = jobs.get(job_id)
            if job is None:
                self._missing(job_id, waits)
            elif State(job.state).ended:
                self._ended(job_id, waits, job)
            else:
                self._end(waits)
        self._go_on()

    def _missing(self, job_id: int, waits: list[_Wait]) -> None:
        self._end(waits)
        handle = self._handles.of(job_id)
        if handle in self._table.held:
            return
        for wait in sorted(waits, key=lambda wait: wait.of_all):
            if wait.of_all and job_id in self._queue:
                self._queue[job_id].append(wait)  # a later request is answered first
            else:
                wait.unknown()
        if not waits:
            # Its outcome was withheld, and has been deleted meanwhile.
            for listener in self._listeners.pop(job_id):
                listener.unknown(handle)

    def _ended(self, job_id: int, waits: list[_Wait], job: Job) -> None:
        if job.unread and self._listeners.under_way(job_id) is None:
            self._sizes[job_id] = job.output_size
            self._queue[job_id] = waits + self._queue.pop(job_id, [])
            return
        self._end(waits)
        self._listeners.notify(self._listeners.under_way(job_id) or job, exception_of(job), asked=job_id)

    def _failed(self, error: StoreError) -> None:
        # A failed lookup does not mean an unknown job: a client would submit that job again.
        del error
        self._open = None
        self._timers.at(self._clock.monotonic() + LOOKUP_RETRY_DELAY, self._retry)

    def _retry(self) -> None:
        under_way, self._under_way = self._under_way, {}
        for job_id, waits in under_way.items():
            self._queue[job_id] = waits + self._queue.pop(job_id, [])
        self._go_on()

    @staticmethod
    def _end(waits: Iterable[_Wait]) -> None:
        for wait in waits:
            wait.looked_up()


JOBS_PER_QUERY: Final = 1000
"""Jobs of one query."""
LOST_ERROR: Final = failure("Lost", "the node that waited for it was cut off from the store, and nobody else waited")


class Subscriptions:
    """Subscribes this node to the jobs of its clients, and looks up the outcomes of these jobs.

    ``noted`` is called once all subscriptions are stored under a new term.
    """

    def __init__(self, context: Context, assigner: Assigner, noted: Callable[[], None]) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._handles, self._listeners = context.handles, context.listeners
        self._assigner = assigner
        self._noted = noted
        self.outcomes = OutcomeReader(context, self.find)
        self._unsubscribes: dict[Unsubscribe, list[Held]] = {}
        """Operations in progress for departed clients, with the jobs that are not handed out before the answer."""
        self._questions = 0
        """The number of queries in progress that renew the subscriptions under a new term."""

    @property
    def under_way(self) -> bool:
        """Whether the subscriptions are being renewed under a new term."""
        return bool(self._questions)

    def ask_all(self) -> None:
        """Look up all jobs that clients of this node wait for, and renew their subscriptions."""
        for ids in self._waited_elsewhere():
            self.ask(ids)

    def _waited_elsewhere(self) -> Iterable[list[int]]:
        """Return the jobs with listeners here that are not in memory here, in parts."""
        held, handle = self._table.held, self._handles.of
        waited = [job_id for job_id in self._listeners.jobs() if handle(job_id) not in held]
        return [waited[start : start + JOBS_PER_QUERY] for start in range(0, len(waited), JOBS_PER_QUERY)]

    def ask(self, ids: Sequence[int]) -> None:
        """Look up those of the jobs that have listeners here, and renew their subscriptions."""
        for job_id in self._askable(ids):
            self._look_up(job_id)

    def _look_up(self, job_id: int) -> None:
        self.outcomes.look(job_id, lambda: self._tell_gone(job_id), of_all=True)

    def _askable(self, ids: Sequence[int]) -> list[int]:
        """Return the jobs with listeners that need a lookup: others are being stored, or looked up already."""
        on_the_way, will_look = self._table.on_the_way, self.outcomes.will_look
        waited = [job_id for job_id in ids if self._listeners.of(job_id)]
        return [job_id for job_id in waited if job_id not in on_the_way and not will_look(job_id)]

    def find(
        self,
        ids: list[int],
        found: Callable[[dict[int, Job]], None],
        failed: Callable[[StoreError], None],
        room: int = 0,
    ) -> Find | Subscribe:
        """Look jobs up, and subscribe this node to them if it has a term."""
        term = self._table.term

        def noted(jobs: dict[int, Job]) -> None:
            found(jobs)
            for job_id in ids:
                self.waited(job_id, term)

        namespace = self._listeners.namespace
        operation = Subscribe(term, ids, room, namespace) if term else Find(ids, room, namespace)
        self._commits.put(operation, noted, failed)
        return operation

    def waited(self, job_id: int, term: int) -> None:
        """Confirm a subscription to a job that was stored under a term."""
        for leave in self._unsubscribes:
            if leave.open and job_id in leave.ids:
                leave.ids.remove(job_id)  # a new listener came after this operation was put
        if term != self._table.term:
            self.ask([job_id])  # the subscription ended with its term

    def begin_again(self) -> None:
        """Renew the subscriptions under the node's new term, before those of its last term are deleted."""

        def asked() -> None:
            self._questions -= 1
            if not self._questions:
                self._noted()

        def ask(ids: list[int]) -> None:
            def found(jobs: dict[int, Job]) -> None:
                self._found(ids, jobs)
                asked()

            self.find(ids, found, lambda _: asked())

        parts = [self._askable(ids) for ids in self._waited_elsewhere()]
        self._questions += len(parts)
        for ids in parts:
            ask(ids)

    def _found(self, wanted: list[int], jobs: dict[int, Job]) -> None:
        for job_id in wanted:
            job = jobs.get(job_id)
            if job is None or State(job.state).ended:
                self._look_up(job_id)

    def _tell_gone(self, job_id: int) -> None:
        """Notify the listeners of a lost foreground job: this node's lease had ended, and with it its subscriptions."""
        job = Job(job_id, b"", b"", state=int(State.FAILED), error=LOST_ERROR)
        self._listeners.notify(job, is_kept=False)

    def left(self, ids: list[int]) -> None:
        """Unsubscribe from jobs without listeners here; waiting foreground jobs without other subscribers are dropped."""
        leaving = []
        withdrawn: list[Held] = []
        for job_id in ids:
            held = self._table.find(job_id)
            if held is None:
                leaving.append(job_id)
            elif held.stored and held.worker is None and held.job.foreground:
                leaving.append(job_id)
                if held.queued:
                    self._dispatch.drop(held)  # not to be handed out while the store is asked
                    withdrawn.append(held)
        if leaving:
            self._leave(leaving, withdrawn, self._dropped)

    def _leave(self, ids: list[int], withdrawn: list[Held], dropped: Callable[[set[int]], None]) -> None:
        """Unsubscribe from jobs; withdrawn jobs that the store does not drop are queued again."""

        def done(gone: set[int]) -> None:
            dropped(gone)
            self._stay(self._unsubscribes.pop(operation))

        def failed(error: StoreError) -> None:
            del error
            self._stay(self._unsubscribes.pop(operation))

        operation = Unsubscribe(self._table.term, ids)
        self._unsubscribes[operation] = withdrawn
        self._commits.put(operation, done, failed)

    def drop(self, settlement: Settlement) -> None:
        """Unsubscribe from an abandoned foreground job that is requeued, so that the store drops it."""
        job = settlement.job
        assigner = self._assigner

        def dropped(gone: set[int]) -> None:
            queue = self._dispatch.tracked(job.function) if gone else None
            if queue is None:
                pass  # the job was not dropped, or the store alone counts it
            elif rules.target(settlement.event) is State.PENDING:
                assigner.no_longer_pending(queue, job.priority)
            else:
                assigner.no_longer_away(queue)

        # If it fails, the settlement has failed as well: the job is dropped with the retry.
        self._leave([job.id], [], dropped)

    def withholds(self, held: Held) -> bool:
        """Return whether a claimed job may be about to be dropped: it then waits for the store's answer."""
        for operation, withdrawn in self._unsubscribes.items():
            if held.job.id in operation.ids:
                withdrawn.append(held)
                return True
        return False

    def _dropped(self, ids: set[int]) -> None:
        assigner = self._assigner
        for job_id in ids:
            held = self._table.find(job_id)
            if held is not None:
                held.queue.leased -= 1
                admission, held.admission = held.admission, None
                assigner.release(held)
                if admission is not None:  # it was handed out meanwhile
                    admission.give_back(held.job.key)
                    assigner.serve(held.queue)

    def _stay(self, withdrawn: Iterable[Held]) -> None:
        assigner = self._assigner
        for held in withdrawn:
            # Another answer of this kind may have come before, and the job may be running.
            if self._table.held.get(held.handle) is held and held.worker is None and not held.queued:
                self._dispatch.restore(held)
                assigner.serve(held.queue)
