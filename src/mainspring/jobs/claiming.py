"""Claims of stored jobs: jobs come into a node's memory as they are stored, or are claimed from the store later.

A node has about as many jobs of a function as its workers finish in half a second. The others stay in the store, in order, and
are claimed as places become free. If nodes share the store, a node holds no more jobs than it can start soon: other nodes may
have free workers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from mainspring.clock import to_us
from mainspring.jobs import rules
from mainspring.jobs.admission import MAX_WAITING
from mainspring.jobs.store import Claim, ClaimByKey, ClaimRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.errors import StoreError
    from mainspring.jobs.admission import AdmissionQueue
    from mainspring.jobs.held import FunctionQueue, Held
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import ClaimedByKey
    from mainspring.jobs.table import Context

MIN_WINDOW = 64
MAX_WINDOW = 20_000
WINDOW_SECONDS = 0.5
SHORTEST_MEASURED = 0.01
"""The shortest time in seconds between two claims for the speed of workers: a few jobs may end at once."""
HINT_RETRY_DELAY = 0.01
"""Seconds after which a claim is repeated that did not find the jobs that another node announced. A claim skips locked rows, for
example those of jobs that a client has just begun to wait for."""
STALLED_AFTER = 1.0
"""Seconds after which a node of a fleet gives back jobs that wait for its busy workers: other nodes may have free ones."""
WINDOW_BYTES = 64 * 2**20
"""Approximate bytes of payloads in the window of one function."""


class ClaimQuota(NamedTuple):
    """The share of a function's stored jobs that a node of a fleet may claim."""

    limit: int | None = None
    """The most jobs; None: as many as the node has room for."""
    slots: frozenset[int] | None = None
    """The hash slots; None: all."""
    overdue: float = 0.0
    """Seconds of waiting after which any node may claim a job, whatever slot and limit; infinite: the node claims none at all."""


NO_QUOTA = ClaimQuota()


