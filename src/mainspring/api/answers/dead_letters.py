"""The numbers of dead letters by function, from the counts in the store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.api.answers.readings import Readings
from mainspring.api.answers.waiting import Later
from mainspring.errors import StoreError
from mainspring.namespaces import namespace_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    """Those of a namespace."""

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


class DeadLetters:
    """The numbers of namespaces that somebody watches. They are read again after some seconds."""

    def __init__(self, service: JobService) -> None:
        self._service = service
        self._all: Readings[None, tuple[dict[bytes, int], bool]] = Readings(service.monotonic, KEPT_FOR, 1)
        self._namespaces: Readings[str, DeadNumbers] = Readings(service.monotonic, KEPT_FOR, MOST_KEPT)
        self._counted: Readings[str, DeadNumbers] = Readings(service.monotonic, KEPT_FOR, MOST_KEPT)

    async def among(self, namespace: str, functions: Sequence[FunctionQueue], failing: Sequence[bytes]) -> DeadNumbers:
        """Return those of all functions; in a very large store of the failing ones, those with jobs, and some of the others.

        ``functions`` are those of the namespace, not those that one caller may see: others get the same numbers.
        """
        found = await self.of(namespace)
        if found.is_whole:
            return found
        return await self._counted.get(namespace, lambda: self._count(found, functions, failing))

    async def _count(
        self, found: DeadNumbers, functions: Sequence[FunctionQueue], failing: Sequence[bytes]
    ) -> DeadNumbers:
        queues = sorted(functions, key=lambda queue: not queue.total())
        names = list(dict.fromkeys([*failing, *(queue.name for queue in queues[:MOST_COUNTED])]))[:MOST_COUNTED]
        counted = await count_dead(self._service, names)
        numbers = {} if counted is None else {name: counted.get(name, 0) for name in names}
        return DeadNumbers({**found.by_function, **numbers}, is_whole=False)

    async def of(self, namespace: str) -> DeadNumbers:
        """Return those of all functions; of some of them, if not all of the store's functions can be read."""
        return await self._namespaces.get(namespace, lambda: self._read(namespace))

    async def _read(self, namespace: str) -> DeadNumbers:
        found, is_whole = await self.everywhere()
        return DeadNumbers({name: found[name] for name in found if namespace_of(name) == namespace}, is_whole)

    async def everywhere(self) -> tuple[dict[bytes, int], bool]:
        """Return the numbers of all functions with dead letters, and whether all of the store's functions were read."""
        return await self._all.get(None, self._read_all)

    async def _read_all(self) -> tuple[dict[bytes, int], bool]:
        numbers: dict[bytes, int] = {}
        after: bytes | None = b""
        for _ in range(MOST_PAGES):
            place = after or b""
            try:
                page: DeadCounted = await Later(partial(self._service.show_dead, place))
            except StoreError:
                return numbers, False
            numbers |= page.numbers
            after = page.next
            if after is None:
                return numbers, True
        return numbers, False
