"""The asyncio protocol of the Gearman port: it parses bytes into messages and calls their handlers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from mainspring.access.caller import LOCAL, Role, caller_of_port
from mainspring.faces.gearman import administration, clients, decide_packets, worker_reports, workers
from mainspring.faces.gearman.guard import PACKETS, Check
from mainspring.faces.gearman.peer import Peer
from mainspring.faces.gearman.peers import ENDED
from mainspring.faces.gearman.worker_reports import settle
from mainspring.jobs.model import Priority
from mainspring.loop_shares import CROWDED_SLICE
from mainspring.wire.gearman_protocol import BAD, FATAL, OVERSIZED, TEXT, Type, response

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Caller
    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.wire.gearman_protocol import Message

    Handler = Callable[[Peer, list[bytes]], None]

_BACKGROUND: dict[int, int] = {
    Type.SUBMIT_JOB_BG: Priority.NORMAL,
    Type.SUBMIT_JOB_HIGH_BG: Priority.HIGH,
    Type.SUBMIT_JOB_LOW_BG: Priority.LOW,
}
_SUBMIT = int(Type.SUBMIT)


def _bad(peer: Peer, args: list[bytes]) -> None:
    peer.outbox.send(response(Type.ERROR, *args))


def _fatal(peer: Peer, args: list[bytes]) -> None:
    peer.outbox.send(response(Type.ERROR, *args))
    peer.end()


HANDLERS: dict[int, Handler] = {
    **clients.HANDLERS,
    **workers.HANDLERS,
    **clients.EXTENDED_HANDLERS,
    **workers.EXTENDED_HANDLERS,
    **decide_packets.HANDLERS,
    **worker_reports.HANDLERS,
    Type.SETTLE: settle,
    TEXT: administration.command,
    BAD: _bad,
    FATAL: _fatal,
    OVERSIZED: workers.oversized,
}
"""The handlers of all messages except submissions, which are gathered in batches."""
MESSAGES: Final = frozenset((*HANDLERS, *_BACKGROUND, _SUBMIT))
"""All messages that have an effect. Each one is declared in `guard.PACKETS`."""
if PACKETS.keys() != MESSAGES:
    raise TypeError(f"guard.PACKETS lacks, or has without a handler: {sorted(MESSAGES ^ PACKETS.keys())}")

REPORTS: Final = frozenset(kind for kind, check in PACKETS.items() if check in {Check.DELIVERY, Check.DECISION})
"""The messages of a worker about what it has run."""


TLS_REQUIRED = response(Type.ERROR, b"TLS_REQUIRED", b"this port speaks TLS")
"""The answer to a plain-text client on a TLS port, in place of a handshake."""
_TOO_MANY_CONNECTIONS = response(Type.ERROR, b"TOO_MANY_CONNECTIONS", b"this server accepts no more connections")


class GearmanProtocol(asyncio.Protocol):
    """One connection; ``peer`` is its remote end.

    ``namespace`` is that of the port, if it has one, and ``caller`` the origin of its requests until a token replaces it.
    """

    def __init__(self, face: GearmanFace, namespace: str | None = None, caller: Caller | None = None) -> None:
        self._face = face
        if caller is None:
            caller = LOCAL if namespace is None else caller_of_port(namespace, Role.DEVELOPER)
        self.peer = Peer(face, self._handle, caller, namespace)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the peer of a new connection, or refuse it."""
        # uvloop's transports are none of asyncio's by class.
        self._transport = cast("asyncio.Transport", transport)
        self.peer.connected(self._transport)
        if not self._face.admit(self.peer):
            self.peer.outgoing.write(_TOO_MANY_CONNECTIONS)
            self.peer.close()

    def data_received(self, data: bytes) -> None:
        """Handle the messages of one read, for as long as the peer's slice lasts."""
        if self.peer.silence.since_us:
            self.peer.silence.end()
        self.peer.reading.receive(data, self.peer.wire.receive)

    def _handle(self, messages: list[Message]) -> None:
        """Handle messages, with runs of background submits as one batch each.

        One read can contain seconds of work and requests for answers of any size. The rest is therefore deferred when the slice
        has passed or reading was paused.
        """
        peer = self.peer
        submits = peer.submits
        reading = peer.reading
        reasons = reading.reasons
        monotonic = peer.service.clock.monotonic
        now = monotonic()
        crowded = now < reading.share.shares.crowded_until
        end = now + (CROWDED_SLICE if crowded else self._face.settings.slice)
        if not peer.may_change:
            peer.may_change = any(kind != TEXT for kind, _ in messages)
        left = iter(messages)
        for kind, args in left:
            if peer.guard is not None and peer.guard.refuses(peer, kind, args):
                if reading.finished:
                    break
                continue
            priority = _BACKGROUND.get(kind)
            if priority is not None:
                submits.background(priority, args)
                if not crowded:
                    continue
            elif kind == _SUBMIT:
                clients.submit(peer, args)
                if not crowded:
                    continue
            else:
                if submits.batch:
                    submits.flush()
                HANDLERS[kind](peer, args)
                if reading.finished:
                    break
            if reasons or monotonic() > end:
                reading.defer(left)
                break
        if submits.batch:
            submits.flush()

    def eof_received(self) -> bool:
        """Answer the pending requests of a peer that only reads from now on (``echo status | nc``), then close.

        A worker ends here, whatever its requests wait for. The connection ends after `peer.ENDING_LIMIT` at the latest.
        """
        self._take_reports()
        if self._transport.get_extra_info("ssl_object") is not None:
            self.peer.close(ENDED)
            return False  # TLS has no half-closed connections
        self.peer.sends_no_more()
        return True

    def _take_reports(self) -> None:
        """Handle the reports that a worker has sent before its end, although they were deferred: its jobs go to others now."""
        peer = self.peer
        for kind, args in peer.reading.take(REPORTS):
            if peer.guard is None or not peer.guard.refuses(peer, kind, args):
                HANDLERS[kind](peer, args)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the disconnected peer."""
        del exc
        self._face.remove(self.peer)
        self.peer.outgoing.lost()
        self._take_reports()
        self.peer.lost()

    def pause_writing(self) -> None:
        """Stop writing, because the transport's buffer is full."""
        self.peer.outgoing.stop()

    def resume_writing(self) -> None:
        """Write again."""
        self.peer.outgoing.resume()