class Claiming:
    """Claims stored jobs within the bounds of the workers, the admission queues and the other nodes.

    ``is_full`` returns whether no more jobs of a function may come into memory. ``came`` is called with claimed jobs, after they
    are counted; ``failed`` is called if the store could not answer. ``ask_for_slots`` requests the slots of resources that
    waiting jobs need. ``share`` and ``ask_for_tokens`` are given if the store is shared: ``share`` returns this node's present
    quota of a function's stored jobs, and ``ask_for_tokens`` requests the tokens that its waiting jobs need. ``begin`` is called,
    instead of a claim, if jobs of a function wait that stand for runs.
    """

    def __init__(
        self,
        context: Context,
        *,
        begin: Callable[[FunctionQueue], None],
        is_full: Callable[[FunctionQueue], bool],
        came: Callable[[FunctionQueue, list[Job]], None],
        failed: Callable[[FunctionQueue], None],
        shared: bool = False,
        ask_for_slots: Callable[[FunctionQueue, AdmissionQueue[Held]], None],
        share: Callable[[FunctionQueue], ClaimQuota] | None = None,
        ask_for_tokens: Callable[[FunctionQueue], None] | None = None,
    ) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._timers, self._clock = context.timers, context.clock
        self._begin = begin
        self._is_full = is_full
        self._came = came
        self._failed = failed
        self.shared = shared
        """Whether other nodes submit and claim jobs as well: then the counted backlog is a hint."""
        self._share = share
        self._ask_for_slots = ask_for_slots
        self._ask_for_tokens = ask_for_tokens

    # ---- how many may be here ----

    def admits(self, queue: FunctionQueue, job: Job) -> bool:
        """Return whether a new, due job can be leased as it is stored, because a worker of this node can start it soon.

        The result is False while stored jobs of equal or higher priority wait: they came first.
        """
        if not queue.workers or self._dispatch.paused or not queue.counted or queue.is_root:
            return False
        if self._share is not None:
            share = self._share(queue)
            if share is not NO_QUOTA and not self._may_take(share, queue, job):
                return False
        priority = job.priority
        backlog = queue.backlog
        if backlog[0] or (priority and (backlog[1] or queue.uncounted)) or (priority == 2 and backlog[2]):
            return False
        if (queue.admission is not None or job.key) and not self._lets_in(queue, job.key):
            return False
        have = queue.size - queue.foreground + queue.inflight
        if queue.admission is not None:
            have -= queue.admission.parked
        if have >= self.room(queue):
            return priority == 0 and not self.shared and have < 2 * MAX_WINDOW
        return True

    def _lets_in(self, queue: FunctionQueue, key: bytes) -> bool:
        """Return whether a job of a key could start soon."""
        admission = queue.admission if queue.admission is not None else self._table.admission_of(queue)
        return admission.admits(key) and queue.size + queue.inflight < MAX_WAITING

    @staticmethod
    def _may_take(share: ClaimQuota, queue: FunctionQueue, job: Job) -> bool:
        """Return whether a new job is in this node's share."""
        if share.limit is not None and queue.size + queue.inflight >= share.limit:
            return False
        return share.slots is None or rules.slot(job) in share.slots or rules.moves_freely(job)

    def room(self, queue: FunctionQueue) -> int:
        """Return how many waiting jobs of a function may be in memory.

        On a shared store these are only jobs that can start soon: other nodes may have free workers.
        """
        window = (
            queue.window + queue.places() if self.shared else queue.window or max(MIN_WINDOW, 2 * len(queue.workers))
        )
        if queue.mean_size > 1024:
            window = min(window, max(len(queue.workers), int(WINDOW_BYTES / queue.mean_size), 1))
        return window if queue.admission is None else queue.admission.room(window)

    def adapt(self, queue: FunctionQueue, seconds: float) -> bool:
        """Fit a function's window to the jobs that its workers finished in the last ``seconds``.

        Return whether the waiting jobs have to be given back: other nodes may have free workers.
        """
        rate = queue.settled / seconds
        queue.ended += queue.settled
        queue.settled = 0
        wanted = int(rate * WINDOW_SECONDS)
        # Grow at once, shrink slowly: a pause of the clients does not mean that the workers are slow.
        wanted = max(wanted, queue.window * 3 // 4)
        if not self.shared:
            wanted = max(wanted, MIN_WINDOW, 2 * len(queue.workers))
        queue.window = min(wanted, MAX_WINDOW)
        if self.shared:
            waits = queue.size and not rate and not (queue.places() and queue.startable(1))
            queue.stalled = queue.stalled + seconds if waits else 0.0
            if queue.stalled >= STALLED_AFTER:
                queue.stalled, queue.window = 0.0, 0
                return True
        return False

    def _grow(self, queue: FunctionQueue) -> None:
        """Widen a window as the jobs allow that have ended since the last claim: a backlog does not wait for `adapt`."""
        now, ended = self._clock.monotonic(), queue.ended + queue.settled
        seconds = now - queue.measured_at
        if not seconds:
            return
        wanted = int((ended - queue.measured) / max(seconds, SHORTEST_MEASURED) * WINDOW_SECONDS)
        if wanted > max(queue.window, MIN_WINDOW):
            queue.window = min(wanted, MAX_WINDOW)
        queue.measured_at, queue.measured = now, ended

    # ---- claims ----

    def begin_term(self, queues: Iterable[FunctionQueue]) -> None:
        """Forget the claims of the last term, under which no job may be handed out any more, and claim again from now on."""
        for queue in queues:
            if queue.claiming and queue.counted:
                queue.claiming = False
                self._failed(queue)

    def refill(self, queue: FunctionQueue) -> None:
        """Claim more of a function's stored jobs, if there are any, workers are connected, and half of the window is free.

        Jobs that stand for runs are begun instead, with or without workers.
        """
        if queue.admission is not None and not queue.is_root:
            if self._ask_for_tokens is not None:
                self._ask_for_tokens(queue)
            if queue.admission.limits.uses or queue.admission.returned:
                self._ask_for_slots(queue, queue.admission)
        backlog = queue.backlog
        counted = backlog[0] or backlog[1] or backlog[2] or queue.uncounted
        if not counted and (queue.admission is None or not queue.admission.behind):
            return
        if queue.claiming or not queue.counted or self._dispatch.paused:
            return
        if queue.is_root:
            self._begin(queue)
            return
        if not queue.workers or self._is_full(queue):
            return
        if queue.admission is not None and queue.admission.keyed:
            self._refill_by_key(queue, queue.admission)
            return
        window = self.room(queue)
        if queue.admission is not None and queue.admission.paused:
            return
        # Foreground jobs take no places: a steady stream of them would starve the stored jobs. (Running ones are subtracted
        # too, which gives a few places more.)
        have = max(queue.size - queue.foreground, 0) + queue.inflight
        limit = window - have
        if have * 2 > window:
            # Jobs may wait here for the slots that the work of a lost one has.
            returning = queue.returning if queue.returning and queue.runs_elsewhere else 0
            if backlog[0] or returning:
                limit = min(backlog[0], window) + returning  # high priority does not wait for a place
            elif queue.size or not any(worker.grabbing for worker in queue.takers):
                return
            else:
                # A worker waits for an answer: NO_JOB is sent only after the claim.
                limit = 1
        if limit <= 0:
            return
        wants = [ClaimRequest(queue.name, limit)]
        if self.shared:
            wants = self._shared_wants(queue, limit)
            if not wants:
                return
            limit = sum(want.limit for want in wants)
        queue.claiming = True
        queue.returning = 0
        term, backlog_before = self._table.term, tuple(backlog)
        self._commits.put(
            Claim(term, wants),
            lambda outcome: self._claimed(
                queue, term, [job for jobs in outcome for job in jobs], limit, backlog_before
            ),
            lambda error: self._not_claimed(queue, term, error),
        )

    def hint(self, queue: FunctionQueue) -> None:
        """Claim jobs of a function that another node announced."""
        queue.uncounted = True
        self.refill(queue)

    def _shared_wants(self, queue: FunctionQueue, limit: int) -> list[ClaimRequest]:
        """Return the claim requests for the part of ``limit`` that this node may claim."""
        share = NO_QUOTA if self._share is None else self._share(queue)
        if share.overdue == math.inf:
            return []
        overdue_us = to_us(self._clock.wall() - share.overdue)
        within = limit if share.limit is None else min(limit, share.limit)
        wants = [ClaimRequest(queue.name, within, share.slots, overdue_us)] if within else []
        if within < limit:
            wants.append(ClaimRequest(queue.name, limit - within, frozenset(), overdue_us))  # only overdue jobs
        return wants

    def _refill_by_key(self, queue: FunctionQueue, admission: AdmissionQueue[Held]) -> None:
        """Claim more jobs in rotation over the keys, so that a key with very many jobs does not starve the others."""
        window = self.room(queue)
        waiting = max(queue.size - queue.foreground, 0) + queue.inflight
        have = max(waiting - admission.parked, 0)
        if admission.paused or admission.is_dry(queue.claimable()) or have * 2 > window or waiting >= MAX_WAITING:
            return
        want = ClaimRequest(queue.name, window - have)
        if self.shared:
            share = NO_QUOTA if self._share is None else self._share(queue)
            if share.overdue == math.inf:
                return
            limit = want.limit if share.limit is None else min(want.limit, max(share.limit, 0))
            want = ClaimRequest(queue.name, limit, share.slots, to_us(self._clock.wall() - share.overdue))
        if want.limit <= 0:
            return
        queue.claiming = True
        term, backlog_before = self._table.term, tuple(queue.backlog)
        concurrency = admission.limits.concurrency_per_key if self.shared else None
        self._commits.put(
            ClaimByKey(term, want, admission.per_key(), admission.after, admission.enough(), concurrency),
            lambda outcome: self._claimed_by_key(queue, term, outcome, backlog_before),
            lambda error: self._not_claimed(queue, term, error),
        )

    # ---- claimed jobs ----

    def _claimed_by_key(
        self, queue: FunctionQueue, term: int, outcome: ClaimedByKey, backlog_before: tuple[int, ...]
    ) -> None:
        admission = self._table.admission_of(queue)
        admission.claimed(outcome.after, outcome.skipped)
        # The remaining jobs are of keys with enough jobs here: they are claimed when a key needs more, or new jobs come. On a
        # shared store other nodes may hold the tokens of a key: they run its jobs, or return the tokens with a hint.
        more = outcome.more and bool(outcome.jobs)
        if not more and not admission.behind:
            admission.left = 0 if self.shared else sum(queue.backlog) - len(outcome.jobs)
        self._claimed(queue, term, outcome.jobs, len(outcome.jobs) if more else -1, backlog_before)

    def _claimed(
        self, queue: FunctionQueue, term: int, jobs: list[Job], limit: int, backlog_before: tuple[int, ...]
    ) -> None:
        """Count the claimed jobs, and pass them on; ``term`` and ``backlog_before`` are those when the claim was sent."""
        if term != self._table.term:
            self._end_of_last_term(queue)  # the node that ended the term gives the jobs back
            return
        queue.claiming = False
        self._grow(queue)
        size = 0
        counted_since = [max(now - then, 0) for now, then in zip(queue.backlog, backlog_before, strict=True)]
        queue.leased += len(jobs)
        for job in jobs:
            queue.backlog[job.priority] -= 1
            size += len(job.payload)
        if self.shared:
            # Other nodes submit too: jobs that were not counted are not subtracted.
            queue.backlog[:] = [max(number, 0) for number in queue.backlog]
            if len(jobs) != limit:
                # Other nodes claim too. Fewer jobs came than requested: none are left for this node until the next reading of the
                # backlog or a hint. Jobs that were counted during the claim may have come too late for it.
                queue.backlog[:] = map(min, queue.backlog, counted_since)
                queue.uncounted = False
            if queue.hinted and jobs:
                queue.uncounted = True
            elif queue.hinted:
                self._timers.at(self._clock.monotonic() + HINT_RETRY_DELAY, lambda: self.hint(queue))
            queue.hinted = False
        if jobs:
            queue.mean_size += (size / len(jobs) - queue.mean_size) / 4
        self._came(queue, jobs)

    def _not_claimed(self, queue: FunctionQueue, term: int, error: StoreError) -> None:
        del error  # every operation with a waiting client reports it to the service
        if term != self._table.term:
            self._end_of_last_term(queue)
            return
        queue.claiming = False
        self._failed(queue)

    def _end_of_last_term(self, queue: FunctionQueue) -> None:
        """Process the end of a claim whose term has ended since: after the begin of the next, another one may be under way."""
        if not self._table.term:
            queue.claiming = False
            self._failed(queue)
