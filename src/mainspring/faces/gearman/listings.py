"""Answers of any length to commands of the administration protocol, built and sent piece by piece.

A piece is built when the peer has read most of the previous ones, and other work runs between two pieces. A long answer therefore
delays no other peer, whatever its duration or length.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from mainspring.errors import StoreError
from mainspring.faces.gearman.outgoing import TRANSPORT_WINDOW
from mainspring.wire.gearman import admin

if TYPE_CHECKING:
    from mainspring.faces.gearman.outbox import Slot
    from mainspring.faces.gearman.peer import Peer

StoreRequest = Callable[[Callable[[Any], None]], None]
"""Calls a function with the result of a request, at once or later."""
Pieces = Generator[bytes | StoreRequest, Any, None]
"""Yields pieces of an answer, and requests, whose results are sent to it. A StoreError is answered with an error."""


class Listing:
    """One answer that is being sent to a peer."""

    def __init__(self, peer: Peer, pieces: Pieces, cost: int) -> None:
        self._peer = peer
        self._pieces = pieces
        self._put = peer.service.soon
        self._answer: Any = None
        self._has_begun = False
        peer.outbox.stream(cost, self._begin)

    def _begin(self, slot: Slot) -> None:
        self._slot = slot
        self._put(self._step)

    def _step(self) -> None:
        peer = self._peer
        if peer.reading.ended:
            self._pieces.close()
            return
        if peer.outgoing.unread > TRANSPORT_WINDOW:
            peer.outgoing.when_writable(lambda: self._put(self._step))
            return
        answer, self._answer = self._answer, None
        if isinstance(answer, StoreError):
            self._fail(answer)
            return
        try:
            piece = self._pieces.send(answer)
        except StopIteration:
            self._end(admin.LIST_END)
            return
        if callable(piece):
            piece(self._answered)
        else:
            self._has_begun = True
            peer.outbox.write(piece)
            self._put(self._step)

    def _answered(self, answer: Any) -> None:
        self._answer = answer
        self._put(self._step)

    def _fail(self, error: StoreError) -> None:
        """Answer with an error. If part of the answer is sent, close the connection before the last line, to show the loss."""
        if self._has_begun:
            self._peer.close()
        else:
            self._end(f"ERR STORE {error}\r\n".encode())

    def _end(self, data: bytes) -> None:
        self._peer.outbox.fill(self._slot, data)
