"""The ages of the oldest pending jobs: current for jobs in memory, some seconds old for jobs in the store."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from mainspring.clock import from_us, to_us
from mainspring.namespaces import namespace_of
from mainspring.queries.jobs import FirstInLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.jobs.held import FunctionQueue, Held
    from mainspring.storage.reads import Reads

OLDEST_FUNCTIONS: Final = 100
"""Functions whose oldest jobs are read: those with the most pending jobs."""
READ_INTERVAL: Final = 5.0
"""Seconds between two reads of the store."""
PAUSE_FACTOR: Final = 20
"""A read is followed by a pause of this many times its duration, if that is longer than the interval."""


class Oldest:
    """Finds the oldest pending jobs of the functions with the most of them.

    ``reads``: None for a store without the query, where only jobs in memory count.
    """

    def __init__(self, functions: Callable[[], Iterable[FunctionQueue]], reads: Reads | None, clock: Clock) -> None:
        self._functions = functions
        self._reads = reads
        self._clock = clock
        self._stored: dict[bytes, int] = {}
        """By function, the wall time in microseconds since which its oldest pending job in the store has waited."""
        self._next = float("-inf")
        """The monotonic time of the next read; infinite while one is under way."""

    def refresh(self, then: Callable[[], None] = lambda: None) -> None:
        """Read the store if the interval has passed, and call a function then; otherwise call it at once.

        Nodes that serve metrics call this about once a second.
        """
        began = self._clock.monotonic()
        functions = [queue.name for queue in self._busiest() if any(queue.backlog)] if began >= self._next else []
        if self._reads is None or not functions:
            then()
            return

        def succeeded(found: dict[bytes, int]) -> None:
            self._stored = found
            ended = self._clock.monotonic()
            self._next = ended + max(READ_INTERVAL, PAUSE_FACTOR * (ended - began))
            then()

        def failed(error: StoreError) -> None:
            del error  # keep the earlier ages
            self._next = self._clock.monotonic() + READ_INTERVAL
            then()

        self._next = float("inf")
        self._reads.ask(FirstInLine(tuple(functions)), succeeded, failed)

    def ages(self) -> Iterator[tuple[bytes, float]]:
        """Return functions that have pending jobs, with the seconds for which the oldest one has waited."""
        now_us = to_us(self._clock.wall())
        for queue in self._busiest():
            times = [_since(held) for held in _firsts(queue)]
            if any(queue.backlog) and queue.name in self._stored:
                times.append(self._stored[queue.name])
            if times:
                yield queue.name, from_us(max(now_us - min(times), 0))

    def _busiest(self) -> list[FunctionQueue]:
        waiting = [(queue.waiting(), queue) for queue in self._functions() if queue.waits()]
        most = heapq.nlargest(OLDEST_FUNCTIONS, waiting, key=lambda one: one[0])
        return [queue for number, queue in most if number]


def _firsts(queue: FunctionQueue) -> Iterator[Held]:
    """Return the pending jobs in memory that may be the oldest."""
    if queue.admission is not None:
        yield from queue.queued()
        return
    if queue.prefer is not None:
        yield from queue.prefer.jobs()
    for ready in queue.ready:
        for held in ready:
            if held.queued:
                yield held
                break


def _since(held: Held) -> int:
    return max(held.job.created_us, held.job.due_us)


MOST_NAMESPACES: Final = 100


class OldestByNamespace:
    """One `Oldest` for each namespace that was asked for, so that busy functions elsewhere displace none of it.

    ``reads``: None for a store without the query.
    """

    def __init__(self, functions: Callable[[], Iterable[FunctionQueue]], reads: Reads | None, clock: Clock) -> None:
        self._functions = functions
        self._reads = reads
        self._clock = clock
        self._all: dict[str, Oldest] = {}

    def of(self, namespace: str) -> Oldest:
        """Return the ages of a namespace."""
        found = self._all.pop(namespace, None)
        if found is None:

            def own() -> Iterator[FunctionQueue]:
                return (queue for queue in self._functions() if namespace_of(queue.name) == namespace)

            found = Oldest(own, self._reads, self._clock)
        while len(self._all) >= MOST_NAMESPACES:
            del self._all[next(iter(self._all))]
        self._all[namespace] = found
        return found
