"""Admission queues: they choose the next job of a function with limits, a pause or keys.

Higher priorities go first. Within a priority, the keys with a job that can start take turns, one job each, the least recently
served key first. The jobs of one key go in the order of their age (`KeyQueue`). A key without tokens is parked: it costs nothing
until one of its jobs ends, or time refills its bucket.

A job consumes its tokens from accounts of its function and of its key (`Account`) when it leaves the queue for a worker, and
returns them when its end is on disk. Times are microseconds of the node's monotonic clock.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from mainspring.clock import to_us
from mainspring.resources import rules
from mainspring.resources.rules import FUNCTION_POOL, UNLIMITED, pool_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.clock import Clock
    from mainspring.jobs.model import Job
    from mainspring.resources.rules import Limits, Rate

UNBOUNDED = sys.maxsize


class Account(Protocol):
    """The tokens of one pool that this node may use. ``running`` is the number of started jobs that have not ended."""

    def free(self, running: int, now_us: int) -> int:
        """Return how many jobs may start now; ``UNBOUNDED`` if nothing limits them."""

    def room(self, running: int) -> int:
        """Return how many jobs the node may claim to start them soon; ``UNBOUNDED`` if the account does not limit that."""

    def consume(self, now_us: int) -> None:
        """Use the tokens of a job that starts; ``free`` was above 0."""

    def next_us(self, running: int, now_us: int) -> int | None:
        """Return when time alone lets more jobs start; None if it does not."""

    def is_elsewhere(self, now_us: int) -> bool:
        """Return whether another node has all tokens, as far as this one knows: then that node runs the pool's jobs."""

    def change(self, concurrency: int | None, rate: Rate | None, now_us: int) -> None:
        """Apply other limits."""

    def is_new(self, now_us: int) -> bool:
        """Return whether the account is in its initial state: then it need not be kept, unless a job runs."""


class OpenAccount(Protocol):
    """Opens the account of a pool."""

    def __call__(self, pool: bytes, concurrency: int | None, rate: Rate | None, now_us: int, /) -> Account:
        """Return the account, with these limits."""


class OwnAccount:
    """A whole pool, for the only node of a store. The level of its bucket is not stored: it is full after a restart."""

    __slots__ = ("_bucket", "_concurrency", "_rate")

    def __init__(self, concurrency: int | None, rate: Rate | None, now_us: int) -> None:
        self._concurrency = concurrency
        self._rate = rate
        self._bucket = rules.full(rate, now_us) if rate is not None else rules.EMPTY

    def free(self, running: int, now_us: int) -> int:
        """Return how many may start."""
        free = UNBOUNDED if self._concurrency is None else self._concurrency - running
        if free > 0 and self._rate is not None:
            return min(free, rules.tokens(self._rate, self._bucket, now_us))
        return free

    def room(self, running: int) -> int:
        """Return no limit: the admission queue applies the limits."""
        del running
        return UNBOUNDED

    def consume(self, now_us: int) -> None:
        """Use the token of one job."""
        if self._rate is not None:
            _, self._bucket = rules.consume(self._rate, self._bucket, now_us, 1)

    def next_us(self, running: int, now_us: int) -> int | None:
        """Return when the bucket has a token, if the rate is the only obstacle."""
        if self._rate is None or (self._concurrency is not None and running >= self._concurrency):
            return None
        return max(rules.next_us(self._rate, self._bucket), now_us)

    def is_elsewhere(self, now_us: int) -> bool:
        """Return False: there is no other node."""
        del now_us
        return False

    def change(self, concurrency: int | None, rate: Rate | None, now_us: int) -> None:
        """Apply other limits, and keep the level of the bucket."""
        self._concurrency = concurrency
        if rate != self._rate:
            if rate is not None and self._rate is not None:
                self._bucket = rules.converted(self._rate, rate, rules.refilled(self._rate, self._bucket, now_us))
            elif rate is not None:
                self._bucket = rules.full(rate, now_us)
            self._rate = rate

    def is_new(self, now_us: int) -> bool:
        """Return whether the bucket is full."""
        return self._rate is None or rules.tokens(self._rate, self._bucket, now_us) == self._rate.burst


def open_own(pool: bytes, concurrency: int | None, rate: Rate | None, now_us: int) -> Account:
    """Open an account of the only node of a store."""
    del pool
    return OwnAccount(concurrency, rate, now_us)


class Waiting(Protocol):
    """A waiting job."""

    job: Job
    queued: bool
    """False once it was removed: its entry stays in its place, and is skipped."""


W = TypeVar("W", bound=Waiting)


