"""Settlement of attempts: from a worker's report to the end of the job on disk, of which its clients are notified.

`Settling` asks the rules for the job's next state: after reported results, releases, timeouts, losses and cancellations. `Ends`
removes the job from memory. The settlement of a stored job goes to the store when it is reported. Waiting clients receive the
outcome once it is on disk. A foreground job that is in memory alone is settled at once.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.clock import to_us
from mainspring.errors import StoreBrokenError, StoreFencedError
from mainspring.jobs import rules
from mainspring.jobs.attempts import waited_us
from mainspring.jobs.held import LOST, SILENT
from mainspring.jobs.lateness import is_dated
from mainspring.jobs.model import UNREADABLE_JOB, UNREADABLE_OPTIONS, Job, State, failure
from mainspring.jobs.owners import owner
from mainspring.jobs.rules import GIVES_BACK, Event, Outcome, Settlement
from mainspring.jobs.settlement_records import PendingSettlement, settlements_of
from mainspring.jobs.store import Find, Settle
from mainspring.quantities import format_duration
from mainspring.storage.reads import REMEDY, RETRY_DELAY, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.jobs.admission import AdmissionQueue
    from mainspring.jobs.assignment import Assigner
    from mainspring.jobs.completion_rules import Completion
    from mainspring.jobs.held import FunctionQueue, Held, Worker
    from mainspring.jobs.model import Retry
    from mainspring.jobs.settlement_records import Acknowledge, Remembering, SettleBatch
    from mainspring.jobs.store import LostAttempt
    from mainspring.jobs.table import Context
    from mainspring.storage.commit_queue import OperationWithCallbacks
    from mainspring.storage.reads import SetAside

JOB: Final = Kind("job", REMEDY)
MOST_BLOCKING: Final = 1000
"""Jobs whose looks have blocked a worker that are remembered."""


def _waited_us(held: Held) -> int:
    """Return how long a job had waited for its attempt. Call it before the job is changed for the next attempt."""
    return waited_us(held.job, held.started_us) if held.started_us else -1


def _note_attempt(held: Held, settlement: Settlement, outcome: Outcome, now_us: int, waited: int) -> None:
    """Set in a settlement how the attempt ended, how long it ran, and how long its job had waited before."""
    settlement.outcome, settlement.waited_us = outcome, waited
    if held.started_us:
        settlement.ran_us = now_us - held.started_us


class Settling:
    """Settles held jobs.

    ``lost_limit`` bounds how often a job without a policy is given to another worker after one was lost; None is no limit.
    ``set_aside`` has the jobs that this node cannot read, by their handles, which ``handle_of`` returns.
    """

    def __init__(
        self,
        clock: Clock,
        ends: Ends,
        *,
        lost_limit: int | None = None,
        chance: Callable[[], float] = random.random,
        set_aside: SetAside,
        handle_of: Callable[[int], bytes],
    ) -> None:
        self._set_aside = set_aside
        self._handle_of = handle_of
        self._clock = clock
        self._end = ends.end
        self._end_within = ends.end_within
        self._lost_limit = lost_limit
        self._chance = chance
        self.blocking: dict[int, str] = {}
        """By job: how the look at its work elsewhere has blocked a worker, until the next one watches it."""

    def succeeded(self, held: Held, result: bytes, acknowledge: Acknowledge | None = None) -> None:
        """Settle a job that its worker has completed."""
        now_us = round(self._clock.wall() * 1_000_000)
        self._end(held, rules.succeeded(held.job, result, held.started_us, now_us), None, acknowledge)

    def succeeded_within(
        self, batch: SettleBatch, held: Held, result: bytes, acknowledge: Acknowledge | None = None
    ) -> None:
        """Settle a stored job that its worker has completed, together with operations of another slice."""
        now_us = round(self._clock.wall() * 1_000_000)
        settlement = rules.succeeded(held.job, result, held.started_us, now_us)
        self._end_within(batch, held, settlement, acknowledge)

    def failed(
        self,
        held: Held,
        error: bytes,
        *,
        final: bool = False,
        exception: bytes | None = None,
        acknowledge: Acknowledge | None = None,
        outcome: Outcome | None = Outcome.FAILED,
        reported: bool = False,
        delay: float | None = None,
    ) -> None:
        """Settle a failed attempt.

        ``exception`` is the data of a plain worker. ``delay``: seconds to the next attempt, in place of those of the policy. The
        rest is as in `Settlement`.
        """
        now_us = round(self._clock.wall() * 1_000_000)
        settlement = rules.failed(
            held.job, self.policy(held), error, held.started_us, now_us, final=final, chance=self._chance()
        )
        if held.cancelled and settlement.event is Event.RETRY:
            self.cancelled(held, held.cancelled, acknowledge)
        else:
            if delay is not None and settlement.event is Event.RETRY:
                settlement.due_us = now_us + to_us(delay)
            settlement.reported = reported
            if outcome is not None:
                _note_attempt(held, settlement, outcome, now_us, _waited_us(held))
            self._end(held, settlement, exception, acknowledge)

    def released(self, held: Held, acknowledge: Acknowledge | None = None) -> None:
        """Settle a job that its worker gives back; the delivery is not counted."""
        if held.cancelled:
            self.cancelled(held, held.cancelled, acknowledge)
        else:
            if held.elsewhere is not None and held.elsewhere.is_submitted:
                rules.note_begun(held.job)
            settlement = Settlement(held.job, Event.RELEASE, held.job.attempt)
            if held.worker is not None:
                now_us = round(self._clock.wall() * 1_000_000)
                _note_attempt(held, settlement, Outcome.RELEASED, now_us, _waited_us(held))
            self._end(held, settlement, None, acknowledge)

    def snoozed(self, held: Held, delay: float, acknowledge: Acknowledge | None = None) -> None:
        """Settle a job that its worker postpones; the delivery is not counted."""
        if held.cancelled:
            self.cancelled(held, held.cancelled, acknowledge)
            return
        now = self._clock.wall()
        due_us = round((now + delay) * 1_000_000)
        settlement = Settlement(held.job, Event.SNOOZE, held.job.attempt, due_us=due_us, started_us=held.started_us)
        if is_dated(held.job):
            settlement.postponed_us = round(delay * 1_000_000)
        _note_attempt(held, settlement, Outcome.SNOOZED, round(now * 1_000_000), _waited_us(held))
        self._end(held, settlement, None, acknowledge)

    def cancelled(self, held: Held, reason: str, acknowledge: Acknowledge | None = None) -> None:
        """Settle a job as cancelled, whether it waits in memory or its worker has stopped it."""
        self._end(held, self._cancel(held, reason), None, acknowledge)

    def _cancel(self, held: Held, reason: str) -> Settlement:
        counted = held.job.attempt + (held.worker is not None)
        now_us = round(self._clock.wall() * 1_000_000)
        error = failure("Cancelled", reason)
        settlement = Settlement(
            held.job, Event.CANCEL, counted, started_us=held.started_us, ended_us=now_us, error=error
        )
        if held.worker is not None:
            _note_attempt(held, settlement, Outcome.CANCELLED, now_us, _waited_us(held))
        return settlement

    def denied(self, held: Held, why: str) -> None:
        """Settle a job that has waited too long for its slots of resources. That was no attempt, so none follows."""
        now_us = round(self._clock.wall() * 1_000_000)
        error = failure("ResourceTimeout", why)
        self._end(held, Settlement(held.job, Event.FAIL, held.job.attempt, ended_us=now_us, error=error), None, None)

    def without_slots(self, held: Held, why: str, batch: SettleBatch | None = None, *, cancel: bool = False) -> None:
        """Settle a stored job that has lost its slots of resources, and stop its attempt, which is not counted.

        The job waits for its slots again, as if it were due now: others do not wait behind it for those that it has lost.
        ``cancel``: it ends as cancelled. ``batch`` settles it together with operations of another slice.
        """
        worker, cancel = held.worker, cancel or bool(held.cancelled)
        if held.slots is not None:
            held.slots.taken = True
        if worker is not None:
            worker.connection.stop(held, LOST)  # the report of a plain worker, which gets no message, is refused
            if cancel and not worker.streams:
                worker.ignored_results.add(held.handle)
        if cancel:
            settlement = self._cancel(held, held.cancelled or why)
        else:
            now_us = round(self._clock.wall() * 1_000_000)
            settlement = Settlement(held.job, Event.RELEASE, held.job.attempt, due_us=now_us)
            settlement.why = why
            if worker is not None:
                _note_attempt(held, settlement, Outcome.RELEASED, now_us, _waited_us(held))
        if batch is None:
            self._end(held, settlement, None, None)
        else:
            self._end_within(batch, held, settlement)

    def expired(self, held: Held) -> None:
        """Settle a job as expired."""
        now_us = round(self._clock.wall() * 1_000_000)
        self._end(held, Settlement(held.job, Event.EXPIRE, held.job.attempt, ended_us=now_us), None, None)

    def refuses(self, held: Held) -> bool:
        """Settle a claimed job if it may not be handed out any more; return whether it was settled."""
        job = held.job
        if job.options is UNREADABLE_OPTIONS:
            self._postpone(held)
            return True
        if not rules.was_tried(job):
            if job.expires_us and job.expires_us <= round(self._clock.wall() * 1_000_000):
                self.expired(held)
                return True
        elif rules.out_of_attempts(job, self.policy(held), self._lost_limit) and not held.queue.runs_elsewhere:
            job.attempt -= 1  # its node was lost at the last one, which the store has counted already
            error = failure("WorkerLost", "its node was lost at the last attempt")
            self.failed(held, error, final=True, outcome=None)  # the attempt ended when its node was lost
            return True
        return False

    def _postpone(self, held: Held) -> None:
        """Give back a claimed job whose options this version cannot read: it is due again soon, for this node or another one.

        Its row stays as it is but for the time. It was not handed out, so that no attempt is counted.
        """
        self._set_aside.note(JOB, self._handle_of(held.job.id).decode(), UNREADABLE_JOB)
        due_us = round((self._clock.wall() + RETRY_DELAY) * 1_000_000)
        self._end(held, Settlement(held.job, Event.SNOOZE, held.job.attempt, due_us=due_us), None, None)

    def timed_out(self, held: Held, timeout: float, requeue: bool) -> None:
        """Settle an attempt that ran longer than ``timeout`` seconds."""
        assert held.worker is not None
        held.worker.connection.stop(held, b"timeout")
        if held.elsewhere is not None:
            held.elsewhere.timed_out()
        if requeue:
            self.lost(held, f"it ran for longer than {format_duration(timeout)}", outcome=Outcome.TIMED_OUT)
        else:
            error = failure("Timeout", f"the attempt ran for longer than {format_duration(timeout)}")
            self.failed(held, error, outcome=Outcome.TIMED_OUT)

    def silent(self, held: Held, heartbeat: float) -> None:
        """Settle a job whose worker has sent no heartbeat for ``heartbeat`` seconds."""
        assert held.worker is not None
        held.worker.connection.stop(held, SILENT)
        why = f"its worker sent no heartbeat for {format_duration(heartbeat)}"
        self.lost_with_process(held.worker, [held], why)

    def lost(self, held: Held, why: str, *, outcome: Outcome = Outcome.LOST) -> None:
        """Settle a lost delivery: it counts, and another worker gets the job."""
        if held.cancelled:
            self.cancelled(held, f"{held.cancelled}; {why}")
            return
        now_us = round(self._clock.wall() * 1_000_000)
        waited = _waited_us(held)
        settlement = rules.lost(held.job, self.policy(held), self._lost_limit, why, held.started_us, now_us)
        _note_attempt(held, settlement, outcome, now_us, waited)
        self._end(held, settlement, None, None)

    def lost_with_process(self, worker: Worker, lost: Sequence[Held], why: str) -> None:
        """Settle the jobs that were lost with a departed or silent worker: other workers get them."""
        if not worker.streams:
            for held in lost:
                self.lost(held, why)
            return
        own = all(rules.may_kill_workers(held.job) for held in worker.running.values())
        now_us = round(self._clock.wall() * 1_000_000)
        for held in lost:
            if held.cancelled:
                self.cancelled(held, f"{held.cancelled}; {why}")
                continue
            policy, waited = self.policy(held), _waited_us(held)
            if held.elsewhere is not None and held.elsewhere.is_submitted:
                settlement = rules.handed_on(held.job, why, now_us)
            else:
                settlement = rules.lost_with_process(
                    held.job, policy, self._lost_limit, why, held.started_us, now_us, own=own
                )
            _note_attempt(held, settlement, Outcome.LOST, now_us, waited)
            self._end(held, settlement, None, None)

    def blocked(self, held: Held, why: str) -> None:
        """Settle a delivery that has blocked its worker with a look at work elsewhere: no attempt counts, as of a lost worker."""
        if held.cancelled:
            self.cancelled(held, held.cancelled)
            return
        if len(self.blocking) >= MOST_BLOCKING:
            del self.blocking[next(iter(self.blocking))]
        self.blocking[held.job.id] = why
        now_us = round(self._clock.wall() * 1_000_000)
        settlement = rules.handed_on(held.job, why, now_us)
        _note_attempt(held, settlement, Outcome.LOST, now_us, _waited_us(held))
        self._end(held, settlement, None, None)

    def worker_gone(self, worker: Worker, why: str) -> None:
        """Settle the jobs of a worker whose connection has ended."""
        # In reverse, so that each is put before the ones that came after it.
        self.lost_with_process(worker, [*worker.running.values()][::-1], why)

    @staticmethod
    def policy(held: Held) -> Retry | None:
        """Return the job's own retry policy, or the one of the worker that has it."""
        options = held.job.options
        if options is not None and options.retry is not None:
            return options.retry
        return held.ability.retry if held.ability is not None else None


