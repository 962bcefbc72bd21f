"""A cache of pieces of long answers for one second: scripts often list the functions, and several at the same time.

It has only pieces from the store: those from memory are built in about a millisecond.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mainspring.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Hashable

CACHE_SECONDS: Final = 1.0
"""Seconds for which a piece may be sent again: the largest age of the counts in it."""
CACHE_BYTES: Final = 4 * 2**20
"""The largest total size of the cached pieces, in bytes."""

Piece = tuple[bytes, Any]
"""A piece, and the value with which its reader requests the next one."""
BuildPiece = Callable[[Callable[[Piece | StoreError], None]], None]


class PieceCache:
    """Recently built pieces, and pieces in progress, which are shared by all peers that request them."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._pieces: OrderedDict[Hashable, tuple[float, Piece]] = OrderedDict()
        self._bytes = 0
        self._building: dict[Hashable, list[Callable[[Piece | StoreError], None]]] = {}

    def get(self, key: Hashable, build: BuildPiece, then: Callable[[Piece | StoreError], None]) -> None:
        """Call ``then`` with a piece once it is built."""
        self._evict(0)
        cached = self._pieces.get(key)
        if cached is not None:
            then(cached[1])
        elif key in self._building:
            self._building[key].append(then)
        else:
            self._building[key] = [then]
            build(lambda piece: self._built(key, piece))

    def _built(self, key: Hashable, built: Piece | StoreError) -> None:
        if not isinstance(built, StoreError):
            self._evict(len(built[0]))
            self._pieces[key] = (self._monotonic(), built)
            self._bytes += len(built[0])
        for then in self._building.pop(key):
            then(built)

    def _evict(self, size: int) -> None:
        """Remove old pieces, and the oldest ones if a new piece of this size does not fit."""
        now = self._monotonic()
        while self._pieces:
            at, (piece, _) = next(iter(self._pieces.values()))
            if now - at <= CACHE_SECONDS and self._bytes + size <= CACHE_BYTES:
                break
            self._pieces.popitem(last=False)
            self._bytes -= len(piece)
