"""Pieces of long answers, kept for a second: scripts often ask for the list of functions, and several at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mainspring.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Hashable

KEPT_FOR: Final = 1.0
"""Seconds for which a piece may be sent again: so old the counts may be that it shows."""
KEPT_BYTES: Final = 4 * 2**20
"""Bytes of pieces that are kept at most."""

Made = tuple[bytes, Any]
"""A piece, and what whoever made it has to know to go on."""
Making = Callable[[Callable[[Made | StoreError], None]], None]


class Kept:
    """Pieces that were made of late, or are being made: they are for all who ask for them meanwhile."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._pieces: OrderedDict[Hashable, tuple[float, Made]] = OrderedDict()
        self._bytes = 0
        self._asking: dict[Hashable, list[Callable[[Made | StoreError], None]]] = {}

    def ask(self, key: Hashable, make: Making, then: Callable[[Made | StoreError], None]) -> None:
        """Call a function with a piece, once it is made."""
        self._forget(0)
        kept = self._pieces.get(key)
        if kept is not None:
            then(kept[1])
        elif key in self._asking:
            self._asking[key].append(then)
        else:
            self._asking[key] = [then]
            make(lambda made: self._tell(key, made))

    def _tell(self, key: Hashable, made: Made | StoreError) -> None:
        if not isinstance(made, StoreError):
            self._forget(len(made[0]))
            self._pieces[key] = (self._monotonic(), made)
            self._bytes += len(made[0])
        for then in self._asking.pop(key):
            then(made)

    def _forget(self, size: int) -> None:
        """Forget old pieces, and the oldest ones where there is no room for another of some size."""
        now = self._monotonic()
        while self._pieces:
            at, (piece, _) = next(iter(self._pieces.values()))
            if now - at <= KEPT_FOR and self._bytes + size <= KEPT_BYTES:
                break
            self._pieces.popitem(last=False)
            self._bytes -= len(piece)