if TYPE_CHECKING:
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
        assigner: Assigner,
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
        self._assigner = assigner
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
            self._assigner.detach(held)
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
                self._assigner.serve(held.queue)
            if acknowledge is not None:
                acknowledge(True)

    def await_completion(self, held: Held, completion: Completion, acknowledge: Acknowledge) -> None:
        """Settle a job whose attempt goes on without it: it is SCHEDULED until its completion comes, or a while longer.

        Nothing is counted, and its deadline does not move.
        """
        job = held.job
        settlement = Settlement(job, Event.SNOOZE, job.attempt, due_us=completion.due_us, started_us=held.started_us)
        settlement.awaits = True
        now_us = to_us(self._clock.wall())
        _note_attempt(held, settlement, Outcome.SNOOZED, now_us, _waited_us(held))
        self.end(held, settlement, None, acknowledge)

    def completed(self, settlement: Settlement) -> None:
        """Count and announce the committed end of an attempt that had awaited its completion: no node held its job."""
        job = _settled_job(settlement)
        if State(job.state).ended:
            queue = self._dispatch.tracked(job.function)
            if queue is not None:
                self._assigner.no_longer_away(queue)
            self._listeners.notify(job)
        if self._hub.active and job.id in self._hub.wanted:
            self._hub.publish(job)
        self._report([settlement])

    def forget(self, held: Held, *, stop: bool) -> None:
        """Forget a stored job whose row was deleted, without settling it; ``stop``: ask its worker to stop."""
        worker, queue, admission = held.worker, held.queue, held.admission
        if worker is not None and not worker.streams:
            worker.ignored_results.add(held.handle)
        elif worker is not None and stop:
            worker.connection.stop(held, b"cancelled")
        held.admission = None
        self._assigner.release(held)
        queue.leased -= 1
        if admission is not None:
            admission.give_back(held.job.key)
        self._assigner.serve(queue)

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
        if held.slots is not None and settlement.event in GIVES_BACK and not settlement.started_us:
            settlement.started_us = held.started_us  # so that its next wait has the whole time
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
        self._assigner.release(held)
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
        return self._with_callbacks(batch.operation, batch.pending)

    def _with_callbacks(self, operation: Settle, batch: list[PendingSettlement]) -> OperationWithCallbacks:
        return operation, lambda stale: self._settled(batch, stale), lambda error: self._not_settled(batch, error)

    def _end_deferred(
        self, held: Held, settlement: Settlement, exception: bytes | None, acknowledge: Acknowledge | None
    ) -> None:
        self.deferred -= 1
        self._late += 1
        if held.stored and self._table.held.get(held.handle) is not held:
            if acknowledge is not None:
                acknowledge(False)  # its term ended while it was stored: other nodes have it
            return
        self.end(held, settlement, exception, acknowledge)

    def _put(self, pending: PendingSettlement) -> None:
        settlement, _, acknowledge, admission, _ = pending
        if settlement.job.foreground and self._is_abandoned(settlement):
            self._put_abandoned(pending)
            return
        operation = self._open
        if operation is None or not operation.open:
            operation = self._open = Settle([])
            operation.rows = 0
            operation.urgent = False
            self._batch = []
            self._commits.put(*self._with_callbacks(operation, self._batch))
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
        operation = Settle([pending.settlement])
        operation.rows = 0  # no group is closed behind an operation without rows
        self._commits.put(*self._with_callbacks(operation, [pending]))
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
                queue.returning += job.suspects >= rules.WORKER_LOST
                self._assigner.serve(queue)
            if hub.active and job.id in hub.wanted:
                hub.publish(_settled_job(settlement))
        for queue in freed:
            self._assigner.serve(queue)
        self._report(settlements)

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
        assigner = self._assigner
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
            assigner.release(held)
            job = _settled_job(settlement)
            self._listeners.notify(job, exception, handle=held.handle, is_kept=False)
            if self._hub.active and job.id in self._hub.wanted:
                self._hub.publish(job)
        elif after is State.PENDING:
            job.attempt = settlement.counted
            self._requeue(held)
        else:
            job.attempt = settlement.counted
            assigner.detach(held)
            wait = settlement.due_us / 1_000_000 - self._clock.wall()
            self._timers.at(self._clock.monotonic() + wait, lambda: self._requeue(held))

    def report_ends(self) -> None:
        """Report the gathered ends of jobs in memory; successes are gathered, which makes each one cheaper."""
        settlements, self._ended = self._ended, []
        self._report(settlements)

    def _report(self, settlements: list[Settlement]) -> None:
        if settlements:
            for ended in self._attempts_ended:
                ended(settlements)

    def _requeue(self, held: Held) -> None:
        """Queue a foreground job before the others of its priority, unless its client is gone or it was cancelled meanwhile."""
        assigner = self._assigner
        assigner.detach(held)
        held.numerator, held.denominator, held.text, held.reported = b"0", b"0", b"", False
        if self._table.held.get(held.handle) is not held:
            return
        if not held.stored and not held.adopting and not self._listeners.of(held.job.id):
            assigner.release(held)
            return
        assigner.requeue(held)

    def recovered(self, lost: Iterable[LostAttempt]) -> None:
        """Report attempts that were lost with their node; their jobs are queued again."""
        lost = [*lost]
        for attempt in lost:
            queue = self._dispatch.tracked(attempt.function)
            if queue is not None:
                queue.returning += 1
        self._report(settlements_of(lost))
