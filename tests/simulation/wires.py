"""Connections without sockets: bytes wait until the simulation delivers them, split at any place."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from mainspring.faces.gearman.protocol import GearmanProtocol
from mainspring.wire.gearman.connection import TEXT
from mainspring.wire.gearman.packets import ARGUMENTS, HEADER, HEADER_SIZE, RES

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from mainspring.faces.gearman.face import GearmanFace

    from .clockwork import Clockwork

Packet = tuple[int, list[bytes]]


class Side(Protocol):
    """The life of a node, with its ends of wires."""

    face: GearmanFace
    loop: Clockwork
    wires: list[Wire]


class Wire(asyncio.Transport):
    """One connection with both of its ends; ``see`` receives every packet at the moment when the server writes it."""

    def __init__(self, life: Side, see: Callable[[int, list[bytes]], None]) -> None:
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
        self.left = False
        """Whether the peer has closed its end."""
        self.over = False
        """Whether the server has closed its end."""
        self.protocol = GearmanProtocol(life.face)
        self.peer = self.protocol.peer
        self.protocol.connection_made(self)

    # ---- the peer's end ----

    def send(self, data: bytes) -> None:
        if not self.over:
            self.to_server += data

    def leave(self) -> None:
        self.left = True

    # ---- delivery ----

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
            self.over = self.left = True
            self.to_server.clear()
            self._life.wires.remove(self)
            self.protocol.connection_lost(None)

    # ---- the server's end ----

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.over:
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
        self._life.loop.call_soon(self.end)

    abort = close

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
