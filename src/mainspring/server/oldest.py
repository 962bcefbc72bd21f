"""The ages of the oldest waiting jobs: those in memory as of now, those in the store as of some seconds ago."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from mainspring.clock import from_us, to_us
from mainspring.queries.jobs import FirstInLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.jobs.held import FunctionQueue, Held
    from mainspring.storage.reads import Reads

MEASURED: Final = 100
"""Functions whose oldest jobs are looked for: those with the most waiting ones."""
EVERY: Final = 5.0
"""Seconds between two looks into the store."""
SHARE: Final = 20
"""Looks take at most one part in so many of the time: after a slow one the next comes later."""


class Oldest:
    """Knows since when the oldest waiting jobs of the functions with the most of them have waited."""

    def __init__(self, functions: Callable[[], Iterable[FunctionQueue]], reads: Reads, clock: Clock) -> None:
        self._functions = functions
        self._reads = reads
        self._clock = clock
        self._stored: dict[bytes, int] = {}
        """By function, the wall time in microseconds since which its oldest pending job in the store has waited."""
        self._next = float("-inf")
        """The monotonic time of the next look; infinite while one is under way."""

    def look(self) -> None:
        """Look into the store where it is time; to be called every second or so where the metrics are served."""
        asked = self._clock.monotonic()
        if asked < self._next:
            return
        functions = [queue.name for queue in self._busiest() if any(queue.backlog)]
        if not functions:
            return

        def looked(found: dict[bytes, int]) -> None:
            self._stored = found
            answered = self._clock.monotonic()
            self._next = answered + max(EVERY, SHARE * (answered - asked))

        def not_looked(error: StoreError) -> None:
            del error  # the figures stay as they are
            self._next = self._clock.monotonic() + EVERY

        self._next = float("inf")
        self._reads.ask(FirstInLine(tuple(functions)), looked, not_looked)

    def ages(self) -> Iterator[tuple[bytes, float]]:
        """Return functions that have waiting jobs, with the seconds for which the oldest one has waited."""
        now_us = to_us(self._clock.wall())
        for queue in self._busiest():
            times = [_since(held) for held in _firsts(queue)]
            if any(queue.backlog) and queue.name in self._stored:
                times.append(self._stored[queue.name])
            if times:
                yield queue.name, from_us(max(now_us - min(times), 0))

    def _busiest(self) -> list[FunctionQueue]:
        waiting = [(queue.waiting(), queue) for queue in self._functions() if queue.waits()]
        most = heapq.nlargest(MEASURED, waiting, key=lambda one: one[0])
        return [queue for number, queue in most if number]


def _firsts(queue: FunctionQueue) -> Iterator[Held]:
    """Return the waiting jobs in memory that may be the oldest."""
    if queue.gate is not None:
        yield from queue.queued()
        return
    for ready in queue.ready:
        for held in ready:
            if held.queued:
                yield held
                break


def _since(held: Held) -> int:
    return max(held.job.created_us, held.job.due_us)
