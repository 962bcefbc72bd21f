"""How many jobs of a function, or of one of its keys, may start now. Times are microseconds of the node's monotonic clock."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from mainspring.resources import rules

if TYPE_CHECKING:
    from mainspring.resources.model import Rate

UNBOUNDED = sys.maxsize


class Account(Protocol):
    """The tokens of one pool, as far as this node may use them. ``running`` are the jobs that have started and not ended."""

    def free(self, running: int, now_us: int) -> int:
        """Return how many jobs may start now; ``UNBOUNDED`` where nothing limits them."""

    def room(self, running: int) -> int:
        """Return how many jobs may be brought here to be started soon, ``UNBOUNDED`` where this does not limit them."""

    def consume(self, now_us: int) -> None:
        """A job starts; ``free`` was above 0."""

    def next_us(self, running: int, now_us: int) -> int | None:
        """Return when more may start, where that is only a question of time; otherwise None."""

    def change(self, concurrency: int | None, rate: Rate | None, now_us: int) -> None:
        """Go on under other limits."""

    def is_new(self, now_us: int) -> bool:
        """Return whether it is as if nobody had started anything yet: then it need not be remembered, unless something runs."""


class OpenAccount(Protocol):
    """Opens the account of a pool."""

    def __call__(self, pool: bytes, concurrency: int | None, rate: Rate | None, now_us: int, /) -> Account:
        """Return it, with these limits."""


class OwnAccount:
    """The whole of a pool: this node is the only one. What its bucket held is not kept over a restart: it begins full."""

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
        """Return any number: the gate knows the limits."""
        del running
        return UNBOUNDED

    def consume(self, now_us: int) -> None:
        """Start one."""
        if self._rate is not None:
            _, self._bucket = rules.consume(self._rate, self._bucket, now_us, 1)

    def next_us(self, running: int, now_us: int) -> int | None:
        """Return when the bucket has a token, if that is all that is missing."""
        if self._rate is None or (self._concurrency is not None and running >= self._concurrency):
            return None
        return max(rules.next_us(self._rate, self._bucket), now_us)

    def change(self, concurrency: int | None, rate: Rate | None, now_us: int) -> None:
        """Keep what is in the bucket."""
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
    """Open an account for a node that is alone."""
    del pool
    return OwnAccount(concurrency, rate, now_us)
