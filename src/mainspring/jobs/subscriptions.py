"""Subscriptions of a node to jobs in a shared store: its clients wait for these jobs.

The node that settles a job reads which nodes to notify, and no node drops a foreground job for which a client of another node
waits. Messages that the relay loses are replaced by periodic lookups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs import rules
from mainspring.jobs.failures import failure
from mainspring.jobs.model import Job, State
from mainspring.jobs.outcome_reader import OutcomeReader
from mainspring.jobs.store import Find, Subscribe, Unsubscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.errors import StoreError
    from mainspring.jobs.context import Context
    from mainspring.jobs.held import Held
    from mainspring.jobs.rules import Settlement
    from mainspring.jobs.serving import Serving

JOBS_PER_QUERY: Final = 1000
"""Jobs of one query."""
LOST_ERROR: Final = failure("Lost", "the node that waited for it was cut off from the store, and nobody else waited")


class Subscriptions:
    """Subscribes this node to the jobs of its clients, and looks up the outcomes of these jobs.

    ``noted`` is called once all subscriptions are stored under a new term.
    """

    def __init__(self, context: Context, serving: Serving, noted: Callable[[], None]) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._handles, self._listeners = context.handles, context.listeners
        self._serving = serving
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
        serving = self._serving

        def dropped(gone: set[int]) -> None:
            queue = self._dispatch.tracked(job.function) if gone else None
            if queue is None:
                pass  # the job was not dropped, or the store alone counts it
            elif rules.target(settlement.event) is State.PENDING:
                serving.no_longer_pending(queue, job.priority)
            else:
                serving.no_longer_away(queue)

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
        serving = self._serving
        for job_id in ids:
            held = self._table.find(job_id)
            if held is not None:
                held.queue.leased -= 1
                admission, held.admission = held.admission, None
                serving.release(held)
                if admission is not None:  # it was handed out meanwhile
                    admission.give_back(held.job.key)
                    serving.serve(held.queue)

    def _stay(self, withdrawn: Iterable[Held]) -> None:
        serving = self._serving
        for held in withdrawn:
            # Another answer of this kind may have come before, and the job may be running.
            if self._table.held.get(held.handle) is held and held.worker is None and not held.queued:
                self._dispatch.restore(held)
                serving.serve(held.queue)
