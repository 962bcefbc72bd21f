"""Series: what happened to the jobs of a function in each of the last 60 minutes and 48 half hours, as one node counted it.

Stores keep them as far as their engines do (``storage.engine.Engine.series``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mainspring.sizes import CANNOT_READ
from mainspring.storage.engine import Operation, PageQuery, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MINUTE: Final = 60
HALF_HOUR: Final = 1800
KEPT: Final = {MINUTE: 60, HALF_HOUR: 48}
"""The number of buckets that are kept, by their length in seconds."""
MOST_TYPES: Final = 20
"""The types of errors in one bucket with their own counts; more of them count as `OTHER_TYPES`."""
OTHER_TYPES: Final = "_other"
MESSAGE_LIMIT: Final = 200
"""Characters of an error that are kept."""


class ErrorGroup(msgspec.Struct):
    """The failed attempts of one type of error. Times are microseconds."""

    number: int
    first_us: int
    last_us: int
    job: int
    """The job of the last one."""
    message: str
    """Of the last one."""

    def add(self, other: ErrorGroup) -> None:
        """Add the attempts of another group."""
        self.number += other.number
        self.first_us = min(self.first_us, other.first_us)
        if other.last_us >= self.last_us:
            self.last_us, self.job, self.message = other.last_us, other.job, other.message


class Bucket(msgspec.Struct, omit_defaults=True):
    """The numbers of one function in one bucket. Stored as MessagePack; unknown fields of newer versions are ignored."""

    submitted: int = 0
    outcomes: dict[str, int] = {}
    """Ended attempts, by the names of `mainspring.jobs.attempts.OUTCOMES`."""
    waited: list[int] = []
    """A histogram of waiting times, with the bounds of `mainspring.jobs.attempts` and without zeros at the end."""
    waited_us: int = 0
    """Their sum."""
    ran: list[int] = []
    """The same of durations."""
    ran_us: int = 0
    errors: dict[str, ErrorGroup] = {}
    """Failed attempts by type of error; only in buckets of half an hour."""
    waiting: int = 0
    """The jobs that waited for a worker at ``waiting_us``, as the node counted them: those of the whole store and those that it
    had claimed itself, without those that other nodes had claimed. Most are of the whole store, so they are not added."""
    waiting_us: int = 0
    """When they were counted; 0: never."""

    def add_attempts(self, other: Bucket) -> None:
        """Add the numbers of jobs and attempts of another bucket alone."""
        self.submitted += other.submitted
        for outcome, number in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + number

    def add(self, other: Bucket) -> None:
        """Add the numbers of another bucket."""
        self.add_attempts(other)
        self.waited = _sum(self.waited, other.waited)
        self.waited_us += other.waited_us
        self.ran = _sum(self.ran, other.ran)
        self.ran_us += other.ran_us
        for kind, group in other.errors.items():
            add_error(self.errors, kind, group)
        self.count_waiting(other.waiting, other.waiting_us)

    def count_waiting(self, number: int, at_us: int) -> None:
        """Set the number of waiting jobs at a time, unless it has a newer one."""
        if at_us > self.waiting_us:
            self.waiting, self.waiting_us = number, at_us

    def is_empty(self) -> bool:
        """Return whether nothing happened."""
        return not (self.submitted or self.outcomes or self.errors)


def add_error(errors: dict[str, ErrorGroup], kind: str, group: ErrorGroup) -> None:
    """Add failed attempts to groups, of which there are at most one more than `MOST_TYPES`."""
    counted = errors.get(kind)
    if counted is None and len(errors) >= MOST_TYPES:
        kind = OTHER_TYPES
        counted = errors.get(kind)
    if counted is None:
        errors[kind] = msgspec.structs.replace(group)
    else:
        counted.add(group)


def _sum(first: list[int], second: list[int]) -> list[int]:
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    return [number + (shorter[place] if place < len(shorter) else 0) for place, number in enumerate(longer)]


class Row(NamedTuple):
    """A bucket of a node's term. Another term may have counted at the same time, or before on the same node."""

    namespace: str
    function: bytes
    step: int
    """`MINUTE` or `HALF_HOUR`."""
    at: int
    """Its begin, in seconds since 1970."""
    term: int
    bucket: Bucket


encode_bucket: Final = msgspec.msgpack.Encoder().encode
"""Return the stored form of a bucket."""
_decode: Final = msgspec.msgpack.Decoder(Bucket).decode


def decode_bucket(stored: bytes) -> Bucket:
    """Return a stored bucket; an empty one for bytes that are none: one row must not break a chart."""
    try:
        return _decode(stored)
    except CANNOT_READ:
        return Bucket()


def begin_of(step: int, second: float) -> int:
    """Return the begin of the bucket of a time."""
    return int(second // step) * step


def oldest_kept(step: int, now: float) -> int:
    """Return the begin of the oldest bucket that is kept at a time."""
    return begin_of(step, now) - (KEPT[step] - 1) * step


class SaveSeries(Operation):
    """Write buckets, each in place of an earlier one of the same function, step, time and term; and delete old ones.

    ``oldest`` has the begin of the oldest bucket to keep, by step. At most as many buckets are deleted as `SWEEP_ROWS`.
    Outcome: None. It touches no row of a job.
    """

    phase = Phase.SERIES
    series: Sequence[Row]
    oldest: Mapping[int, int]

    def __post_init__(self) -> None:
        self.rows = len(self.series)
        self.size = 64 + 300 * len(self.series)
        self.urgent = False


SWEEP_ROWS = 2000
"""Buckets that one operation deletes. A node writes fewer in a minute."""


class ReadSeries(PageQuery[Row], frozen=True, kw_only=True):
    """Read the buckets of a function from a time on, in the order of their times. A page continues after a time and a term."""

    namespace: str
    function: bytes
    step: int
    since: int


class ReadNamespaceSeries(PageQuery[Row], frozen=True, kw_only=True):
    """Read the buckets of all functions of a namespace from a time on, in the order of their times.

    A page continues after a time, a function and a term. It reads an index of times, so only for the last few buckets.
    """

    namespace: str
    step: int
    since: int
