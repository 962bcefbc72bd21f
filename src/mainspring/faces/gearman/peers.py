"""Who is connected to the Gearman ports of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mainspring.faces.gearman.reading import Reading
    from mainspring.jobs.held import Worker
    from mainspring.wire.gearman.connection import Connection


class Connected(Protocol):
    """A peer, as far as the face and the list of workers need it."""

    address: str
    descriptor: int
    client_id: bytes
    reading: Reading
    wire: Connection

    @property
    def worker(self) -> Worker | None:
        """The worker that the peer is."""

    def busy(self) -> bool:
        """Say whether the peer waits for something, or is a worker."""

    def close(self) -> None:
        """End the connection once what was written is out."""


class Peers:
    """The peers of all Gearman ports of a node, in the order in which they came."""

    def __init__(self) -> None:
        self.connected: dict[Connected, None] = {}
        self.ever = 0
        """How many there have been."""
        self._paused = False

    def add(self, peer: Connected) -> None:
        """Take a new peer."""
        self.connected[peer] = None
        self.ever += 1
        if self._paused:
            peer.reading.pause("store", paused=True)

    def remove(self, peer: Connected) -> None:
        """Forget a peer that is gone."""
        self.connected.pop(peer, None)

    def pause(self, paused: bool) -> None:
        """Stop or go on reading from all peers, those to come too: the store cannot keep up."""
        self._paused = paused
        for peer in self.connected:
            peer.reading.pause("store", paused=paused)
