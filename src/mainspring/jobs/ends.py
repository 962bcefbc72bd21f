"""Settles attempts and notifies waiting clients.

The settlement of a stored job goes to the store when it is reported. Waiting clients receive the outcome once it is on disk. A
foreground job that is in memory alone is settled at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.errors import StoreBrokenError, StoreFencedError
from mainspring.jobs import rules
from mainspring.jobs.lost_attempts import settlements_of
from mainspring.jobs.model import Job, State
from mainspring.jobs.owners import owner
from mainspring.jobs.pending_settlements import PendingSettlement
from mainspring.jobs.rules import Event, Settlement
from mainspring.jobs.store import Find, Settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.errors import StoreError
    from mainspring.jobs.admission import AdmissionQueue
    from mainspring.jobs.context import Context
    from mainspring.jobs.held import FunctionQueue, Held
    from mainspring.jobs.pending_settlements import Acknowledge, SettleBatch
    from mainspring.jobs.remembering import Remembering
    from mainspring.jobs.serving import Serving
    from mainspring.jobs.store import LostAttempt
    from mainspring.storage.commit_queue import OperationWithCallbacks

    AttemptsEnded = Callable[[Sequence[Settlement]], None]
    """Is called with recorded settlements, once for each group of the store.

    ``outcome`` is how the attempt ended (None: no worker had the job), ``ran_us`` how long it ran, ``counted`` its number,
    ``event`` and ``due_us`` whether and when the job runs again, ``error`` or ``why`` the cause of a failure. The function is
    called on the node's thread, must not raise, and must not keep the settlements: they hold results.
    """


MAX_GATHERED: Final = 64
"""Successes of jobs in memory that are reported in one call."""
MAX_GATHERED_BYTES: Final = 1024
"""Bytes of payload and result of a job above which its success is reported at once."""

_SUCCEED: Final = Event.SUCCEED
_SUCCEEDED: Final = int(State.SUCCEEDED)

UNSETTLED_INTERVAL: Final = 0.25
"""Seconds between checks whether settlements still wait for the store."""


def _settled_job(settlement: Settlement) -> Job:
    """Return a copy of the job as it is after a settlement; another delivery of the job may have begun."""
    return msgspec.structs.replace(
        settlement.job,
        state=int(rules.target(settlement.event)),
        attempt=settlement.counted,
        due_us=settlement.due_us,
        started_us=settlement.started_us,
        ended_us=settlement.ended_us,
        result=settlement.result,
        output_size=len(settlement.result),
        error=settlement.error,
    )


class Ends:
    """Settles jobs in the store or in memory.

    ``wake_at`` is called with the time at which a job becomes due. ``drop``, where the store is shared, drops a foreground job
    that goes back, unless clients of another node wait for it. ``attempts_ended`` are called with settlements after their commit;
    for jobs that are in memory alone at once, but for successes, which wait for more of them or for ``report_ends``.
    ``remembering`` completes settlements of stored jobs.
    """

    def __init__(
        self,
        context: Context,
        serving: Serving,
        *,
        wake_at: Callable[[int], None],
        drop: Callable[[Settlement], None] | None = None,
        attempts_ended: Sequence[AttemptsEnded] = (),
        remembering: Remembering,
    ) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._timers, self._clock, self._listeners = context.timers, context.clock, context.listeners
        self._hub = context.hub
        self._remember, self._arguments = remembering.note, remembering.rules
        self._serving = serving
        self._wake_at = wake_at
        self._drop = drop
        self._attempts_ended = attempts_ended
        self._ended: list[Settlement] = []
        """Settlements of jobs in memory that are reported in one call."""
        self._open: Settle | None = None
        self._batch: list[PendingSettlement] = []
        self.unsettled: list[PendingSettlement] = []
        """Settlements that failed in the store; they are retried."""
        self.deferred = 0
        """The number of settlements that wait until their job is stored."""
        self._late = 0
        """The number of settlements that went to the store later than they were reported."""

    @property
    def waits(self) -> bool:
        """Whether any reported settlement is not in the commit queue."""
        return bool(self.unsettled or self.deferred)

    def end(self, held: Held, settlement: Settlement, exception: bytes | None, acknowledge: Acknowledge | None) -> None:
        """Settle a job: at once, or after its row is on disk if it is just being stored."""
        if held.adopting:
            # The row is being stored: its settlement must come after it.
            assert held.then is not None
            held.then.append(lambda: self._end_deferred(held, settlement, exception, acknowledge))
            self.deferred += 1
            self._serving.detach(held)
            return
        admission = held.admission
        if admission is not None:
            held.admission = None
        if held.stored:
            self._put(self._release(held, settlement, exception, acknowledge, admission))
        else:
            if admission is not None:
                admission.give_back(held.job.key)
            self._end_foreground(held, settlement, exception)
            if admission is not None:
                self._serving.serve(held.queue)
            if acknowledge is not None:
                acknowledge(True)

    def forget(self, held: Held, *, stop: bool) -> None:
        """Forget a stored job whose row was deleted, without settling it; ``stop``: ask its worker to stop."""
        worker, queue, admission = held.worker, held.queue, held.admission
        if worker is not None and not worker.streams:
            worker.ignored_results.add(held.handle)
        elif worker is not None and stop:
            worker.connection.stop(held, b"cancelled")
        held.admission = None
        self._serving.release(held)
        queue.leased -= 1
        if admission is not None:
            admission.give_back(held.job.key)
        self._serving.serve(queue)

    def _release(
        self,
        held: Held,
        settlement: Settlement,
        exception: bytes | None,
        acknowledge: Acknowledge | None,
        admission: AdmissionQueue[Held] | None,
    ) -> PendingSettlement:
        """Release a stored job before it is settled."""
        job, worker = held.job, held.worker
        options = job.options
        if (
            settlement.event is _SUCCEED
            and settlement.counted == 1
            and not job.suspects
            and not held.stop_us
            and not held.reported
            and not job.error
            and len(job.payload) <= self._arguments.kept_whole
            and (options is None or not options.forget)
        ):
            settlement.payload = None  # what `Remembering` sets for most jobs, without a call for each
        else:
            self._remember(held, settlement)
        if worker is not None and options is not None and owner(options) is not None:
            settlement.worker = worker.connection.name()
        self._serving.release(held)
        return PendingSettlement(settlement, exception, acknowledge, admission, worker)

    def end_within(
        self, batch: SettleBatch, held: Held, settlement: Settlement, acknowledge: Acknowledge | None = None
    ) -> None:
        """Settle a stored job with a batch, whose operation was put and is open."""
        admission, held.admission = held.admission, None
        batch.pending.append(self._release(held, settlement, None, acknowledge, admission))
        batch.operation.settlements.append(settlement)
        batch.operation.rows += 1
        size = len(settlement.result) + 200
        batch.operation.size += size
        self._commits.add_bytes(size)

    def of_batch(self, batch: SettleBatch) -> OperationWithCallbacks:
        """Return a batch for ``CommitQueue.put_atomic``. If it fails, its settlements are repeated alone."""
        pending = batch.pending
        return (
            batch.operation,
            lambda stale: self._settled(pending, stale),
            lambda error: self._not_settled(pending, error),
        )

    def _end_deferred(
        self, held: Held, settlement: Settlement, exception: bytes | None, acknowledge: Acknowledge | None
    ) -> None:
        self.deferred -= 1
        self._late += 1
        self.end(held, settlement, exception, acknowledge)

    def _put(self, pending: PendingSettlement) -> None:
        settlement, _, acknowledge, admission, _ = pending
        if settlement.job.foreground and self._is_abandoned(settlement):
            self._put_abandoned(pending)
            return
        operation = self._open
        if operation is None or not operation.open:
            batch: list[PendingSettlement] = []
            operation = self._open = Settle([])
            operation.rows = 0
            operation.urgent = False
            self._batch = batch
            self._commits.put(
                operation, lambda stale: self._settled(batch, stale), lambda error: self._not_settled(batch, error)
            )
        if not operation.urgent and (
            acknowledge is not None
            or admission is not None
            or settlement.event is not _SUCCEED
            or self._listeners.of(settlement.job.id)
        ):
            # Its worker waits, or a client, or another worker that could run the job.
            operation.urgent = True
            self._commits.hurry()
        self._batch.append(pending)
        operation.settlements.append(settlement)
        operation.rows += 1
        size = len(settlement.result) + 200
        operation.size += size
        self._commits.add_bytes(size)

    def _is_abandoned(self, settlement: Settlement) -> bool:
        """Return whether a foreground job is requeued although no client of this node waits for it."""
        return not rules.target(settlement.event).ended and not self._listeners.of(settlement.job.id)

    def _put_abandoned(self, pending: PendingSettlement) -> None:
        """Settle a job and drop it in the same group: no other worker may get it in between."""
        batch = [pending]
        operation = Settle([pending.settlement])
        operation.rows = 0  # no group is closed behind an operation without rows
        self._commits.put(
            operation, lambda stale: self._settled(batch, stale), lambda error: self._not_settled(batch, error)
        )
        if self._drop is not None:
            self._drop(pending.settlement)

    def _settled(self, batch: list[PendingSettlement], stale: set[int]) -> None:
        listeners, hub = self._listeners, self._hub
        freed: dict[FunctionQueue, None] = {}
        settlements: list[Settlement] = []
        for settlement, exception, acknowledge, admission, worker in batch:
            job = settlement.job
            queue = self._dispatch.queue(job.function)
            queue.leased -= 1
            if admission is not None:
                admission.give_back(job.key)
                freed[queue] = None
            recorded = job.id not in stale
            if acknowledge is not None:
                acknowledge(recorded)
            if not recorded:
                if self._drop is not None:
                    queue.away += 1  # probably another node has it; on a store of one node it was deleted
                if worker is not None:
                    worker.refused = True
                continue
            settlements.append(settlement)
            after = rules.target(settlement.event)
            if after >= _SUCCEEDED:
                if listeners.of(job.id):
                    self._listeners.notify(_settled_job(settlement), exception)
            elif after == State.SCHEDULED:
                queue.away += 1
                self._wake_at(settlement.due_us)
            else:
                queue.backlog[job.priority] += 1
                self._serving.serve(queue)
            if hub.active and job.id in hub.wanted:
                hub.publish(_settled_job(settlement))
        for queue in freed:
            self._serving.serve(queue)
        for ended in self._attempts_ended:
            ended(settlements)

    def _not_settled(self, batch: list[PendingSettlement], error: StoreError) -> None:
        if isinstance(error, StoreBrokenError):
            for pending in batch:
                if pending.worker is not None:
                    pending.worker.refused = True  # no reply may confirm that it is on disk
            return  # the node ends; the jobs run again
        if isinstance(error, StoreFencedError):
            for pending in batch:
                queue = self._dispatch.queue(pending.settlement.job.function)
                queue.leased -= 1
                queue.away += 1
                if pending.admission is not None:
                    pending.admission.give_back(pending.settlement.job.key)
                if pending.acknowledge is not None:
                    pending.acknowledge(False)
                if pending.worker is not None:
                    pending.worker.refused = True
            return  # other nodes have these jobs
        self.unsettled.extend(batch)

    def retry_settlements(self) -> None:
        """Send the settlements again that failed in the store."""
        unsettled, self.unsettled = self.unsettled, []
        self._late += len(unsettled)
        for pending in unsettled:
            self._put(pending)

    # ---- barriers ----

    def is_settled(self) -> bool:
        """Return whether all reported settlements are on disk."""
        return self._commits.idle and not self.waits

    def when_stored(self, then: Callable[[], None]) -> None:
        """Call a function once the operations put before are committed or have failed."""
        self._commits.put(Find([]), lambda _: then(), lambda _: then())

    def when_settled(self, then: Callable[[], None]) -> None:
        """Call a function once all settlements reported before are on disk, retried ones included."""
        late = self._late

        def stored() -> None:
            if self.waits:
                self._timers.at(self._clock.monotonic() + UNSETTLED_INTERVAL, lambda: self.when_settled(then))
            elif self._late != late:
                self.when_settled(then)  # the first barrier may have overtaken earlier settlements
            else:
                then()

        self.when_stored(stored)

    # ---- jobs in memory alone ----

    def _end_foreground(self, held: Held, settlement: Settlement, exception: bytes | None) -> None:
        serving = self._serving
        job = held.job
        self._ended.append(settlement)
        if (
            settlement.event is not _SUCCEED
            or len(self._ended) >= MAX_GATHERED
            or len(job.payload) + len(settlement.result) > MAX_GATHERED_BYTES
        ):
            self.report_ends()
        after = rules.target(settlement.event)
        if after >= _SUCCEEDED:
            serving.release(held)
            job = _settled_job(settlement)
            self._listeners.notify(job, exception, handle=held.handle, is_kept=False)
            if self._hub.active and job.id in self._hub.wanted:
                self._hub.publish(job)
        elif after is State.PENDING:
            job.attempt = settlement.counted
            self._requeue(held)
        else:
            job.attempt = settlement.counted
            serving.detach(held)
            wait = settlement.due_us / 1_000_000 - self._clock.wall()
            self._timers.at(self._clock.monotonic() + wait, lambda: self._requeue(held))

    def report_ends(self) -> None:
        """Report the gathered ends of jobs in memory; successes are gathered, which makes each one cheaper."""
        settlements, self._ended = self._ended, []
        if settlements:
            for ended in self._attempts_ended:
                ended(settlements)

    def _requeue(self, held: Held) -> None:
        """Queue a foreground job before the others of its priority, unless its client is gone or it was cancelled meanwhile."""
        serving = self._serving
        serving.detach(held)
        held.numerator, held.denominator, held.text, held.reported = b"0", b"0", b"", False
        if self._table.held.get(held.handle) is not held:
            return
        if not held.stored and not held.adopting and not self._listeners.of(held.job.id):
            serving.release(held)
            return
        serving.requeue(held)

    def recovered(self, lost: Iterable[LostAttempt]) -> None:
        """Report attempts that were lost with their node; their jobs are queued again."""
        settlements = settlements_of(lost)
        if settlements:
            for ended in self._attempts_ended:
                ended(settlements)
