"""Little memory for very many jobs and functions: compaction of dicts, and an approximate set of names.

A dict keeps the memory of deleted entries until an entry is added. After 400,000 foreground jobs of one client that is 20 MB for
each dict. The allocator returns the memory of the jobs themselves, so no trim of the heap is needed.

Clients can name any number of functions. The names of those that are rows of the store alone are in a Bloom filter (`Names`).
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from mainspring.namespaces import namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

MIN_TABLE_BYTES: Final = 1_048_576
"""The size in bytes below which a dict is not compacted."""
BYTES_PER_ENTRY: Final = 400
"""Bytes for each entry above which a dict is sparse. A dict that has just grown has about 100."""


def compact(table: MutableMapping[Any, Any]) -> None:
    """Rebuild a sparse dict in place, in the same order. The cost is proportional to the remaining entries."""
    size = sys.getsizeof(table)
    if size > MIN_TABLE_BYTES and size > BYTES_PER_ENTRY * len(table):
        content = list(table.items())
        table.clear()
        table.update(content)


BITS: Final = 2**23
"""1 MiB. With 300,000 names one in some thousands of other names is a false positive, with a million one in fifty."""
_PROBES: Final = 4


class Names:
    """A Bloom filter of names: it contains every name that was added, and a few others."""

    def __init__(self) -> None:
        self._bits = bytearray(BITS // 8)
        self.number = 0
        """The number of names added, without those that were false positives."""
        self.of_namespaces: Counter[str] = Counter()
        """The same by namespace."""

    def __contains__(self, name: bytes) -> bool:
        bits = self._bits
        return all(bits[place >> 3] & (1 << (place & 7)) for place in _places(name))

    def add(self, name: bytes) -> None:
        """Add a name."""
        if name not in self:
            self.number += 1
            self.of_namespaces[namespace_of(name)] += 1
            for place in _places(name):
                self._bits[place >> 3] |= 1 << (place & 7)


def _places(name: bytes) -> list[int]:
    mixed = hash(name)
    first, step = mixed % BITS, (mixed >> 23) | 1
    return [(first + probe * step) % BITS for probe in range(_PROBES)]


class Rows:
    """The functions that are rows of the store alone, as of the last reading of the store, with later additions."""

    def __init__(self) -> None:
        self._current: Names | None = None
        self._next: Names | None = None
        self._left = 0
        """The number that came into memory since."""
        self._left_of: Counter[str] = Counter()
        """The same by namespace."""

    @property
    def number(self) -> int:
        """The approximate number of functions."""
        return max(self._current.number - self._left, 0) if self._current is not None else 0

    def number_of(self, namespace: str) -> int:
        """Return the approximate number of functions of a namespace."""
        if self._current is None:
            return 0
        return max(self._current.of_namespaces[namespace] - self._left_of[namespace], 0)

    @property
    def namespaces(self) -> Iterable[str]:
        """The namespaces with functions among them."""
        return () if self._current is None else self._current.of_namespaces

    def __contains__(self, name: bytes) -> bool:
        return self._current is not None and name in self._current

    def add(self, name: bytes) -> bool:
        """Add a function that became a row; return whether it is a new one."""
        if self._current is None:
            self._current = Names()
        is_new = name not in self._current
        self._current.add(name)
        if self._next is not None:
            self._next.add(name)
        return is_new

    def left(self, name: bytes) -> None:
        """Count a function that came into memory."""
        if name in self:
            self._left += 1
            self._left_of[namespace_of(name)] += 1

    def begin(self) -> None:
        """Begin a reading. At its end only functions remain that it met or that were added meanwhile."""
        self._next = Names()

    def met(self, name: bytes) -> None:
        """Add a row that the reading met."""
        assert self._next is not None
        self._next.add(name)

    def end(self) -> None:
        """End a complete reading."""
        self._current, self._next, self._left = self._next, None, 0
        self._left_of.clear()

    def give_up(self) -> None:
        """Abandon a reading that failed."""
        self._next = None
