"""The pending jobs of one function and priority, by their keys."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Pending:
    """Heaps of ids, one for each key. Ids may be out of date, so a caller checks the state of the job that it pops."""

    __slots__ = ("_heaps", "_keys")

    def __init__(self) -> None:
        self._heaps: dict[bytes, list[int]] = {}
        self._keys: list[bytes] = []
        """In order."""

    def push(self, key: bytes, job_id: int) -> None:
        """Add a job."""
        heap = self._heaps.get(key)
        if heap is None:
            heap = self._heaps[key] = []
            insort(self._keys, key)
        heapq.heappush(heap, job_id)

    def pop(self) -> tuple[bytes, int] | None:
        """Pop the oldest of all jobs, with its key. Meant for few keys: with many, jobs are claimed by key."""
        while self._heaps:
            if len(self._heaps) == 1:
                key, heap = next(iter(self._heaps.items()))
            else:
                key, heap = min(self._heaps.items(), key=_oldest)
            if heap:
                return key, heapq.heappop(heap)
            if len(self._heaps) == 1:
                return None  # it stays for the next job: most functions have no other key
            self.forget(key)
        return None

    def firsts(self, is_pending: Callable[[int], bool], most: int) -> Iterator[int]:
        """Yield the oldest job of each of the first keys, and drop outdated entries before it."""
        for key in self._keys[:most]:
            heap = self._heaps[key]
            while heap and not is_pending(heap[0]):
                heapq.heappop(heap)
            if heap:
                yield heap[0]

    def pop_of(self, key: bytes) -> tuple[bytes, int] | None:
        """Pop the oldest job of a key that `keys` has returned."""
        heap = self._heaps[key]
        return (key, heapq.heappop(heap)) if heap else None

    def forget(self, key: bytes) -> None:
        """Drop a key that has no jobs."""
        if not self._heaps[key]:
            del self._heaps[key]
            del self._keys[bisect_left(self._keys, key)]

    def keys(self, after: bytes | None) -> Iterator[bytes]:
        """Return all keys in order, from the first after ``after`` once around."""
        at = 0 if after is None else bisect_right(self._keys, after)
        yield from self._keys[at:] + self._keys[:at]


def _oldest(item: tuple[bytes, list[int]]) -> int:
    return item[1][0] if item[1] else 0
