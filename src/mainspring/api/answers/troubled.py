"""The functions of a namespace at work, those with trouble first, with their last hour."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.api.answers.readings import Readings
from mainspring.api.answers.waiting import read_page
from mainspring.api.namespaces import TroubledFunction
from mainspring.namespaces import name_of
from mainspring.series.model import KEPT, MINUTE, begin_of, oldest_kept
from mainspring.series.store import ReadSeries
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.clock import Clock
    from mainspring.storage.reads import Reads

MOST: Final = 8
"""Functions in an answer."""
KEPT_FOR: Final = 5.0
"""Seconds for which a read hour is used again: nodes write their buckets as often."""
MOST_KEPT: Final = 500
"""Functions whose hours are kept."""
NOT_SUCCEEDED: Final = ("failed", "retried", "timed_out", "lost")
"""Outcomes of attempts that did not succeed."""
_MOST_ROWS: Final = 10_000
"""Buckets of one read: those of 166 terms."""


class Work(NamedTuple):
    """A function, before its hour is read."""

    name: bytes
    waiting: int
    running: int
    workers: int
    is_registered: bool | None
    """None: unknown."""
    is_paused: bool
    oldest: float | None
    failures: int
    dead: int | None

    @property
    def trouble(self) -> tuple[bool, int, int, float, int, int, bytes]:
        """How much trouble it has, for comparisons: jobs without workers, failures, dead letters, waits."""
        is_stuck = bool(self.waiting) and self.is_registered is False and not self.is_paused
        return is_stuck, self.failures, self.dead or 0, self.oldest or 0.0, self.waiting, self.running, self.name


class _Hour(NamedTuple):
    """The minutes of a function."""

    submitted: list[int]
    succeeded: list[int]
    not_succeeded: list[int]


class Troubled:
    """Finds the functions, and reads their hours. ``kept`` is whether the store keeps series."""

    def __init__(self, reads: Reads, clock: Clock, *, kept: bool) -> None:
        self._reads = reads
        self._clock = clock
        self._kept = kept
        self._hours: Readings[tuple[str, bytes], _Hour] = Readings(clock.monotonic, KEPT_FOR, MOST_KEPT)

    async def among(self, namespace: str, functions: Iterable[Work]) -> list[TroubledFunction]:
        """Return those with the most trouble."""
        worst = heapq.nlargest(MOST, functions, key=lambda one: one.trouble)
        return [await self._info(namespace, one) for one in worst]

    async def _info(self, namespace: str, work: Work) -> TroubledFunction:
        hour = None
        if self._kept:
            hour = await self._hours.get((namespace, work.name), lambda: self._read(namespace, work.name))
        return TroubledFunction(
            function_text(work.name),
            waiting=work.waiting,
            running=work.running,
            workers=work.workers,
            registered=work.is_registered,
            paused=work.is_paused,
            oldest_seconds=None if work.oldest is None else round(work.oldest, 3),
            failures=work.failures,
            submitted=None if hour is None else hour.submitted,
            succeeded=None if hour is None else hour.succeeded,
            not_succeeded=None if hour is None else hour.not_succeeded,
            dead_letters=work.dead,
        )

    async def _read(self, namespace: str, name: bytes) -> _Hour:
        wall = self._clock.wall()
        begin = oldest_kept(MINUTE, wall)
        query = ReadSeries(namespace=namespace, function=name_of(name), step=MINUTE, since=begin, limit=_MOST_ROWS)
        hour = _Hour(*([0] * KEPT[MINUTE] for _ in range(3)))
        for row in (await read_page(self._reads.gather, query)).items:
            place, outcomes = (row.at - begin) // MINUTE, row.bucket.outcomes
            if row.at <= begin_of(MINUTE, wall):
                hour.submitted[place] += row.bucket.submitted
                hour.succeeded[place] += outcomes.get("succeeded", 0)
                hour.not_succeeded[place] += sum(outcomes.get(outcome, 0) for outcome in NOT_SUCCEEDED)
        return hour
