"""Answers of any length to commands of the administration protocol: made and sent a piece at a time.

A piece is made when the peer has read most of what was sent before, in turns with everything else: neither the time that an
answer takes nor its length matters to others. Pieces of the list of functions are kept for a second: scripts ask for it often.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from mainspring.errors import StoreError
from mainspring.faces.gearman.outgoing import WINDOW
from mainspring.wire.gearman import admin

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mainspring.faces.gearman.outbox import Slot
    from mainspring.faces.gearman.peer import Peer

KEPT_FOR: Final = 1.0
"""Seconds for which a piece may be sent again: so old the counts may be that it shows."""
KEPT_BYTES: Final = 4 * 2**20
"""Bytes of pieces that are kept at most."""

Question = Callable[[Callable[[Any], None]], None]
"""Calls a function with its answer, at once or later."""
Pieces = Generator[bytes | Question, Any, None]
"""Yields pieces of an answer, and questions, whose answers are sent to it; of a StoreError, the peer is told."""


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


class Listing:
    """One answer on its way to a peer."""

    def __init__(self, peer: Peer, pieces: Pieces, cost: int) -> None:
        self._peer = peer
        self._pieces = pieces
        self._put = peer.service.slices.put
        self._answer: Any = None
        self._begun = False
        self._rests = False
        """It goes on when the peer has read what was sent."""
        peer.outbox.stream(cost, self._begin)

    def _begin(self, slot: Slot) -> None:
        self._slot = slot
        self._peer.listing = self
        self._put(self._step)

    def go_on(self) -> None:
        """The peer has read what was sent."""
        if self._rests:
            self._rests = False
            self._put(self._step)

    def _step(self) -> None:
        peer = self._peer
        if peer.reading.ended:
            self._pieces.close()
            return
        if peer.outgoing.unread > WINDOW:
            self._rests = True
            return
        answer, self._answer = self._answer, None
        if isinstance(answer, StoreError):
            self._fail(answer)
            return
        try:
            said = self._pieces.send(answer)
        except StopIteration:
            self._end(admin.END)
            return
        if callable(said):
            said(self._answered)
        else:
            self._begun = True
            peer.outbox.write(said)
            self._put(self._step)

    def _answered(self, answer: Any) -> None:
        self._answer = answer
        self._put(self._step)

    def _fail(self, error: StoreError) -> None:
        """Say why there is no answer. One that has begun must not look whole: the connection ends before its last line."""
        if self._begun:
            self._peer.close()
        else:
            self._end(f"ERR STORE {error}\r\n".encode())

    def _end(self, data: bytes) -> None:
        peer = self._peer
        peer.listing = None
        peer.outbox.fill(self._slot, data)
