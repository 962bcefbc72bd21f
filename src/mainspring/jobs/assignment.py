"""Assignment of jobs to workers: queues are served whenever a job, a worker or a token has come.

Jobs in memory are in a `table`. `claiming` bounds them and claims them from the store; jobs that wait for their turn to run alone
are in `suspects`.

A plain worker may request a job when there is none in memory (`PendingGrabs`). Its request waits for a claim from the store. A
worker that has just ended a job also waits for a moment. A job that comes meanwhile is the answer; otherwise the answer is
NO_JOB.

`TimeLimits` has the time limits of jobs in memory: the expiry of waiting jobs, and the timeout and heartbeat of running ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.clock import from_us, to_us
from mainspring.jobs import rules
from mainspring.jobs.claiming import NO_QUOTA, Claiming
from mainspring.jobs.dispatch import match_preferred
from mainspring.jobs.held import LOST
from mainspring.jobs.hold_requests import HoldRequests
from mainspring.jobs.rules import LONGEST_PREPARATION
from mainspring.jobs.store import Assign
from mainspring.jobs.suspects import IsolationQueue, Suspects
from mainspring.jobs.token_grants import TokenGrants

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from mainspring.errors import StoreError
    from mainspring.jobs.admission import AdmissionQueue
    from mainspring.jobs.claiming import ClaimQuota
    from mainspring.jobs.held import FunctionQueue, Held, Preference, Worker
    from mainspring.jobs.model import Job
    from mainspring.jobs.table import Context
    from mainspring.jobs.token_grants import GrantedAccounts
    from mainspring.resources.holds import Waits
    from mainspring.turns_of_loop import Timer

RECHECK: Final = 60.0
"""Seconds after which a wait for an expiry time looks at the wall clock again: it may have been stepped."""


class TimeLimits:
    """Sets the timers of jobs. A timer ends when its job gets a worker, leaves it or is released.

    ``expired`` is called with a job that has waited too long; ``timed_out`` with a job, its timeout in seconds, and whether the
    timeout requeues it; ``silent`` with a job and the seconds for which its worker has not reported.
    """

    def __init__(
        self,
        context: Context,
        *,
        expired: Callable[[Held], None],
        timed_out: Callable[[Held, float, bool], None],
        silent: Callable[[Held, float], None],
    ) -> None:
        self._timers, self._clock = context.timers, context.clock
        self._expired = expired
        self._timed_out = timed_out
        self._silent = silent

    def waits(self, held: Held) -> None:
        """Set the expiry of a job that waits in memory: the store expires only jobs that wait there."""
        if not rules.was_tried(held.job):
            wait = held.job.expires_us / 1_000_000 - self._clock.wall()
            if wait > RECHECK:
                self._limit(held, RECHECK, lambda: self.waits(held))
            else:
                self._limit(held, max(wait, 0), lambda: self._expired(held))

    def prepares(self, held: Held) -> None:
        """Let the timeout of a job wait until its worker has prepared an executor, up to `LONGEST_PREPARATION` from its start.

        Only the first call for a delivery does so: a worker that reports more cannot extend the time of an attempt.
        """
        if held.begins_by:
            return
        elapsed = max(self._clock.wall() - held.started_us / 1_000_000, 0.0)
        left = max(LONGEST_PREPARATION - elapsed, 0.0)
        held.begins_by = self._clock.monotonic() + left
        if left:
            self.end(held)
            self.started(held, preparation=left)

    def prepared(self, held: Held) -> bool:
        """Let a prepared job begin, and return whether it begins now: it has begun before after `LONGEST_PREPARATION`.

        A job whose worker has reported no preparation does not change.
        """
        if not held.begins_by:
            return False
        now = self._clock.monotonic()
        late = max(now - held.begins_by, 0.0)
        held.started_us = round((self._clock.wall() - late) * 1_000_000)
        if not late:
            held.begins_by = now
            self.end(held)
            self.started(held)
        return not late

    def started(self, held: Held, preparation: float = 0.0) -> None:
        """Set the timeout and heartbeat of a job that a worker has started. The timeout begins after ``preparation`` seconds."""
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
            self._limit(held, preparation + timeout, lambda: self._timed_out(held, timeout, requeue))
        if heartbeat is not None and held.worker is not None and held.worker.streams:
            held.beat = self._clock.monotonic()
            self._limit(held, heartbeat, lambda: self._miss_beat(held, heartbeat))

    def _miss_beat(self, held: Held, heartbeat: float) -> None:
        left = held.beat + heartbeat - self._clock.monotonic()
        if left > 0:
            self._limit(held, left, lambda: self._miss_beat(held, heartbeat))
        else:
            self._silent(held, heartbeat)

    def _limit(self, held: Held, seconds: float, function: Callable[[], None]) -> None:
        waiting = [timer for timer in held.timers or () if timer.function is not None]
        held.timers = [*waiting, self._timers.at(self._clock.monotonic() + seconds, function)]

    def end(self, held: Held) -> None:
        """Cancel the timers of a job."""
        for timer in held.timers or ():
            self._timers.cancel(timer)
        held.timers = None


GRAB_WAIT = 0.002
"""Seconds that a worker which has just ended a job waits for the next one before NO_JOB."""
GRAB_WAIT_FUNCTIONS = 8
"""The most functions of such a worker: waiting for more of them would cost more than it saves."""


class PendingGrabs:
    """The workers that wait for an answer; ``worker.grabbing`` is the number of their requests."""

    def __init__(self, context: Context, claiming: Claiming) -> None:
        self._dispatch, self._timers, self._clock = context.dispatch, context.timers, context.clock
        self._claiming = claiming
        self.since: dict[Worker, float] = {}
        """Workers that wait for a moment, with the start of the wait, the longest wait first."""

    def for_the_store(self, worker: Worker) -> bool:
        """Claim jobs for a worker that found none in memory; return True if it waits for a claim."""
        asks = not worker.streams
        if asks:
            # Before the claim: a worker with a request is a place for a job, even if it never sleeps.
            self._wait(worker)
        for queue in worker.abilities:
            self._claiming.refill(queue)
        waits = asks and any(queue.claiming for queue in worker.abilities)
        if asks and not waits:
            worker.grabbing -= 1
            worker.credit -= 1
            if not worker.credit:
                self._dispatch.withdraw(worker)
        return waits

    def for_a_moment(self, worker: Worker) -> bool:
        """Let a worker that has just ended a job and found no other wait for a moment; return False for other workers.

        A client that waited for that job often sends its next one at once: it is then handed over as the answer, without the
        four packets by which the worker would go to sleep and be woken.
        """
        if not worker.ended or worker.streams or self._dispatch.paused or len(worker.abilities) > GRAB_WAIT_FUNCTIONS:
            return False
        worker.ended = False
        now = self._clock.monotonic()
        if not self.since:
            self._timers.at(now + GRAB_WAIT, self._end)
        self.since.pop(worker, None)
        self.since[worker] = now
        self._wait(worker)
        return True

    def _wait(self, worker: Worker) -> None:
        worker.grabbing += 1
        worker.credit += 1
        self._dispatch.offer(worker)

    def _end(self) -> None:
        now = self._clock.monotonic()
        for worker, since in list(self.since.items()):
            if now < since + GRAB_WAIT:  # the same expression as the timer's time: rounding could set a timer for now
                self._timers.at(since + GRAB_WAIT, self._end)
                break
            del self.since[worker]
            if worker in self._dispatch.workers:
                self.answer(worker)

    def answer_all(self, queue: FunctionQueue) -> None:
        """Answer the workers that waited for a claim of a function and got no job."""
        for worker in [one for one in queue.takers if one.grabbing]:
            self.answer(worker)

    def answer(self, worker: Worker) -> None:
        """Send NO_JOB to a waiting worker, unless another claim for it is in progress."""
        if worker.grabbing and not any(queue.claiming for queue in worker.abilities):
            asked, worker.grabbing = worker.grabbing, 0
            self._dispatch.withdraw(worker)
            for _ in range(asked):
                worker.connection.no_job()


MIN_DELAY = 0.001
"""The shortest delay in seconds before a queue is served again because of the time alone."""


class Assigner:
    """Serves the queues of a node.

    ``begin`` is called if jobs wait that stand for runs, ``give_back`` if no worker here can run a function's jobs soon,
    ``release`` with a job whose key's tokens other nodes hold, and ``hand_back`` if stored jobs have come to a paused node.
    ``refused`` settles a claimed job that may not be handed out any more, and returns whether it did. ``keep`` stores a
    foreground job, and then calls a function. ``denied`` ends a job that has waited too long for resources. ``lacking`` is called
    with the resources for whose slots a job begins to wait. On a shared store
    ``withheld`` returns whether a claimed foreground job is held back, because its last client here has left; ``leased`` are
    the granted tokens of limits, and ``share`` returns this node's quota of a function's jobs, if there is one.
    """

    def __init__(
        self,
        context: Context,
        limits: TimeLimits,
        *,
        begin: Callable[[FunctionQueue], None],
        give_back: Callable[[FunctionQueue], None],
        release: Callable[[Held], None],
        hand_back: Callable[[], None],
        refused: Callable[[Held], bool],
        keep: Callable[[Held, Callable[[], None]], None],
        denied: Callable[[Held, Waits], None],
        lacking: Callable[[Collection[str]], None],
        withheld: Callable[[Held], bool] | None = None,
        leased: GrantedAccounts | None = None,
        share: Callable[[FunctionQueue], ClaimQuota] | None = None,
    ) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._timers, self._clock, self._hub = context.timers, context.clock, context.hub
        self._limits = limits
        self._give_back = give_back
        self._share = share
        self._hand_back = hand_back
        self._refused = refused
        self._withheld = withheld
        self._deliveries = 0
        self._clocked: dict[FunctionQueue, tuple[float, Timer]] = {}
        """Times and timers of queues that are served again because time lets more of their jobs start."""
        self.suspects = Suspects(context, self._serve_or_give_back)
        self.isolation = IsolationQueue(context.dispatch, self.serve)
        self.hold_requests = HoldRequests(context, self.serve, release, keep, denied, lacking)
        self.token_grants = None
        if leased is not None:
            self.token_grants = TokenGrants(
                context, leased, self.serve, self.serve_at, give_back=release, is_open=self._is_open
            )
        self.claiming = Claiming(
            context,
            begin=begin,
            is_full=self.isolation.is_full,
            came=self._accept_claimed,
            failed=self.answer,
            shared=leased is not None,
            share=share,
            ask_for_slots=self.hold_requests.serve,
            ask_for_tokens=None if self.token_grants is None else self.token_grants.serve,
        )
        self.pending_grabs = PendingGrabs(context, self.claiming)

    def _is_open(self, queue: FunctionQueue) -> bool:
        """Return whether a function's jobs are in the share of every node."""
        share = NO_QUOTA if self._share is None else self._share(queue)
        return share.limit is None and share.slots is None

    # ---- coming in, and leaving ----

    def hold(self, job: Job) -> Held:
        """Take a stored job into memory; the caller pushes it and serves its queue."""
        held = self._table.hold(job, stored=True)
        if job.expires_us:
            self._limits.waits(held)
        return held

    def _accept_claimed(self, queue: FunctionQueue, jobs: list[Job]) -> None:
        """Queue claimed jobs, each in its place, and hand out those that may start."""
        claimed: list[Held] = []
        for job in jobs:
            held = self.hold(job)
            if self._refused(held) or (job.foreground and self._withheld is not None and self._withheld(held)):
                continue
            if not job.suspects or queue.runs_elsewhere:
                claimed.append(held)
            elif rules.may_kill_nodes(job):
                self.suspects.add(held)
            elif rules.may_kill_workers(job):
                self.isolation.add(held)
            else:
                claimed.append(held)
        self._dispatch.merge(queue, claimed)
        self.suspects.next()
        self.serve(queue)
        self.pending_grabs.answer_all(queue)
        if not queue.workers:
            self._give_back(queue)
        if jobs:
            self.arrived()

    def arrived(self) -> None:
        """Give back jobs that were leased to this node if it drains by now: other nodes may have free workers."""
        if self._dispatch.paused:
            self._hand_back()

    def requeue(self, held: Held) -> None:
        """Queue a job that was handed out, before the others of its priority. Its next attempt has slots of its own."""
        if held.slots is not None:
            self.hold_requests.left(held)
        if rules.may_kill_workers(held.job) and not held.queue.runs_elsewhere:
            self.isolation.add(held)
        else:
            self._dispatch.push(held, first=True)
        self.serve(held.queue)

    def waiting_apart(self, queue: FunctionQueue) -> list[Held]:
        """Return the jobs of a function that are in memory and in no queue before their turn."""
        return self.suspects.of(queue) + self.isolation.of(queue)

    def release(self, held: Held) -> None:
        """Forget a job that has ended or goes back to the store, and detach it from its worker."""
        if held.queued:
            self._dispatch.drop(held)
            self.claiming.refill(held.queue)
        if held.slots is not None:
            self.hold_requests.left(held)
        self._table.release(held)
        self.detach(held)
        if held.job.suspects:  # other jobs never wait for a turn to run alone
            self.suspects.left(held)

    def fenced(self) -> None:
        """Release all stored jobs, because this node's lease has ended; no job is handed out until there is a new term.

        Streaming workers are asked to stop; reports of other workers about these jobs are ignored.
        """
        self._dispatch.pause()
        self._table.fenced()
        if self.token_grants is not None:
            self.token_grants.forget()
        for held in [held for held in self._table.held.values() if held.stored]:
            self.lost(held)

    def lost(self, held: Held) -> None:
        """Release a stored job whose term has ended: the node that has ended it gives the job back."""
        worker = held.worker
        self.release(held)
        held.queue.leased -= 1
        held.queue.away += 1
        if held.admission is not None:
            held.admission.give_back(held.job.key)
            held.admission = None
        if worker is not None:
            if worker.streams:
                worker.connection.stop(held, LOST)
            else:
                worker.ignored_results.add(held.handle)
                worker.refused = True

    def begin_term(self) -> None:
        """Answer the workers that wait for a claim of the last term."""
        self.claiming.begin_term(self._dispatch.queues.values())

    # ---- going out ----

    def serve(self, queue: FunctionQueue) -> None:
        """Hand waiting jobs to waiting workers, and claim more where there is room."""
        if self.isolation.waiting:
            self.isolation.next(queue)
        if queue.prefer is not None:
            self._serve_preferred(queue, queue.prefer)
        elif queue.size and (queue.takers or queue.sleepers):
            for worker, held in self._dispatch.match(queue):
                if held is None:
                    worker.connection.wake()
                else:
                    if worker.grabbing:
                        worker.grabbing -= 1
                    self.start(held, worker)
                    worker.connection.assign(held)
        if queue.admission is not None:
            self._look_again(queue, queue.admission)
        self.claiming.refill(queue)

    def _serve_preferred(self, queue: FunctionQueue, prefer: Preference[Held, Worker]) -> None:
        """Hand jobs to the workers that they prefer, and look again when one has waited long enough for its worker."""
        if not queue.size or not queue.takers:
            return
        for worker, held in match_preferred(self._dispatch, queue, prefer, self._clock.monotonic()):
            self.start(held, worker)
            worker.connection.assign(held)
        following = prefer.next()
        if queue.takers and following is not None:
            self.serve_at(queue, to_us(following))

    def hint(self, queue: FunctionQueue) -> None:
        """Claim jobs of a function that another node has stored."""
        queue.hinted = True
        self.claiming.hint(queue)

    def refill(self, worker: Worker) -> None:
        """Claim more jobs of a worker's functions, if there is room; hand out those that prefer workers."""
        for queue in worker.abilities:
            if queue.prefer is None:
                self.claiming.refill(queue)
            else:
                self.serve(queue)

    def next_suspect(self) -> None:
        """Begin the next suspect, if one waits for its turn."""
        self.suspects.next()

    def has_left(self, worker: Worker) -> None:
        """Answer a worker that has left functions, if it waits for a claim of one of them."""
        self.pending_grabs.answer(worker)

    def answer(self, queue: FunctionQueue) -> None:
        """Answer the workers that wait for a claim that brought no job."""
        self.pending_grabs.answer_all(queue)

    def look_after(self, queue: FunctionQueue, seconds: float) -> None:
        """Fit a function's window to the jobs that its workers finished in the last ``seconds``, and serve it."""
        if self.claiming.adapt(queue, seconds):
            self._give_back(queue)
        self.serve(queue)

    def serve_all(self) -> None:
        """Serve every queue, after a pause."""
        for queue in self._dispatch.queues.values():
            self.serve(queue)

    def _serve_or_give_back(self, queue: FunctionQueue) -> None:
        self.serve(queue)
        if not queue.workers:
            self._give_back(queue)

    def start(self, held: Held, worker: Worker) -> None:
        """Record the start of a job at a worker."""
        self._deliveries += 1
        queue = held.queue
        held.worker = worker
        held.ability = worker.abilities.get(queue)
        if worker.streams:  # the plain protocol has no token
            held.token = b"%d.%d.%d" % (self._table.term, held.job.attempt + 1, self._deliveries)
        queue.running += 1
        worker.running[held.handle] = held
        if held.timers:
            self._limits.end(held)
        held.begins_by = 0.0
        held.elsewhere = None
        held.started_us = round(self._clock.wall() * 1_000_000)
        if self._hub.active and held.job.id in self._hub.wanted:
            self._hub.publish(held.seen())
        self._limits.started(held)
        options = held.job.options
        if options is not None and options.start_us and held.stored and not held.recorded:
            self._record_start(held)

    def _record_start(self, held: Held) -> None:
        """Record the start of a job at once, for others must see that it is not late."""

        def not_recorded(error: StoreError) -> None:
            del error
            held.recorded = False

        held.recorded = True
        self._commits.put(Assign([held.job]), lambda _: None, not_recorded)

    def prepares(self, held: Held, *, ready: bool) -> None:
        """Let a job that a worker has just started begin when its executor is ``ready``: until then it does not run."""
        if not ready:
            self._limits.prepares(held)
        elif self._limits.prepared(held) and self._hub.active and held.job.id in self._hub.wanted:
            self._hub.publish(held.seen())

    def began_before(self, held: Held, seconds: float) -> None:
        """Count the time of an attempt from so many seconds before now: earlier workers have watched the same work."""
        self._limits.end(held)
        self._limits.started(held, preparation=-seconds)

    def ask(self, worker: Worker) -> Held | bool:
        """Process a plain worker's request for a job.

        Return a job in memory, or whether the answer comes later, through ``assign`` or ``no_job`` of its connection.
        A worker that has gone gets none.
        """
        if worker.gone:
            return False
        held = self.grab(worker)
        if held is not None:
            return held
        return self.pending_grabs.for_the_store(worker) or self.pending_grabs.for_a_moment(worker)

    def grab(self, worker: Worker) -> Held | None:
        """Start a job in memory at a plain worker, and return it; None if there is none."""
        woken_for = None
        if worker.asleep or worker.woken_for is not None:
            woken_for = self._dispatch.answered(worker)
            self._dispatch.rouse(worker)
        held = self._dispatch.grab(worker)
        if held is not None:
            self.start(held, worker)
            queue = held.queue
            if queue.backlog[0] or queue.backlog[1] or queue.backlog[2] or queue.uncounted:
                self.claiming.refill(queue)
        if woken_for is not None and (held is None or held.queue is not woken_for):
            self.serve(woken_for)  # another worker has to run the job for which it was woken
        return held

    def sleep(self, worker: Worker) -> bool:
        """Put a plain worker to sleep; return True if it must be woken at once, because there is a job for it."""
        if worker.gone:
            return False
        woken_for = worker.woken_for
        work = self._dispatch.sleep(worker)
        if woken_for is not None and worker.woken_for is not woken_for:
            self.serve(woken_for)  # another worker has to run the job for which it was woken
        if not work:
            self.refill(worker)
        return work

    def detach(self, held: Held) -> None:
        """Detach a job from its worker, and cancel its timers."""
        if held.timers:
            self._limits.end(held)
        worker = held.worker
        if worker is not None:
            held.worker = None
            held.queue.running -= 1
            held.queue.settled += 1
            worker.ended = True
            del worker.running[held.handle]
        if held.job.suspects:
            self.isolation.left(held)

    # ---- counts of stored jobs ----

    def no_longer_pending(self, queue: FunctionQueue, priority: int) -> None:
        """Uncount a pending job. A job that another node submitted may not have been counted."""
        queue.backlog[priority] -= 1
        if queue.backlog[priority] < 0:
            self._commits.after_answers(queue.clamp_counts)

    def no_longer_away(self, queue: FunctionQueue, number: int = 1) -> None:
        """Uncount jobs that became due, or that another node gave back. They may not have been counted."""
        queue.away -= number
        if queue.away < 0:
            # The operation that counts them may be answered in the same group.
            self._commits.after_answers(queue.clamp_counts)

    def now_pending(self, pending: Mapping[tuple[bytes, int], int], *, were_away: bool) -> None:
        """Count jobs that became pending, by function and priority, and serve their queues."""
        for (function, priority), number in pending.items():
            queue = self._dispatch.tracked(function)
            if queue is not None:
                if were_away:
                    self.no_longer_away(queue, number)
                queue.backlog[priority] += number
                self.serve(queue)

    # ---- time ----

    def serve_at(self, queue: FunctionQueue, time_us: int) -> None:
        """Serve a queue at a monotonic time, or soon after it."""
        at = max(from_us(time_us), self._clock.monotonic() + MIN_DELAY)
        earlier = self._clocked.get(queue)
        if earlier is not None:
            if earlier[0] <= at:
                return
            self._timers.cancel(earlier[1])

        def serve_now() -> None:
            del self._clocked[queue]
            self.serve(queue)

        self._clocked[queue] = at, self._timers.at(at, serve_now)

    def _look_again(self, queue: FunctionQueue, admission: AdmissionQueue[Held]) -> None:
        """Serve a queue again when time lets more of its jobs start."""
        following = admission.next_us()
        if following is not None:
            self.serve_at(queue, following)
