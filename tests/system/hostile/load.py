"""Clients and workers of all kinds that run during the attacks: each acknowledged job must succeed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from tests.interop.packets import encode
from tests.system.actors import (
    ACTOR_TIMEOUT,
    FUNCTIONS,
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
from tests.system.extension import ExtensionKind
from tests.system.ledger import SingleServerLedger
from tests.system.servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.extension import ExtensionPeer
    from tests.system.servers import Server

LAST_JOBS_TIMEOUT: Final = 60.0
"""Seconds within which the last jobs must end."""
PACE: Final = Pace(rests=(0.05, 0.1), works=(0.0, 0.0, 0.01, 0.05))


class ResultClient(Client):
    """Submits background jobs and waits for their results, on one connection after another, until it has all of them."""

    def __init__(self, name: str, addresses: Addresses, ledger: SingleServerLedger, pace: Pace, seed: str) -> None:
        super().__init__(name, addresses, ledger, pace, seed)
        self.open: set[bytes] = set()
        """Acknowledged jobs whose results have not arrived."""

    def finished(self) -> bool:
        return self.addresses.over or (self.addresses.ending and not self.open)

    def act(self, peer: ExtensionPeer) -> None:
        peer.extend()
        peer.write(b"".join(encode(ExtensionKind.WAIT, handle) for handle in self.open))
        while self.stays():
            if not self.addresses.ending:
                self._submit(peer)
            while self.open and self.stays():
                self._receive(peer)

    def _submit(self, peer: ExtensionPeer) -> None:
        count = self.random.choice([1, 1, 4, 16])
        function = self.random.choice(FUNCTIONS)
        peer.write(encode(ExtensionKind.SUBMIT, function, b"", b'{"wait": true}', b"payload") * count)
        submitted = 0
        while submitted < count:
            submitted += self._receive(peer)

    def _receive(self, peer: ExtensionPeer) -> bool:
        """Read a packet, and return whether it acknowledges a job."""
        packet = peer.next()
        handle = packet.arguments[0]
        if packet.kind is ExtensionKind.SUBMITTED:
            self.open.add(handle)
            self.ledger.accept(handle, b"")
            return True
        assert packet.kind is ExtensionKind.RESULT, packet
        if packet.arguments[1] != b"succeeded" or packet.arguments[4] != RESULT:
            self.ledger.break_promise(f"{packet} is the result of an acknowledged job")
        self.open.discard(handle)
        self.ledger.note("fulfilled")
        return False


ACTORS: Final[tuple[tuple[type[Actor], int], ...]] = (
    (ResultClient, 2),
    (Submitter, 1),
    (ForegroundClient, 1),
    (PlainWorker, 2),
    (StreamingWorker, 1),
)


class Load:
    """Actors of all kinds, on one server."""

    def __init__(self, server: Server) -> None:
        self.ledger = SingleServerLedger()
        self._addresses = Addresses()
        self._addresses.add("n1", server.port)
        self._actors = [
            kind(f"{kind.__name__} {number}", self._addresses, self.ledger, PACE, "hostile")
            for kind, count in ACTORS
            for number in range(count)
        ]

    def begin(self) -> None:
        """Start the actors."""
        for actor in self._actors:
            actor.start()

    def assert_served(self) -> None:
        """Let the clients finish, and assert that each acknowledged job has succeeded."""
        self._addresses.ending = True
        clients = [actor for actor in self._actors if isinstance(actor, ResultClient)]
        eventually(lambda: not any(client.is_alive() for client in clients), "all jobs end", LAST_JOBS_TIMEOUT)
        self.end()
        assert [actor.defect for actor in self._actors if actor.defect is not None] == []
        assert self.ledger.violations == []
        assert self.ledger.counts["fulfilled"] > 0

    def end(self) -> None:
        """End the actors."""
        self._addresses.end()
        for actor in self._actors:
            if actor.ident is not None:
                actor.join(ACTOR_TIMEOUT)


@contextlib.contextmanager
def load(server: Server) -> Iterator[Load]:
    """Run the load during the block."""
    running = Load(server)
    running.begin()
    try:
        yield running
    finally:
        running.end()
