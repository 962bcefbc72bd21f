"""Accounts of the tokens that jobs of a function or key need to start. Times are microseconds of the node's monotonic clock."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from mainspring.resources import rules

if TYPE_CHECKING:
    from mainspring.resources.model import Rate

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
