"""The outgoing bytes of one peer, of which the transport holds only a window.

A transport may copy bytes that it cannot send, and TLS encrypts them first: a result that forty peers do not read would be in
memory forty times. Bytes that the transport cannot send soon therefore stay here, by reference, and are written in slices.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

GATHERED_BYTES: Final = 65_536
"""Bytes that one call of the transport gets of several small packets."""
TRANSPORT_WINDOW: Final = 262_144
"""Bytes that the transport may hold before further bytes stay here; also the size of a slice."""


class Outgoing:
    """Writes to a transport in the order of the calls.

    Above ``limit`` queued bytes ``pressure(True)`` is called, and ``pressure(False)`` once a quarter of that is queued.
    """

    __slots__ = (
        "_closing",
        "_gathered",
        "_gathered_bytes",
        "_limit",
        "_next",
        "_pressure",
        "_queue",
        "_stopped",
        "_transport",
        "_waiting",
        "full",
    )

    def __init__(self, limit: int, pressure: Callable[[bool], None]) -> None:
        self._limit = limit
        self._pressure = pressure
        self._transport: asyncio.Transport | None = None
        self._queue: deque[tuple[bytes | memoryview, object]] = deque()
        self._waiting = 0
        self._stopped = False
        self._closing = False
        self._next: Callable[[], None] | None = None
        self._gathered: list[bytes] | None = None
        """Packets for one call of the transport; None: each packet is written at once."""
        self._gathered_bytes = 0
        self.full = False

    def connect(self, transport: asyncio.Transport) -> None:
        """Write to this transport."""
        self._transport = transport
        transport.set_write_buffer_limits(high=TRANSPORT_WINDOW)

    @property
    def unread(self) -> int:
        """Return the number of bytes that the peer has not received yet."""
        transport = self._transport
        return self._waiting + (transport.get_write_buffer_size() if transport is not None else 0)

    def write(self, data: bytes, owner: object = None) -> None:
        """Send bytes. ``owner`` is kept while they are queued here."""
        gathered = self._gathered
        if gathered is not None:
            self._gathered_bytes += len(data)
            if owner is None and self._gathered_bytes <= GATHERED_BYTES:
                gathered.append(data)
                return
            self._write_gathered()
        transport = self._transport
        if transport is None:
            return
        if not self._stopped and not self._queue and len(data) <= TRANSPORT_WINDOW:
            transport.write(data)
            return
        self._queue.append((data, owner))
        self._waiting += len(data)
        if not self._stopped:
            self._feed()
        if not self.full and self._waiting > self._limit:
            self.full = True
            self._pressure(True)

    def gather(self, until: Callable[[Callable[[], None]], None]) -> None:
        """Write further packets together, because each call of the transport is a call of the system.

        ``until`` gets a function that writes them, and calls it soon, perhaps at once.
        """
        if self._gathered is None:
            self._gathered = []
            until(self._write_gathered)

    def _write_gathered(self) -> None:
        gathered, self._gathered = self._gathered, None
        self._gathered_bytes = 0
        if gathered:
            self.write(b"".join(gathered))

    def stop(self) -> None:
        """Write no more to the transport, because its buffer is full."""
        self._stopped = True

    def resume(self) -> None:
        """Write to the transport again."""
        self._stopped = False
        self._feed()
        following, self._next = self._next, None
        if following is not None:
            following()

    def when_writable(self, following: Callable[[], None]) -> None:
        """Call a function when the transport accepts more; a new function replaces the previous one."""
        self._next = following

    def _feed(self) -> None:
        queue, transport = self._queue, self._transport
        if transport is None:
            return
        while queue and not self._stopped:
            data, owner = queue.popleft()
            if len(data) > TRANSPORT_WINDOW:
                view = memoryview(data)
                queue.appendleft((view[TRANSPORT_WINDOW:], owner))
                data = view[:TRANSPORT_WINDOW]
            self._waiting -= len(data)
            transport.write(data)
        if self._closing and not queue:
            transport.close()
        if self.full and self._waiting * 4 <= self._limit:
            self.full = False
            self._pressure(False)

    def close(self) -> None:
        """End the connection once everything is written."""
        self._write_gathered()
        self._closing = True
        if self._transport is not None and not self._queue:
            self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def lost(self) -> None:
        """Discard everything, because the connection has ended."""
        self._transport = None
        self._next = self._gathered = None
        self._queue.clear()
        self._waiting = 0
