"""The numbers of dead letters by function, from the counts in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.api.answers.waiting import Later
from mainspring.errors import StoreError
from mainspring.namespaces import namespace_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mainspring.clock import Clock
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.service import JobService
    from mainspring.jobs.store import DeadCounted

KEPT_FOR: Final = 5.0
"""Seconds for which the numbers of a namespace are used again."""
MOST_KEPT: Final = 100
"""Namespaces whose numbers are kept."""
MOST_COUNTED: Final = 1000
"""Functions of one reading: it takes a few milliseconds."""
MOST_PAGES: Final = 10
"""Pages of the store's functions that are read for one answer: `jobs.store.ShowDead` has 1,000 of them on each."""


class DeadNumbers(NamedTuple):
    """Those of a namespace at a monotonic time."""

    read_at: float
    by_function: Mapping[bytes, int]
    is_whole: bool
    """Whether functions that are not among them have none."""


async def count_dead(service: JobService, names: Sequence[bytes]) -> Mapping[bytes, int] | None:
    """Return the numbers of functions with dead letters; None while the store cannot be read. All else is in memory."""
    try:
        found: Mapping[bytes, int] = await Later(lambda done, failed: service.count_dead(names, done, failed))
    except StoreError:
        return None
    return found


async def all_dead(service: JobService) -> tuple[dict[bytes, int], bool]:
    """Return the numbers of all functions with dead letters, and whether all of the store's functions were read."""
    numbers: dict[bytes, int] = {}
    after: bytes | None = b""
    for _ in range(MOST_PAGES):
        place = after or b""
        try:
            page: DeadCounted = await Later(lambda done, failed: service.show_dead(place, done, failed))  # noqa: B023
        except StoreError:
            return numbers, False
        numbers |= page.numbers
        after = page.next
        if after is None:
            return numbers, True
    return numbers, False


class DeadLetters:
    """The numbers of namespaces that somebody watches. They are read again after some seconds."""

    def __init__(self, service: JobService, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._namespaces: dict[str, DeadNumbers] = {}

    async def among(self, namespace: str, functions: Sequence[FunctionQueue], failing: Sequence[bytes]) -> DeadNumbers:
        """Return those of all functions; in a very large store of the failing ones, those with jobs, and some of the others.

        ``functions`` are those of the namespace, not those that one caller may see: others get the same numbers.
        """
        now = self._clock.monotonic()
        kept = self._namespaces.get(namespace)
        if kept is None or now - kept.read_at >= KEPT_FOR:
            found, is_whole = await all_dead(self._service)
            numbers = {name: number for name, number in found.items() if namespace_of(name) == namespace}
            if not is_whole:
                queues = sorted(functions, key=lambda queue: not queue.total())
                names = list(dict.fromkeys([*failing, *(queue.name for queue in queues[:MOST_COUNTED])]))[:MOST_COUNTED]
                counted = await count_dead(self._service, names)
                numbers |= {} if counted is None else {name: counted.get(name, 0) for name in names}
            kept = DeadNumbers(now, numbers, is_whole)
            self._namespaces.pop(namespace, None)
            while len(self._namespaces) >= MOST_KEPT:
                del self._namespaces[next(iter(self._namespaces))]
            self._namespaces[namespace] = kept
        return kept
