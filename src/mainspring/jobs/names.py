"""The names of very many functions, to be told from new ones: about, and in little memory."""

from __future__ import annotations

from typing import Final

BITS: Final = 2**23
"""1 MiB. Of 300,000 names one in some thousands of others is taken for known, of a million one in fifty."""
_PROBES: Final = 4


class Names:
    """A set of names without the names. It knows all that were added, and takes a few others for known."""

    def __init__(self) -> None:
        self._bits = bytearray(BITS // 8)
        self.number = 0
        """How many were added, without those that it took for known."""

    def __contains__(self, name: bytes) -> bool:
        bits = self._bits
        return all(bits[place >> 3] & (1 << (place & 7)) for place in _places(name))

    def add(self, name: bytes) -> None:
        """Know a name from now on."""
        if name not in self:
            self.number += 1
            for place in _places(name):
                self._bits[place >> 3] |= 1 << (place & 7)


def _places(name: bytes) -> list[int]:
    mixed = hash(name)
    first, step = mixed % BITS, (mixed >> 23) | 1
    return [(first + probe * step) % BITS for probe in range(_PROBES)]


class Rows:
    """The functions that are rows of the store alone: as of the last reading of the store, with those that came since."""

    def __init__(self) -> None:
        self._current: Names | None = None
        self._next: Names | None = None
        self._left = 0
        """Those that are in memory since."""

    @property
    def number(self) -> int:
        """How many they are, about."""
        return max(self._current.number - self._left, 0) if self._current is not None else 0

    def __contains__(self, name: bytes) -> bool:
        return self._current is not None and name in self._current

    def add(self, name: bytes) -> None:
        """A function is a row from now on."""
        if self._current is None:
            self._current = Names()
        self._current.add(name)
        if self._next is not None:
            self._next.add(name)

    def left(self, name: bytes) -> None:
        """A function is in memory from now on."""
        if name in self:
            self._left += 1

    def begin(self) -> None:
        """A reading begins: what is not met in it, or added meanwhile, is no row any more."""
        self._next = Names()

    def met(self, name: bytes) -> None:
        """The reading has met a row."""
        assert self._next is not None
        self._next.add(name)

    def end(self) -> None:
        """The reading has met all."""
        self._current, self._next, self._left = self._next, None, 0

    def give_up(self) -> None:
        """The reading could not go on."""
        self._next = None
