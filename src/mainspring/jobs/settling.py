"""Settles attempts: reported results, releases, timeouts, losses and cancellations."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from mainspring.jobs import rules
from mainspring.jobs.attempts import waited_us
from mainspring.jobs.failures import failure
from mainspring.jobs.held import SILENT
from mainspring.jobs.model import UNREADABLE_JOB, UNREADABLE_OPTIONS
from mainspring.jobs.rules import Event, Outcome, Settlement
from mainspring.quantities import format_duration
from mainspring.storage.set_aside import REMEDY, RETRY_DELAY, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.clock import Clock
    from mainspring.jobs.ends import Ends
    from mainspring.jobs.held import Held, Worker
    from mainspring.jobs.model import Retry
    from mainspring.jobs.pending_settlements import Acknowledge, SettleBatch
    from mainspring.storage.set_aside import SetAside

JOB: Final = Kind("job", REMEDY)


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
    ) -> None:
        """Settle a failed attempt. ``exception`` is the data of a plain worker; the rest is as in `Settlement`."""
        now_us = round(self._clock.wall() * 1_000_000)
        settlement = rules.failed(
            held.job, self.policy(held), error, held.started_us, now_us, final=final, chance=self._chance()
        )
        if held.cancelled and settlement.event is Event.RETRY:
            self.cancelled(held, held.cancelled, acknowledge)
        else:
            settlement.reported = reported
            if outcome is not None:
                _note_attempt(held, settlement, outcome, now_us, _waited_us(held))
            self._end(held, settlement, exception, acknowledge)

    def released(self, held: Held, acknowledge: Acknowledge | None = None) -> None:
        """Settle a job that its worker gives back; the delivery is not counted."""
        if held.cancelled:
            self.cancelled(held, held.cancelled, acknowledge)
        else:
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
        _note_attempt(held, settlement, Outcome.SNOOZED, round(now * 1_000_000), _waited_us(held))
        self._end(held, settlement, None, acknowledge)

    def cancelled(self, held: Held, reason: str, acknowledge: Acknowledge | None = None) -> None:
        """Settle a job as cancelled, whether it waits in memory or its worker has stopped it."""
        counted = held.job.attempt + (held.worker is not None)
        now_us = round(self._clock.wall() * 1_000_000)
        error = failure("Cancelled", reason)
        settlement = Settlement(
            held.job, Event.CANCEL, counted, started_us=held.started_us, ended_us=now_us, error=error
        )
        if held.worker is not None:
            _note_attempt(held, settlement, Outcome.CANCELLED, now_us, _waited_us(held))
        self._end(held, settlement, None, acknowledge)

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
        elif rules.out_of_attempts(job, self.policy(held), self._lost_limit):
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
            settlement = rules.lost_with_process(
                held.job, policy, self._lost_limit, why, held.started_us, now_us, own=own
            )
            _note_attempt(held, settlement, Outcome.LOST, now_us, waited)
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
