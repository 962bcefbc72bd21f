"""Answers of any length to commands of the administration protocol: made and sent a piece at a time.

A piece is made when the peer has read most of what was sent before, in turns with everything else: neither the time that an
answer takes nor its length matters to others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from mainspring.errors import StoreError
from mainspring.faces.gearman.outgoing import WINDOW
from mainspring.wire.gearman import admin

if TYPE_CHECKING:
    from mainspring.faces.gearman.outbox import Slot
    from mainspring.faces.gearman.peer import Peer

Question = Callable[[Callable[[Any], None]], None]
"""Calls a function with its answer, at once or later."""
Pieces = Generator[bytes | Question, Any, None]
"""Yields pieces of an answer, and questions, whose answers are sent to it; of a StoreError, the peer is told."""


class Listing:
    """One answer on its way to a peer."""

    def __init__(self, peer: Peer, pieces: Pieces, cost: int) -> None:
        self._peer = peer
        self._pieces = pieces
        self._put = peer.service.soon
        self._answer: Any = None
        self._begun = False
        peer.outbox.stream(cost, self._begin)

    def _begin(self, slot: Slot) -> None:
        self._slot = slot
        self._put(self._step)

    def _step(self) -> None:
        peer = self._peer
        if peer.reading.ended:
            self._pieces.close()
            return
        if peer.outgoing.unread > WINDOW:
            peer.outgoing.then(lambda: self._put(self._step))
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
        self._peer.outbox.fill(self._slot, data)
