"""The limits of the open runs of a workflow, and the waiting jobs that get their runs by them, inside one transaction.

A *place* is an open run. The runs of a chain that continue as new have one place together: that of their root job. No place is
stored. The store counts the open runs, so that no end of a run, whatever its cause, leaves its place taken.

| limit | counts |
|---|---|
| ``concurrency`` | open runs of the workflow, in all versions |
| ``concurrency_per_key`` | open runs whose root jobs have one key |
| ``rate``, ``rate_per_key`` | begins of runs, by a token bucket in the store: a restart does not fill it |

A new job of a workflow with limits is stored as PENDING, whatever is free. Then the transaction *fills* the places: it begins the
first waiting jobs, in the order of a claim, as many as there are places for. So no start overtakes another one of its key.
One transaction at a time fills the places of a workflow (`RunTables.hold_places`). A transaction that does not get the right to
leaves its jobs waiting, and its node asks again: the next one that fills the places begins them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.jobs.run_places import Filled, limits_runs
from mainspring.resources import rules
from mainspring.resources.rules import FUNCTION_POOL, Bucket, pool_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mainspring.resources.rules import FunctionLimits, Limits, Rate

PART_KEY: Final = b"\xffpart"
"""The key of the parts of maps, which are no key of a user: it is no UTF-8. A run that runs a map would wait for itself if its
parts, which are runs of the same workflow, needed places."""
KEYS_AT_ONCE: Final = 250
"""Keys whose places one transaction fills."""


class StoredBucket(NamedTuple):
    """A bucket with the rate at which it was filled last."""

    rate: Rate
    bucket: Bucket


class Candidate(NamedTuple):
    """A waiting job that may be next. Candidates compare in the order of a claim."""

    priority: int
    place: int
    """Its place in the line of its priority: in most stores its id."""
    id: int
    key: bytes


NOTHING: Final = Filled()


def run_limits(row: FunctionLimits | None, now_us: int) -> Limits | None:
    """Return the limits of the open runs of a workflow; None if it has none."""
    if row is None:
        return None
    limits = rules.effective(row, now_us)
    return limits if limits_runs(limits) else None


def is_paused(row: FunctionLimits | None, now_us: int) -> bool:
    """Return whether a workflow is paused, so that none of its runs begins."""
    return row is not None and rules.without_ended_pause(row, now_us).paused


class Pool:
    """The places and the rate of a workflow, or of one of its keys, in one transaction."""

    __slots__ = ("_bucket", "_concurrency", "_now_us", "_open", "_rate")

    def __init__(
        self, concurrency: int | None, rate: Rate | None, opened: int, stored: StoredBucket | None, now_us: int
    ) -> None:
        """``opened`` is the number of open runs, ``stored`` the bucket; None is a full one."""
        self._concurrency, self._rate, self._open = concurrency, rate, opened
        # The clock of another node, or this one before it was set back, may have been ahead: no time counts twice.
        self._now_us = now_us if stored is None else max(now_us, stored.bucket.updated_us)
        self._bucket = Bucket(0, 0)
        if rate is not None:
            self._bucket = rules.full(rate, self._now_us) if stored is None else _as_of(rate, stored)

    def free(self, most: int) -> int:
        """Return how many runs may begin now, at most ``most``."""
        if self._concurrency is not None:
            most = min(most, self._concurrency - self._open)
        if self._rate is not None:
            most = min(most, rules.tokens(self._rate, self._bucket, self._now_us))
        return max(most, 0)

    def take(self, number: int) -> StoredBucket | None:
        """Count runs that begin; return the bucket to store, if there is a rate."""
        self._open += number
        if self._rate is None or not number:
            return None
        _, self._bucket = rules.consume(self._rate, self._bucket, self._now_us, number)
        return StoredBucket(self._rate, self._bucket)

    def next_us(self) -> int:
        """Return when the rate lets another run begin for which there is a place; 0 if there is none, or it may begin now."""
        if self._rate is None or (self._concurrency is not None and self._open >= self._concurrency):
            return 0
        if rules.tokens(self._rate, self._bucket, self._now_us):
            return 0
        return rules.next_us(self._rate, rules.refilled(self._rate, self._bucket, self._now_us))


def _as_of(rate: Rate, stored: StoredBucket) -> Bucket:
    return stored.bucket if stored.rate == rate else rules.converted(stored.rate, rate, stored.bucket)


class Pools:
    """The pools of a workflow and of some of its keys. ``opened`` has the open runs of each key."""

    def __init__(
        self,
        limits: Limits,
        opened: int,
        opened_of: Mapping[bytes, int],
        buckets: Mapping[bytes, StoredBucket],
        now_us: int,
    ) -> None:
        self._whole = Pool(limits.concurrency, limits.rate, opened, buckets.get(FUNCTION_POOL), now_us)
        self._limits, self._opened_of, self._buckets, self._now_us = limits, opened_of, buckets, now_us
        self._of: dict[bytes, Pool] = {}
        self.changed: dict[bytes, StoredBucket] = {}
        """The buckets to store, by their pools."""

    def _pool(self, key: bytes) -> Pool:
        pool = self._of.get(key)
        if pool is None:
            limits = self._limits
            stored, opened = self._buckets.get(pool_of(key)), self._opened_of.get(key, 0)
            pool = Pool(limits.concurrency_per_key, limits.rate_per_key, opened, stored, self._now_us)
            self._of[key] = pool
        return pool

    def free(self, most: int) -> int:
        """Return how many runs of the workflow may begin, whatever their keys."""
        return self._whole.free(most)

    def free_of(self, keys: Collection[bytes], most: int) -> dict[bytes, int]:
        """Return how many runs of each key may begin, for the keys for which any may."""
        most = self.free(most)
        return {key: number for key in keys if (number := self._pool(key).free(most))}

    def take(self, number: int) -> None:
        """Count runs that begin, whatever their keys."""
        if (bucket := self._whole.take(number)) is not None:
            self.changed[FUNCTION_POOL] = bucket

    def choose(self, candidates: Sequence[Candidate], most: int) -> list[Candidate]:
        """Return those that begin, in the order of a claim, and count them."""
        chosen: list[Candidate] = []
        for one in sorted(candidates):
            if len(chosen) == most or not self._whole.free(1):
                break
            pool = self._pool(one.key)
            if not pool.free(1):
                continue
            chosen.append(one)
            self.take(1)
            if (bucket := pool.take(1)) is not None:
                self.changed[pool_of(one.key)] = bucket
        return chosen

    def next_us(self, keys: Collection[bytes]) -> int:
        """Return when a rate lets the next run begin; 0 if only the end of a run does, or one may begin now."""
        whole_us = self._whole.next_us()
        if not self._whole.free(1) and not whole_us:
            return 0  # the workflow has no place
        times = [at_us for key in keys if (at_us := self._pool(key).next_us())]
        return max(whole_us, min(times)) if times else whole_us