class KeyQueue(Generic[W]):
    """The jobs of one key that are in memory."""

    __slots__ = ("account", "in_flight", "key", "parked", "ready", "running", "size")

    def __init__(self, key: bytes, account: Account | None) -> None:
        self.key = key
        self.account = account
        self.ready: tuple[deque[W], deque[W], deque[W]] = (deque(), deque(), deque())
        self.size = 0
        """The number of waiting jobs, without removed ones."""
        self.in_flight = 0
        """The number of jobs in the commit queue that are leased to this node already."""
        self.running = 0
        """The number of jobs handed to workers whose ends are not on disk."""
        self.parked = False
        """Whether no job can start until tokens come back."""

    def free(self, now_us: int) -> int:
        """Return how many may start."""
        return UNBOUNDED if self.account is None else self.account.free(self.running, now_us)

    def clear(self) -> None:
        """Free the entries of removed jobs."""
        for ready in self.ready:
            waiting = [held for held in ready if held.queued]
            ready.clear()
            ready.extend(waiting)


def merge_by_age(ready: deque[W], new: deque[W]) -> None:
    """Insert jobs that come in order among the waiting jobs by age; ``new`` is empty afterwards.

    The waiting jobs need not be in order: requeued jobs are before the others.
    """
    before: list[W] = []
    if ready and new and ready[-1].job.id > new[0].job.id:
        # The jobs passed here are handed out before the last claimed job, and so before the next claim.
        while new and ready:
            if not ready[0].queued:
                ready.popleft()
            else:
                before.append((ready if ready[0].job.id < new[0].job.id else new).popleft())
    if ready and not new:
        ready.extendleft(reversed(before))
    else:
        ready.extend(before)
        ready.extend(new)


LastKeys = tuple[bytes | None, bytes | None, bytes | None]
"""The last key that a claim visited, by priority."""
MIN_JOBS = 8
"""Jobs of a key, or of a function, that may be in memory in any case, however few can start."""
KEY_QUOTA = 32
"""Jobs of a key without limits that may be in memory: half of the smallest window, so that other keys have places."""
MAX_WAITING = 20_000
"""Jobs of a function that may wait in memory for tokens."""


