"""Clients and workers of all kinds beside the attacks: what is acknowledged to them has to succeed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from tests.interop.packets import encode
from tests.system.actors import (
    FUNCTIONS,
    PATIENCE,
    RESULT,
    Actor,
    Addresses,
    Client,
    ForegroundClient,
    Pace,
    PlainWorker,
    StreamingWorker,
    Submitter,
)
from tests.system.extension import More
from tests.system.ledger import LonersLedger
from tests.system.servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.extension import ExtensionPeer
    from tests.system.servers import Server

ENDS: Final = 60.0
"""Seconds in which the last jobs have ended."""
PACE: Final = Pace(rests=(0.05, 0.1), works=(0.0, 0.0, 0.01, 0.05))


class Patron(Client):
    """Submits background jobs, and asks for their results, on one connection after the other, until it has them all."""

    def __init__(self, name: str, addresses: Addresses, ledger: LonersLedger, pace: Pace, seed: str) -> None:
        super().__init__(name, addresses, ledger, pace, seed)
        self.open: set[bytes] = set()
        """Acknowledged jobs without a result so far."""

    def finished(self) -> bool:
        return self.addresses.over or (self.addresses.ending and not self.open)

    def act(self, peer: ExtensionPeer) -> None:
        peer.extend()
        peer.write(b"".join(encode(More.WAIT, handle) for handle in self.open))
        while self.stays():
            if not self.addresses.ending:
                self._submit(peer)
            while self.open and self.stays():
                self._receive(peer)

    def _submit(self, peer: ExtensionPeer) -> None:
        count = self.random.choice([1, 1, 4, 16])
        function = self.random.choice(FUNCTIONS)
        peer.write(encode(More.SUBMIT, function, b"", b'{"wait": true}', b"payload") * count)
        submitted = 0
        while submitted < count:
            submitted += self._receive(peer)

    def _receive(self, peer: ExtensionPeer) -> bool:
        """Read a packet; tells whether it has acknowledged a job."""
        packet = peer.next()
        handle = packet.arguments[0]
        if packet.kind is More.SUBMITTED:
            self.open.add(handle)
            self.ledger.accept(handle, b"")
            return True
        assert packet.kind is More.RESULT, packet
        if packet.arguments[1] != b"succeeded" or packet.arguments[4] != RESULT:
            self.ledger.break_promise(f"{packet} is the result of an acknowledged job")
        self.open.discard(handle)
        self.ledger.note("fulfilled")
        return False


CAST: Final[tuple[tuple[type[Actor], int], ...]] = (
    (Patron, 2),
    (Submitter, 1),
    (ForegroundClient, 1),
    (PlainWorker, 2),
    (StreamingWorker, 1),
)


class Load:
    """All of them, on one server."""

    def __init__(self, server: Server) -> None:
        self.ledger = LonersLedger()
        self._addresses = Addresses()
        self._addresses.put("n1", server.port)
        self._actors = [
            kind(f"{kind.__name__} {number}", self._addresses, self.ledger, PACE, "hostile")
            for kind, count in CAST
            for number in range(count)
        ]

    def begin(self) -> None:
        """Let them do what they do."""
        for actor in self._actors:
            actor.start()

    def assert_served(self) -> None:
        """Let clients end, and say that each of their acknowledged jobs has succeeded."""
        self._addresses.ending = True
        patrons = [actor for actor in self._actors if isinstance(actor, Patron)]
        eventually(lambda: not any(patron.is_alive() for patron in patrons), "all jobs end", ENDS)
        self.end()
        assert [actor.defect for actor in self._actors if actor.defect is not None] == []
        assert self.ledger.violations == []
        assert self.ledger.counts["fulfilled"] > 0

    def end(self) -> None:
        """Nobody is needed any more."""
        self._addresses.end()
        for actor in self._actors:
            if actor.ident is not None:
                actor.join(PATIENCE)


@contextlib.contextmanager
def load(server: Server) -> Iterator[Load]:
    """Run them during the block."""
    everybody = Load(server)
    everybody.begin()
    try:
        yield everybody
    finally:
        everybody.end()
