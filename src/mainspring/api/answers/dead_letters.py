"""The numbers of dead letters by function, from the counts in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.api.answers.waiting import Later
from mainspring.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mainspring.clock import Clock
    from mainspring.jobs.held import FunctionQueue
    from mainspring.jobs.service import JobService

KEPT_FOR: Final = 5.0
"""Seconds for which the numbers of a namespace are used again."""
MOST_KEPT: Final = 100
"""Namespaces whose numbers are kept."""
MOST_COUNTED: Final = 1000
"""Functions of one reading: it takes a few milliseconds."""


class _Numbers(NamedTuple):
    """Those of a namespace at a monotonic time."""

    read_at: float
    by_function: Mapping[bytes, int]


async def count_dead(service: JobService, names: Sequence[bytes]) -> Mapping[bytes, int] | None:
    """Return the numbers of functions with dead letters; None while the store cannot be read. All else is in memory."""
    try:
        found: Mapping[bytes, int] = await Later(lambda done, failed: service.count_dead(names, done, failed))
    except StoreError:
        return None
    return found


class DeadLetters:
    """The numbers of namespaces that somebody watches. They are read again after some seconds."""

    def __init__(self, service: JobService, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._namespaces: dict[str, _Numbers] = {}

    async def among(
        self, namespace: str, functions: Sequence[FunctionQueue], failing: Sequence[bytes]
    ) -> Mapping[bytes, int]:
        """Return those of the failing functions, of those with jobs, and of the others as far as one reading goes.

        ``functions`` are those of the namespace, not those that one caller may see: others get the same numbers.
        """
        now = self._clock.monotonic()
        kept = self._namespaces.get(namespace)
        if kept is None or now - kept.read_at >= KEPT_FOR:
            queues = sorted(functions, key=lambda queue: not queue.total())
            names = list(dict.fromkeys([*failing, *(queue.name for queue in queues[:MOST_COUNTED])]))[:MOST_COUNTED]
            found = await count_dead(self._service, names)
            kept = _Numbers(now, {} if found is None else {name: found.get(name, 0) for name in names})
            self._namespaces.pop(namespace, None)
            while len(self._namespaces) >= MOST_KEPT:
                del self._namespaces[next(iter(self._namespaces))]
            self._namespaces[namespace] = kept
        return kept.by_function
