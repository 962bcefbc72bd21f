"""Connections without sockets: bytes wait until the simulation delivers them, split at any place."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.wire.gearman_protocol import ARGUMENTS, HEADER, HEADER_SIZE, RES, TEXT

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from mainspring.access.caller import Caller
    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.faces.gearman.peer import Peer

Packet = tuple[int, list[bytes]]


class Loop(Protocol):
    """The loop of a node."""

    def call_soon(self, function: Callable[[], None]) -> object: ...


class End(Enum):
    """The ways in which a peer ends its side of a connection."""

    RESET = "its process was killed: what it has sent may be lost"
    CLOSE = "it has sent FIN, and reads nothing more"
    HALF = "it has sent FIN, and reads on"


class Side(Protocol):
    """The life of a node, with its ends of wires."""

    wires: list[Wire]

    @property
    def face(self) -> GearmanFace: ...

    @property
    def loop(self) -> Loop: ...


class Wire(asyncio.Transport):
    """One connection with both of its ends; ``see`` receives every packet at the moment when the server writes it."""

    def __init__(
        self,
        life: Side,
        see: Callable[[int, list[bytes]], None],
        namespace: str | None = None,
        caller: Caller | None = None,
    ) -> None:
        """``namespace`` is that of the port, and ``caller`` the origin of its requests."""
        super().__init__()
        self._life = life
        self._see = see
        self.to_server = bytearray()
        self.to_peer: deque[Packet] = deque()
        self.paused = False
        self._unfinished = b""
        """The first part of a packet that the server has written partly."""
        self.unsent = 0
        """Bytes that the peer has not read, as the server counts them."""
        self.left: End | None = None
        """How the peer has ended its side."""
        self.half_open = False
        """Whether the server has received FIN, and keeps its side open."""
        self.closed = False
        """Whether the server has closed its side by itself, after the last answer."""
        self.over = False
        """Whether the server has no connection any more."""
        self._was_refused = False
        """Whether the machine of a peer that reads nothing more has refused a packet, which the server can notice only later."""
        self.protocol = GearmanProtocol(life.face, namespace, caller)
        self.peer = self.protocol.peer
        self.protocol.connection_made(self)

    # ---- the peer's end ----

    def send(self, data: bytes) -> None:
        if not self.over:
            self.to_server += data

    def leave(self, how: End) -> None:
        """End the peer's side."""
        self.left = how

    # ---- delivery ----

    @property
    def ends(self) -> bool:
        """Return whether the server has not received the end of the peer's side yet, and can."""
        if self.left is None or self.half_open or self.over:
            return False
        return self.left is End.RESET or not self.paused  # FIN comes after all bytes

    def deliver_end(self, chance: Random) -> None:
        """Let the server receive the end of the peer's side."""
        if self.left is End.RESET:
            if self.can_deliver and chance.random() < 0.5:
                self.deliver()
            self.end()
            return
        if self.to_server:
            self.deliver()
        if self.ends and not self.to_server:
            self.half_open = True
            if not self.protocol.eof_received():
                self.close()

    @property
    def can_deliver(self) -> bool:
        return bool(self.to_server) and not self.paused and not self.over

    def deliver(self, chance: Random | None = None) -> None:
        """Deliver bytes to the server: all, or with ``chance`` a random number."""
        size = len(self.to_server)
        if chance is not None and chance.random() < 0.2:
            size = chance.randint(1, size)
        data = bytes(self.to_server[:size])
        del self.to_server[:size]
        self.protocol.data_received(data)

    def end(self) -> None:
        """Notify the server of the end of the connection."""
        if not self.over:
            self.over = True
            self.to_server.clear()
            self._life.wires.remove(self)
            self.protocol.connection_lost(None)

    # ---- the server's end ----

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.over:
            return
        if self.left is not None and self.left is not End.HALF:
            # A server that reads no more from a connection learns of its reset when it writes the next time.
            if self._was_refused:
                self._life.loop.call_soon(self.end)
            self._was_refused = self.half_open
            return
        data = self._unfinished + bytes(data)
        self._unfinished = b""
        at = 0
        while at < len(data):
            if RES.startswith(data[at : at + 4]) and len(data) - at < HEADER_SIZE:
                break
            if not data.startswith(RES, at):
                self._see(TEXT, [data[at:]])
                self.to_peer.append((TEXT, [data[at:]]))
                return
            _, kind, size = HEADER.unpack_from(data, at)
            if len(data) - at < HEADER_SIZE + size:
                break
            body = data[at + HEADER_SIZE : at + HEADER_SIZE + size]
            count = ARGUMENTS[kind]
            args = body.split(b"\0", count - 1) if count else []
            assert len(args) == count
            self._see(kind, args)
            self.to_peer.append((kind, args))
            at += HEADER_SIZE + size
        self._unfinished = data[at:]

    def close(self) -> None:
        self.closed = True
        self._life.loop.call_soon(self.end)

    def abort(self) -> None:
        self._life.loop.call_soon(self.end)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def wait_for_answers(peer: Peer) -> None:
    """Be a fault in place of ``Peer.sends_no_more``: a worker that gets no answer stays one on a half-open connection."""
    peer.reading.finish()
    if not peer.outbox:
        peer.close()