class AdmissionQueue(Generic[W]):
    """The waiting jobs of one function, by their keys. ``open_account`` opens the accounts of the function and of its keys."""

    def __init__(self, clock: Clock, open_account: OpenAccount) -> None:
        self._clock = clock
        self._open = open_account
        self.limits = UNLIMITED
        self.paused = False
        self._keys_seen = False
        """Whether the queue ever had a job with a key."""
        self.own: Account | None = None
        self.running = 0
        self.key_queues: dict[bytes, KeyQueue[W]] = {}
        self.parked = 0
        """The number of waiting jobs of parked keys."""
        self.short: set[bytes] = set()
        """Parked keys that time alone does not unpark."""
        self.left: int | None = None
        """The number of jobs that the last claim left, all of keys with enough jobs in memory; None: there may be others."""
        self.behind = False
        """Whether the last claim skipped a key with stored jobs that has no longer enough jobs in memory."""
        self._skipped: frozenset[bytes] = frozenset()
        """The keys with stored jobs that the last claim skipped."""
        self._turns: tuple[dict[bytes, KeyQueue[W]], dict[bytes, KeyQueue[W]], dict[bytes, KeyQueue[W]]] = ({}, {}, {})
        """By priority: the keys that are not parked and have jobs of it, in the order of their turns."""
        self._due: list[tuple[int, bytes]] = []
        """Heap of the times at which a parked key may be unparked."""
        self.after: LastKeys = (None, None, None)
        """The last key of the last claim, by priority."""
        self.awaiting: dict[int, W] = {}
        """By id: the jobs that have their tokens, and wait for slots of resources."""
        self.most_awaiting = UNBOUNDED
        """The most of these that are worth a request: fewer while slots are short."""
        self.equipped: dict[int, W] = {}
        """By id: the jobs that have their slots, and wait for a worker; the first one is next."""
        self.returned: list[W] = []
        """Jobs that were taken out of these two, with their slots or requests."""
        self.tried: dict[int, W] = {}
        """By id: the waiting jobs that a worker has had before."""

    def now_us(self) -> int:
        """Return the time on the clock of the accounts."""
        return to_us(self._clock.monotonic())

    # ---- limits ----

    def change(self, limits: Limits, *, paused: bool) -> None:
        """Apply other limits; running jobs continue, and count."""
        now_us = self.now_us()
        if paused or limits.uses != self.limits.uses:
            self._put_back()
        self.paused = paused
        self.limits = limits
        if limits.concurrency is None and limits.rate is None:
            self.own = None
        elif self.own is None:
            self.own = self._open(FUNCTION_POOL, limits.concurrency, limits.rate, now_us)
        else:
            self.own.change(limits.concurrency, limits.rate, now_us)
        for key_queue in self.key_queues.values():
            if key_queue.account is None or not limits.per_key:
                key_queue.account = self._account(key_queue.key, now_us)
            else:
                key_queue.account.change(limits.concurrency_per_key, limits.rate_per_key, now_us)
            self._unpark(key_queue)
        self._due.clear()

    def _account(self, key: bytes, now_us: int) -> Account | None:
        limits = self.limits
        if not limits.per_key:
            return None
        return self._open(pool_of(key), limits.concurrency_per_key, limits.rate_per_key, now_us)

    def count(self, key: bytes) -> None:
        """Count a job that started before the queue existed."""
        self.running += 1
        self._key_queue(key).running += 1

    @property
    def keyed(self) -> bool:
        """Whether claims have to be made by key."""
        return self._keys_seen or self.limits.per_key

    @property
    def limited(self) -> bool:
        """Whether the function has limits or a pause: then the queue must be kept."""
        return self.paused or self.limits != UNLIMITED or bool(self.returned)

    # ---- waiting jobs ----

    def _key_queue(self, key: bytes) -> KeyQueue[W]:
        key_queue = self.key_queues.get(key)
        if key_queue is None:
            self._keys_seen = self._keys_seen or key != b""
            key_queue = self.key_queues[key] = KeyQueue(key, self._account(key, self.now_us()))
        return key_queue

    def push(self, held: W, *, first: bool = False) -> None:
        """Add a waiting job; ``first``: before the others of its key and priority."""
        job = held.job
        if job.attempt or job.suspects:
            self.tried[job.id] = held
        key_queue = self._key_queue(job.key)
        ready = key_queue.ready[job.priority]
        if first:
            ready.appendleft(held)
        else:
            ready.append(held)
        self._count_waiting(key_queue, job.priority, 1)

    def merge(self, claimed: list[W]) -> None:
        """Add claimed jobs among the waiting jobs of their keys and priorities, by age."""
        new: dict[tuple[bytes, int], deque[W]] = {}
        for held in claimed:
            new.setdefault((held.job.key, held.job.priority), deque()).append(held)
            if held.job.attempt or held.job.suspects:
                self.tried[held.job.id] = held
        for (key, priority), jobs in new.items():
            key_queue, number = self._key_queue(key), len(jobs)
            merge_by_age(key_queue.ready[priority], jobs)
            self._count_waiting(key_queue, priority, number)

    def _count_waiting(self, key_queue: KeyQueue[W], priority: int, number: int) -> None:
        key_queue.size += number
        if key_queue.parked:
            self.parked += number
        else:
            self._turns[priority].setdefault(key_queue.key, key_queue)

    def drop(self, held: W) -> None:
        """Count a waiting job as removed; its entry is skipped later."""
        if self._leave(held):
            return
        self.tried.pop(held.job.id, None)
        key_queue = self.key_queues[held.job.key]
        key_queue.size -= 1
        if key_queue.parked:
            self.parked -= 1
        if not key_queue.size or sum(map(len, key_queue.ready)) > 2 * key_queue.size + 100:
            key_queue.clear()
        self._unpark_empty(key_queue)
        self._has_left(key_queue)
        self._forget(key_queue)

    def queued(self) -> Iterator[W]:
        """Return the waiting jobs."""
        yield from [*self.equipped.values(), *self.awaiting.values()]
        for key_queue in list(self.key_queues.values()):
            for ready in key_queue.ready:
                yield from [held for held in ready if held.queued]

    # ---- turns ----

    def pop(self) -> W | None:
        """Remove the next job that may start, and consume its tokens; None if none may start."""
        if self.equipped or self.limits.uses:
            if self.paused or not self.equipped:
                return None
            return self.equipped.pop(next(iter(self.equipped)))
        return self.take()

    def take(self) -> W | None:
        """Do the same for a job that may start once it has its slots of resources, if its function uses some."""
        if self.paused:
            return None
        now_us = self._passed()
        if self.own is not None and self.own.free(self.running, now_us) <= 0:
            return None
        for priority, turns in enumerate(self._turns):
            while turns:
                key, key_queue = next(iter(turns.items()))
                if key_queue.free(now_us) <= 0:
                    self._park(key_queue, now_us)
                    continue
                del turns[key]
                held = self._next(key_queue, priority)
                if held is None:
                    continue
                if key_queue.ready[priority]:
                    turns[key] = key_queue  # the other keys go first
                self._has_left(key_queue)
                self.running += 1
                key_queue.running += 1
                if self.own is not None:
                    self.own.consume(now_us)
                if key_queue.account is not None:
                    key_queue.account.consume(now_us)
                return held
        return None

    def overtakes(self) -> bool:
        """Return whether a waiting job has a higher priority than one that waits for slots."""
        priority = next((priority for priority, turns in enumerate(self._turns) if turns), len(self._turns))
        return any(held.job.priority > priority for held in self.awaiting.values())

    def _next(self, key_queue: KeyQueue[W], priority: int) -> W | None:
        ready = key_queue.ready[priority]
        while ready:
            held = ready.popleft()
            if held.queued:
                key_queue.size -= 1
                if self.tried:
                    self.tried.pop(held.job.id, None)
                return held
        return None

    def startable(self, most: int) -> int:
        """Return about how many jobs could start now if there were workers, at most ``most``; 0 only if none can."""
        if self.paused:
            return 0
        if self.equipped or self.limits.uses:
            return min(len(self.equipped), most)
        now_us = self._passed()
        if self.own is not None:
            most = min(most, self.own.free(self.running, now_us))
        number = 0
        for priority, turns in enumerate(self._turns):
            out: list[KeyQueue[W]] = []
            for key_queue in turns.values():
                if number >= most:
                    break
                ready = key_queue.ready[priority]
                free = key_queue.free(now_us)
                if free > 0 and any(held.queued for held in ready):
                    number += min(len(ready), free)
                else:
                    out.append(key_queue)
            for key_queue in out:
                if key_queue.free(now_us) <= 0:
                    self._park(key_queue, now_us)
                else:
                    del turns[key_queue.key]
        return max(min(number, most), 0)

    def give_back(self, key: bytes) -> None:
        """Return the tokens of a job that has ended. The caller serves the queue."""
        self.running -= 1
        key_queue = self.key_queues[key]
        key_queue.running -= 1
        self._let_go_on(key_queue)
        self._forget(key_queue)

    def _leave(self, held: W) -> bool:
        """Take a job out of those that wait for slots, or have some; return whether it was there."""
        for jobs in (self.awaiting, self.equipped):
            if jobs.get(held.job.id) is held:
                del jobs[held.job.id]
                self.returned.append(held)
                self.give_back(held.job.key)
                return True
        return False

    def _put_back(self) -> None:
        """Let the jobs that wait for slots, or have some, wait in their queues again."""
        for held in reversed([*self.equipped.values(), *self.awaiting.values()]):
            self._leave(held)
            self.push(held, first=True)

    def granted(self, key: bytes | None) -> None:
        """Unpark a key that may have new tokens; None is the function. The caller serves the queue."""
        key_queue = None if key is None else self.key_queues.get(key)
        if key_queue is not None:
            self._let_go_on(key_queue)
            self._forget(key_queue)

    def _let_go_on(self, key_queue: KeyQueue[W]) -> None:
        if key_queue.parked:
            now_us = self.now_us()
            if key_queue.free(now_us) > 0:
                self._unpark(key_queue)
            else:
                self._expect(key_queue, now_us)
                self._unpark_empty(key_queue)

    def next_us(self) -> int | None:
        """Return when time alone may let another waiting job start."""
        waiting = any(self._turns)
        due_us = self._due[0][0] if self._due else None
        if waiting and self.own is not None and not self.paused:
            now_us = self.now_us()
            if self.own.free(self.running, now_us) <= 0:
                return self.own.next_us(self.running, now_us)
        return due_us

    def _passed(self) -> int:
        """Unpark the keys that are due; return the time."""
        now_us = self.now_us()
        due = self._due
        while due and due[0][0] <= now_us:
            key_queue = self.key_queues.get(heapq.heappop(due)[1])
            if key_queue is not None:
                self._unpark(key_queue)
        return now_us

    def _park(self, key_queue: KeyQueue[W], now_us: int) -> None:
        for turns in self._turns:
            turns.pop(key_queue.key, None)
        if not key_queue.parked:
            key_queue.parked = True
            self.parked += key_queue.size
            self._expect(key_queue, now_us)

    def _expect(self, key_queue: KeyQueue[W], now_us: int) -> None:
        """Set the time at which to check a parked key again."""
        assert key_queue.account is not None
        following = key_queue.account.next_us(key_queue.running, now_us)
        if following is None:
            self.short.add(key_queue.key)
        else:
            heapq.heappush(self._due, (following, key_queue.key))

    def _unpark(self, key_queue: KeyQueue[W]) -> None:
        if key_queue.parked:
            key_queue.parked = False
            self.short.discard(key_queue.key)
            self.parked -= key_queue.size
            self._has_left(key_queue)
            for turns, ready in zip(self._turns, key_queue.ready, strict=True):
                if ready:
                    turns[key_queue.key] = key_queue

    def _unpark_empty(self, key_queue: KeyQueue[W]) -> None:
        """Unpark a key without jobs, unless the end of a running job does: claims skip parked keys."""
        if key_queue.parked and not key_queue.size and not key_queue.running:
            self._unpark(key_queue)

    def _has_left(self, key_queue: KeyQueue[W]) -> None:
        if (self.left is not None or self._skipped) and not self._has_enough(key_queue):
            self.left = None
            self.behind = self.behind or key_queue.key in self._skipped

    def _has_enough(self, key_queue: KeyQueue[W]) -> bool:
        return key_queue.parked or key_queue.size + key_queue.in_flight > self.claim_quota() // 2

    def _forget(self, key_queue: KeyQueue[W]) -> None:
        """Forget a key without jobs whose account is in its initial state."""
        if key_queue.size or key_queue.in_flight or key_queue.running:
            return
        if key_queue.account is None or key_queue.account.is_new(self.now_us()):
            self._unpark(key_queue)
            for turns in self._turns:
                turns.pop(key_queue.key, None)
            self.short.discard(key_queue.key)
            del self.key_queues[key_queue.key]

    def tidy(self) -> None:
        """Forget the keys whose buckets are full again, and let the next claim read the store again."""
        self.left = None
        for key_queue in list(self.key_queues.values()):
            self._forget(key_queue)

    # ---- what may come here ----

    def expect(self, key: bytes) -> None:
        """Count a job of a key that is being stored under this node's lease."""
        self._key_queue(key).in_flight += 1

    def arrived(self, key: bytes) -> None:
        """Uncount a job that was stored, or will not be."""
        key_queue = self.key_queues.get(key)
        if key_queue is not None and key_queue.in_flight:
            key_queue.in_flight -= 1
            self._forget(key_queue)

    def claim_quota(self) -> int:
        """Return how many jobs of a key may be in memory: about as many as can start soon."""
        limits = self.limits
        claim_quota = KEY_QUOTA
        if limits.concurrency_per_key is not None:
            claim_quota = min(claim_quota, 2 * limits.concurrency_per_key)
        if limits.rate_per_key is not None:
            claim_quota = min(claim_quota, _in_a_second(limits.rate_per_key))
        return max(claim_quota, MIN_JOBS)

    def admits(self, key: bytes) -> bool:
        """Return whether one more job of a key may come into memory."""
        if self.paused:
            return False
        key_queue = self.key_queues.get(key)
        if key_queue is None:
            return True
        if key_queue.account is not None and key_queue.account.is_elsewhere(self.now_us()):
            return False
        return key_queue.size + key_queue.in_flight < self.claim_quota()

    def room(self, window: int) -> int:
        """Return how many of the jobs of a window can start soon and may be in memory."""
        limits = self.limits
        if limits.concurrency is not None:
            window = min(window, max(2 * limits.concurrency, MIN_JOBS))
        if limits.rate is not None:
            window = min(window, max(_in_a_second(limits.rate), MIN_JOBS))
        if self.own is not None:
            window = min(window, max(self.own.room(self.running), 0))
        return window

    def per_key(self) -> int:
        """Return how many jobs of one key a claim may take: fewer if there are very many keys."""
        return max(min(self.claim_quota(), MAX_WAITING // (4 * max(len(self.key_queues), 1))), 1)

    def is_dry(self, backlog: int) -> bool:
        """Return whether a claim would find none of the stored jobs usable."""
        if self.left is not None:
            if backlog > self.left:
                self.left = None  # there are new jobs
            else:
                self.left = backlog
        return self.left is not None

    def claimed(self, after: LastKeys, skipped: frozenset[bytes]) -> None:
        """Note where a claim ended, and the keys that it skipped because memory had enough of their jobs."""
        self.after = after
        self._skipped = skipped
        self.behind = any(key not in self.key_queues or not self._has_enough(self.key_queues[key]) for key in skipped)

    def enough(self) -> frozenset[bytes]:
        """Return the keys that a claim skips: their jobs cannot start, or enough of them are in memory."""
        return frozenset(key for key, key_queue in self.key_queues.items() if self._has_enough(key_queue))


def _in_a_second(rate: Rate) -> int:
    """Return how many jobs a rate allows within a second, the burst included, rounded up."""
    return rate.burst + -(-rate.number * 1_000_000 // rate.per_us)
