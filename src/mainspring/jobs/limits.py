"""What limits a job in memory: how long it may wait there, how long a worker may take, how long it may be silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs import rules
from mainspring.jobs.failures import failure
from mainspring.quantities import format_duration

if TYPE_CHECKING:
    from mainspring.jobs.footing import Footing
    from mainspring.jobs.held import Held
    from mainspring.jobs.serving import Serving
    from mainspring.jobs.settling import Settling


class Limits:
    """Sets the timers of jobs. ``lost_limit`` as in Settling."""

    def __init__(self, footing: Footing, serving: Serving, settling: Settling, *, lost_limit: int | None) -> None:
        self._clock = footing.clock
        self._serving = serving
        self._settling = settling
        self._lost_limit = lost_limit

    # ---- waiting ----

    def refuses(self, held: Held) -> bool:
        """Settle a claimed job that may not be handed out any more, and say whether that was so."""
        job = held.job
        if not rules.was_tried(job):
            if job.expires_us and job.expires_us <= round(self._clock.wall() * 1_000_000):
                self._settling.expired(held)
                return True
        elif rules.out_of_attempts(job, self._settling.policy(held), self._lost_limit):
            job.attempt -= 1  # its node was lost at the last one, which the store has counted already
            error = failure("WorkerLost", "its node was lost at the last attempt")
            self._settling.failed(held, error, final=True, outcome=None)  # the attempt ended when its node was lost
            return True
        return False

    def entered(self, held: Held) -> None:
        """Expire a job in time that waits here: the store does that only to what waits there."""
        if not rules.was_tried(held.job):
            wait = held.job.expires_us / 1_000_000 - self._clock.wall()
            self._serving.limit(held, max(wait, 0), lambda: self._settling.expired(held))

    # ---- running ----

    def started(self, held: Held) -> None:
        """A worker has a job: its time runs, and its heart has to beat."""
        options, ability = held.job.options, held.ability
        timeout = options.timeout if options is not None else None
        heartbeat = options.heartbeat if options is not None else None
        requeue = False
        if ability is not None:
            if timeout is None:
                timeout, requeue = ability.timeout, ability.requeue
            if heartbeat is None:
                heartbeat = ability.heartbeat
        if timeout is not None:
            self._serving.limit(held, timeout, lambda: self._time_out(held, timeout, requeue=requeue))
        if heartbeat is not None and held.worker is not None and held.worker.streams:
            held.beat = self._clock.monotonic()
            self._serving.limit(held, heartbeat, lambda: self._miss_beat(held, heartbeat))

    def _time_out(self, held: Held, timeout: float, *, requeue: bool) -> None:
        assert held.worker is not None
        held.worker.face.stop(held, b"timeout")
        if requeue:
            self._settling.lost(
                held, f"it ran for longer than {format_duration(timeout)}", outcome=rules.Outcome.TIMED_OUT
            )
        else:
            error = failure("Timeout", f"the attempt ran for longer than {format_duration(timeout)}")
            self._settling.failed(held, error, outcome=rules.Outcome.TIMED_OUT)

    def _miss_beat(self, held: Held, heartbeat: float) -> None:
        assert held.worker is not None
        left = held.beat + heartbeat - self._clock.monotonic()
        if left > 0:
            self._serving.limit(held, left, lambda: self._miss_beat(held, heartbeat))
            return
        held.worker.face.stop(held, b"lost")
        why = f"its worker sent no heartbeat for {format_duration(heartbeat)}"
        self._settling.lost_with_process(held.worker, [held], why)
