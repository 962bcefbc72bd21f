"""Which waiting job of a function may start next, where the function has limits or a pause, or its jobs have keys.

Higher priorities go first. Within one, the keys that have a job which can start take turns, one job each, whoever was served
longest ago first; a key's own jobs go in the order of their age. A key whose tokens are used up is parked: it costs nothing until
one of its jobs has ended, or time has filled its bucket.

A job takes its tokens as it leaves the gate for a worker, and gives them back when its end is on disk.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Generic

from mainspring.clock import to_us
from mainspring.jobs.key_queue import KeyQueue, W, merge_by_age
from mainspring.resources.model import FUNCTION_POOL, UNLIMITED, pool_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mainspring.clock import Clock
    from mainspring.jobs.accounts import Account, OpenAccount
    from mainspring.resources.model import Limits, Rate

FEWEST = 8
"""So many jobs of a key, or of a function, may be here in any case, however few can start."""
SHARE_OF_A_KEY = 32
"""So many jobs of a key may be here where nothing limits it: half of the smallest window, so that others find places."""
MOST = 20_000
"""So many jobs of a function may wait here for tokens."""


class AdmissionQueue(Generic[W]):
    """The waiting jobs of one function, by their keys. ``open_account`` makes the accounts of the function and of its keys."""

    def __init__(self, clock: Clock, open_account: OpenAccount) -> None:
        self._clock = clock
        self._open = open_account
        self.limits = UNLIMITED
        self.paused = False
        self._keys_seen = False
        """Whether a job with a key was ever here."""
        self.own: Account | None = None
        self.running = 0
        self.lines: dict[bytes, KeyQueue[W]] = {}
        self.parked = 0
        """How many of the waiting jobs are of parked keys."""
        self.short: set[bytes] = set()
        """Parked keys that time alone does not let go on."""
        self.left: int | None = None
        """So many stored jobs were left by the last claim, all of keys that have enough here; None: there may be others."""
        self._turns: tuple[dict[bytes, KeyQueue[W]], dict[bytes, KeyQueue[W]], dict[bytes, KeyQueue[W]]] = ({}, {}, {})
        """By priority: the keys that are not parked and have jobs of it, whose turn it is first."""
        self._due: list[tuple[int, bytes]] = []
        """Heap of when time alone may let a parked key go on."""
        self.after: tuple[bytes | None, bytes | None, bytes | None] = (None, None, None)
        """With which key the last claim ended, by priority."""

    def now_us(self) -> int:
        """Return the time that accounts count by."""
        return to_us(self._clock.monotonic())

    # ---- limits ----

    def change(self, limits: Limits, *, paused: bool) -> None:
        """Go on under other limits; what runs goes on running, and counts."""
        now_us = self.now_us()
        self.paused = paused
        self.limits = limits
        if limits.concurrency is None and limits.rate is None:
            self.own = None
        elif self.own is None:
            self.own = self._open(FUNCTION_POOL, limits.concurrency, limits.rate, now_us)
        else:
            self.own.change(limits.concurrency, limits.rate, now_us)
        for line in self.lines.values():
            if line.account is None or not limits.per_key:
                line.account = self._account(line.key, now_us)
            else:
                line.account.change(limits.concurrency_per_key, limits.rate_per_key, now_us)
            self._unpark(line)
        self._due.clear()

    def _account(self, key: bytes, now_us: int) -> Account | None:
        limits = self.limits
        if not limits.per_key:
            return None
        return self._open(pool_of(key), limits.concurrency_per_key, limits.rate_per_key, now_us)

    def count(self, key: bytes) -> None:
        """Count a job that has started before there was a gate."""
        self.running += 1
        self._line(key).running += 1

    @property
    def keyed(self) -> bool:
        """Whether jobs are to be claimed by key."""
        return self._keys_seen or self.limits.per_key

    @property
    def limited(self) -> bool:
        """Whether anything was said about the function: the gate is not to be forgotten."""
        return self.paused or self.limits != UNLIMITED

    # ---- waiting jobs ----

    def _line(self, key: bytes) -> KeyQueue[W]:
        line = self.lines.get(key)
        if line is None:
            self._keys_seen = self._keys_seen or key != b""
            line = self.lines[key] = KeyQueue(key, self._account(key, self.now_us()))
        return line

    def push(self, held: W, *, first: bool = False) -> None:
        """A job waits; ``first``: before the others of its key and priority."""
        job = held.job
        line = self._line(job.key)
        ready = line.ready[job.priority]
        if first:
            ready.appendleft(held)
        else:
            ready.append(held)
        self._count_waiting(line, job.priority, 1)

    def merge(self, claimed: list[W]) -> None:
        """Jobs of the store wait, those of each key and priority in their places among the others, in the order of their age."""
        new: dict[tuple[bytes, int], deque[W]] = {}
        for held in claimed:
            new.setdefault((held.job.key, held.job.priority), deque()).append(held)
        for (key, priority), jobs in new.items():
            line, number = self._line(key), len(jobs)
            merge_by_age(line.ready[priority], jobs)
            self._count_waiting(line, priority, number)

    def _count_waiting(self, line: KeyQueue[W], priority: int, number: int) -> None:
        line.size += number
        if line.parked:
            self.parked += number
        else:
            self._turns[priority].setdefault(line.key, line)

    def drop(self, held: W) -> None:
        """A waiting job was taken out: it is passed over where it is met."""
        line = self.lines[held.job.key]
        line.size -= 1
        if line.parked:
            self.parked -= 1
        if not line.size or sum(map(len, line.ready)) > 2 * line.size + 100:
            line.clear()
        self._has_left(line)
        self._forget(line)

    def queued(self) -> Iterator[W]:
        """Return the jobs that wait."""
        for line in list(self.lines.values()):
            for ready in line.ready:
                yield from [held for held in ready if held.queued]

    # ---- turns ----

    def pop(self) -> W | None:
        """Take the job that may start next, with its tokens; None where none may."""
        if self.paused:
            return None
        now_us = self._passed()
        if self.own is not None and self.own.free(self.running, now_us) <= 0:
            return None
        for priority, turns in enumerate(self._turns):
            while turns:
                key, line = next(iter(turns.items()))
                if line.free(now_us) <= 0:
                    self._park(line, now_us)
                    continue
                del turns[key]
                held = self._next(line, priority)
                if held is None:
                    continue
                if line.ready[priority]:
                    turns[key] = line  # the others have their turns first
                self._has_left(line)
                self.running += 1
                line.running += 1
                if self.own is not None:
                    self.own.take(now_us)
                if line.account is not None:
                    line.account.take(now_us)
                return held
        return None

    @staticmethod
    def _next(line: KeyQueue[W], priority: int) -> W | None:
        ready = line.ready[priority]
        while ready:
            held = ready.popleft()
            if held.queued:
                line.size -= 1
                return held
        return None

    def startable(self, most: int) -> int:
        """Return how many jobs could start now, if there were workers: exactly whether any can, and not above ``most``."""
        if self.paused:
            return 0
        now_us = self._passed()
        if self.own is not None:
            most = min(most, self.own.free(self.running, now_us))
        number = 0
        for priority, turns in enumerate(self._turns):
            out: list[KeyQueue[W]] = []
            for line in turns.values():
                if number >= most:
                    break
                ready = line.ready[priority]
                free = line.free(now_us)
                if free > 0 and any(held.queued for held in ready):
                    number += min(len(ready), free)
                else:
                    out.append(line)
            for line in out:
                if line.free(now_us) <= 0:
                    self._park(line, now_us)
                else:
                    del turns[line.key]
        return max(min(number, most), 0)

    def give_back(self, key: bytes) -> None:
        """A job that had left for a worker has ended; the queue is to be served."""
        self.running -= 1
        line = self.lines[key]
        line.running -= 1
        self._let_go_on(line)
        self._forget(line)

    def granted(self, key: bytes | None) -> None:
        """The function, or one of its keys, may have tokens that it had not; the queue is to be served."""
        line = None if key is None else self.lines.get(key)
        if line is not None:
            self._let_go_on(line)
            self._forget(line)

    def _let_go_on(self, line: KeyQueue[W]) -> None:
        if line.parked:
            now_us = self.now_us()
            if line.free(now_us) > 0:
                self._unpark(line)
            else:
                self._expect(line, now_us)

    def next_us(self) -> int | None:
        """Return when time alone may let a waiting job start that cannot now."""
        waiting = any(self._turns)
        due_us = self._due[0][0] if self._due else None
        if waiting and self.own is not None and not self.paused:
            now_us = self.now_us()
            if self.own.free(self.running, now_us) <= 0:
                return self.own.next_us(self.running, now_us)
        return due_us

    def _passed(self) -> int:
        """Let go on what time has let go on; returns the time."""
        now_us = self.now_us()
        due = self._due
        while due and due[0][0] <= now_us:
            line = self.lines.get(heapq.heappop(due)[1])
            if line is not None:
                self._unpark(line)
        return now_us

    def _park(self, line: KeyQueue[W], now_us: int) -> None:
        for turns in self._turns:
            turns.pop(line.key, None)
        if not line.parked:
            line.parked = True
            self.parked += line.size
            self._expect(line, now_us)

    def _expect(self, line: KeyQueue[W], now_us: int) -> None:
        """Look at a parked key again when time may have let it go on."""
        assert line.account is not None
        following = line.account.next_us(line.running, now_us)
        if following is None:
            self.short.add(line.key)
        else:
            heapq.heappush(self._due, (following, line.key))

    def _unpark(self, line: KeyQueue[W]) -> None:
        if line.parked:
            line.parked = False
            self.short.discard(line.key)
            self.parked -= line.size
            self._has_left(line)
            for turns, ready in zip(self._turns, line.ready, strict=True):
                if ready:
                    turns[line.key] = line

    def _has_left(self, line: KeyQueue[W]) -> None:
        if self.left is not None and not self._has_enough(line):
            self.left = None

    def _has_enough(self, line: KeyQueue[W]) -> bool:
        return line.parked or line.size + line.in_flight > self.claim_quota() // 2

    def _forget(self, line: KeyQueue[W]) -> None:
        """Forget a key that nothing is known of but what is known of any other."""
        if line.size or line.in_flight or line.running:
            return
        if line.account is None or line.account.is_new(self.now_us()):
            self._unpark(line)
            for turns in self._turns:
                turns.pop(line.key, None)
            self.short.discard(line.key)
            del self.lines[line.key]

    def tidy(self) -> None:
        """Forget the keys whose buckets have filled up since, and look at the store again."""
        self.left = None
        for line in list(self.lines.values()):
            self._forget(line)

    # ---- what may come here ----

    def expect(self, key: bytes) -> None:
        """A job is on its way to the store that is leased to this node already."""
        self._line(key).in_flight += 1

    def arrived(self, key: bytes) -> None:
        """It is there, or will not be."""
        line = self.lines.get(key)
        if line is not None and line.in_flight:
            line.in_flight -= 1
            self._forget(line)

    def claim_quota(self) -> int:
        """Return how many jobs of a key may be here: about as many as can start soon."""
        limits = self.limits
        claim_quota = SHARE_OF_A_KEY
        if limits.concurrency_per_key is not None:
            claim_quota = min(claim_quota, 2 * limits.concurrency_per_key)
        if limits.rate_per_key is not None:
            claim_quota = min(claim_quota, _in_a_second(limits.rate_per_key))
        return max(claim_quota, FEWEST)

    def admits(self, key: bytes) -> bool:
        """Return whether one more job of a key may come here."""
        if self.paused:
            return False
        line = self.lines.get(key)
        return line is None or line.size + line.in_flight < self.claim_quota()

    def room(self, window: int) -> int:
        """Return how many jobs that can start soon may be here, of those that a window has room for."""
        limits = self.limits
        if limits.concurrency is not None:
            window = min(window, max(2 * limits.concurrency, FEWEST))
        if limits.rate is not None:
            window = min(window, max(_in_a_second(limits.rate), FEWEST))
        if self.own is not None:
            window = min(window, max(self.own.room(self.running), 0))
        return window

    def per_key(self) -> int:
        """Return how many jobs of one key a claim may take: fewer where there are very many keys."""
        return max(min(self.claim_quota(), MOST // (4 * max(len(self.lines), 1))), 1)

    def is_dry(self, backlog: int) -> bool:
        """Return whether a claim of what waits in the store would find nothing."""
        if self.left is not None:
            if backlog > self.left:
                self.left = None  # there is something new
            else:
                self.left = backlog
        return self.left is not None

    def enough(self) -> frozenset[bytes]:
        """Return the keys of which a claim is to take nothing: they cannot start, or have jobs enough here."""
        return frozenset(key for key, line in self.lines.items() if self._has_enough(line))


def _in_a_second(rate: Rate) -> int:
    """Return how many jobs a rate lets start within a second, the burst included, rounded up."""
    return rate.burst + -(-rate.number * 1_000_000 // rate.per_us)
