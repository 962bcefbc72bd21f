"""One connection through the proxy: two flows of bytes, and the faults applied to them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import NamedTuple

from .traps import Direction, Trap

PIECE = 65_536
HELD_PIECES = 64


class Conditions:
    """The current state of the path, for all connections."""

    def __init__(self) -> None:
        self.latency = 0.0
        self.traps: list[Trap] = []
        self.carried = dict.fromkeys(Direction, 0)
        self.gates = {direction: asyncio.Event() for direction in Direction}
        for gate in self.gates.values():
            gate.set()


class _CutError(Exception):
    """Whether to end the connection at once."""


class _Piece(NamedTuple):
    """Received bytes, none if the sender has ended its side, and the time from which they may be passed on."""

    data: bytes
    due: float


class Conduit:
    """Carries the bytes between a client and the server until both have ended, or it is cut."""

    def __init__(
        self,
        conditions: Conditions,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._conditions = conditions
        self._client = client
        self._server = server
        self._sprung: Trap | None = None
        self._is_forgotten = False

    def forget(self) -> None:
        """Pass nothing on from now on, not even an end: each side looks alive and silent to the other."""
        self._is_forgotten = True

    async def run(self) -> None:
        """Carry bytes until both sides have ended, a trap springs, or this is cancelled; both are closed then."""
        try:
            async with asyncio.TaskGroup() as flows:
                for direction, (reader, _), (_, writer) in (
                    (Direction.TO_SERVER, self._client, self._server),
                    (Direction.TO_CLIENT, self._server, self._client),
                ):
                    pieces: asyncio.Queue[_Piece] = asyncio.Queue(HELD_PIECES)
                    flows.create_task(self._receive(reader, pieces))
                    flows.create_task(self._deliver(direction, pieces, writer))
        except* _CutError:
            pass
        finally:
            for _, writer in (self._client, self._server):
                writer.transport.abort()  # both before any await: this task may be cancelled once more
            await abort(self._client[1])
            await abort(self._server[1])
            if self._sprung is not None:
                self._sprung.spring()

    async def _receive(self, reader: asyncio.StreamReader, pieces: asyncio.Queue[_Piece]) -> None:
        data = b"-"
        while data:
            try:
                data = await reader.read(PIECE)
            except OSError:
                data = b""  # a reset is passed on as an end
            await pieces.put(_Piece(data, time.monotonic() + self._conditions.latency))

    async def _deliver(self, direction: Direction, pieces: asyncio.Queue[_Piece], writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)  # drained is: with the kernel
        while True:
            piece = await pieces.get()
            await asyncio.sleep(piece.due - time.monotonic())
            await self._conditions.gates[direction].wait()
            if self._is_forgotten:
                if not piece.data:
                    return
                continue
            if not piece.data:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            await self._pass_on(direction, piece.data, writer)

    async def _pass_on(self, direction: Direction, data: bytes, writer: asyncio.StreamWriter) -> None:
        ends = False
        for trap in self._conditions.traps:
            data, ends = trap.judge(self, direction, data)
            if ends:
                self._conditions.traps.remove(trap)
                self._sprung = trap
                break
        if data:
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                raise _CutError from None  # the peer is gone
            self._conditions.carried[direction] += len(data)
        if ends:
            raise _CutError


async def abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once, and wait until it is."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
