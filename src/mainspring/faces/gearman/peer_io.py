"""The input and output of one peer, with their limits.

Reading is paused while the peer has too many requests in progress, and limited to one slice at a time. An `Outbox` has the
answers in the order of their requests, although some of them wait for the store. `Outgoing` has the bytes to the peer, of
which the transport holds only a window.

A transport may copy bytes that it cannot send, and TLS encrypts them first: a result that forty peers do not read would be in
memory forty times. Bytes that the transport cannot send soon therefore stay here, by reference, and are written in slices.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from mainspring.loop_shares import LARGE_READ

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from mainspring.clock import Clock
    from mainspring.loop_shares import LoopShare
    from mainspring.turns_of_loop import Timers
    from mainspring.wire.gearman_protocol import Message

UNREAD = "unread"
"""The reason for a pause that a peer causes by not reading its answers."""
_SLICE = "slice"
_SHARE = "share"


class Reading:
    """Passes messages to ``handle``, which may `defer` the rest of them.

    Reading is paused while there is a reason or a deferred message. Each reason is set once and removed once. After the end of
    what the peer sends, messages are read in spite of a pause (`drain`), and deferred.
    """

    __slots__ = (
        "_clock",
        "_drains",
        "_handle",
        "_rest",
        "_then",
        "_timers",
        "_transport",
        "ended",
        "finished",
        "last_read",
        "reasons",
        "share",
    )

    def __init__(self, handle: Callable[[list[Message]], None], timers: Timers, clock: Clock, share: LoopShare) -> None:
        self._transport: asyncio.Transport
        self.share = share
        """The share of the peer's caller."""
        self.last_read = 0.0
        """Monotonic time of the last bytes, or of the last time that reading resumed."""
        self._handle = handle
        self._timers = timers
        self._clock = clock
        self.reasons: set[str] = set()
        """Why messages are not handled at the moment; always the same set."""
        self._rest: list[Message] = []
        self._drains = False
        self._then: Callable[[], None] | None = None
        self.finished = False
        """Whether no message is handled any more, because the peer sends no more or the connection ends."""
        self.ended = False
        """Whether no more answers are written, either."""

    def use_share(self, share: LoopShare) -> None:
        """Charge work to another share from now on: the peer has another caller or namespace."""
        self.share = share

    def connect(self, transport: asyncio.Transport) -> None:
        """Read from this transport."""
        self._transport = transport
        self.last_read = self._clock.monotonic()

    # ---- what was read ----

    def receive(self, data: bytes, parse: Callable[[bytes], list[Message]]) -> None:
        """Parse one read; handle its messages, or append them to the deferred ones."""
        self.last_read = began = self._clock.monotonic()
        shares = self.share.shares
        charged = shares.charged
        shares.enter(self.share, began)
        messages = parse(data)
        if self.finished:
            return
        if self._rest or (self._drains and self.reasons):
            self._rest += messages  # TLS, too, may deliver bytes during a pause: it has decrypted them before
        else:
            self._handle(messages)
        if len(data) >= LARGE_READ and not self.finished:
            if began < shares.crowded_until:
                self._charge(began, charged)
            if not self.reasons:
                self._stop()
                self._next_turn()

    def _charge(self, began: float, charged: float) -> None:
        """Charge work to the peer's share, and pause while its caller rests. ``charged`` is what all had been charged before."""
        share, now = self.share, self._clock.monotonic()
        share.charge(now - began - (share.shares.charged - charged), now)
        if share.rests(now) and _SHARE not in self.reasons:
            self.pause(_SHARE, paused=True)
            share.when_rested(self._rested, now - began)

    def _rested(self) -> None:
        self.pause(_SHARE, paused=False)

    def defer(self, messages: Iterable[Message]) -> None:
        """Keep messages until other peers were served and no reason for a pause is left."""
        self._rest = list(messages)
        if self._rest and not self.reasons:
            self._stop()
            self._next_turn()

    def _next_turn(self) -> None:
        self.reasons.add(_SLICE)
        self._timers.at(self._clock.monotonic(), self._resume)

    def _resume(self) -> None:
        self.reasons.discard(_SLICE)
        if self.reasons:
            return
        rest, self._rest = self._rest, []
        if rest:
            self._handle(rest)
        if not self._rest and self._then is not None:
            self.when_handled(self._then)
        elif not self.reasons:
            self._go_on()

    def _stop(self) -> None:
        if not self._drains:
            self._transport.pause_reading()

    def _go_on(self) -> None:
        if not (self._drains or self.finished):
            self._transport.resume_reading()

    # ---- the end of the peer's side ----

    def drain(self) -> None:
        """Read what the peer has sent before the end of its side, although reading is paused: its end comes behind that.

        The system has received all of it already, so that its buffer is a bound.
        """
        if not (self.finished or self._drains):
            self._drains = True
            self._transport.resume_reading()

    def take(self, kinds: frozenset[int]) -> list[Message]:
        """Remove deferred messages of some kinds, and return them."""
        taken = [message for message in self._rest if message[0] in kinds]
        if taken:
            self._rest = [message for message in self._rest if message[0] not in kinds]
        return taken

    def when_handled(self, then: Callable[[], None]) -> None:
        """Call a function once no message is deferred, perhaps at once, unless the connection has ended until then."""
        if self._rest:
            self._then = then
        else:
            self._then = None
            if not self.ended:
                then()

    # ---- reasons not to read ----

    def paused_for(self, why: str) -> bool:
        """Return whether this reason is set."""
        return why in self.reasons

    @property
    def paused_by_server(self) -> bool:
        """Return whether reading is paused for another reason than the peer's unread answers."""
        return bool(self.reasons - {UNREAD})

    def pause(self, why: str, *, paused: bool) -> None:
        """Pause reading for a reason, or remove the reason; reading resumes after the last one."""
        if paused:
            if not self.reasons and not self.finished:
                self._stop()
            self.reasons.add(why)
        elif why in self.reasons:
            self.reasons.discard(why)
            if not self.reasons and not self.finished:
                self.last_read = self._clock.monotonic()  # the peer could not be read during the pause
                if self._rest or self._then is not None:
                    self._next_turn()
                else:
                    self._go_on()

    def finish(self) -> None:
        """Handle no more messages; pending answers are still written."""
        self.finished = True
        self._rest = []

    def end(self) -> None:
        """Handle no more messages and write no more answers, because the connection ends."""
        self.finish()
        self.ended = True


class Outstanding:
    """Counts the requests of a peer that wait for the store, and their memory.

    Above ``limit`` requests or ``limit_bytes`` bytes ``pressure(True)`` is called, and ``pressure(False)`` once at most half of
    both is left, so that a peer is not paused and resumed for each request. Results are not counted: the jobs that a worker holds
    bound them, and its heartbeats use the same connection.
    """

    __slots__ = ("_bytes", "_full", "_limit", "_limit_bytes", "_number", "_pressure", "_then")

    def __init__(self, limit: int, limit_bytes: int, pressure: Callable[[bool], None]) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._pressure = pressure
        self._number = self._bytes = 0
        self._full = False
        self._then: Callable[[], None] | None = None

    def when_none(self, then: Callable[[], None]) -> None:
        """Call a function once no request is in progress, perhaps at once."""
        if self._number:
            self._then = then
        else:
            then()

    def add(self, number: int, size: int = 0) -> None:
        """Count requests with a total of ``size`` bytes."""
        self._number += number
        self._bytes += size
        if not self._full and (self._number > self._limit or self._bytes > self._limit_bytes):
            self._full = True
            self._pressure(True)

    def remove(self, number: int, size: int = 0) -> None:
        """Remove requests that are done from the counts."""
        self._number -= number
        self._bytes -= size
        if self._full and self._number * 2 <= self._limit and self._bytes * 2 <= self._limit_bytes:
            self._full = False
            self._pressure(False)
        if self._then is not None and not self._number:
            then, self._then = self._then, None
            then()


class Write(Protocol):
    """Writes bytes, and keeps their owner until they are sent."""

    def __call__(self, data: bytes, owner: object = None, /) -> object:
        """Write bytes."""


class Slot:
    """The place of an answer that is not complete yet."""

    __slots__ = ("begin", "data", "owner", "units")

    def __init__(self, units: int, data: bytes | None = None, owner: object = None) -> None:
        self.units = units
        self.data = data
        self.owner = owner
        self.begin: Callable[[Slot], None] | None = None
        """Called when all earlier answers are written."""


class Outbox:
    """The answers and messages to one peer. While no answer is pending, everything is written at once.

    Pending answers, and the answers behind them, are counted in ``unanswered``.
    """

    __slots__ = ("_slots", "_unanswered", "write")

    def __init__(self, write: Write, unanswered: Outstanding) -> None:
        self._unanswered = unanswered
        self.write = write
        """Writes immediately, out of order: for messages that answer no request."""
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def divert(self, write: Write) -> None:
        """Use another function to write from now on."""
        self.write = write

    def send(self, data: bytes, owner: object = None) -> None:
        """Write after everything that was sent or reserved before. ``owner`` is kept until the data is sent."""
        if self._slots:
            self._slots.append(Slot(1, data, owner))
            self._unanswered.add(1, len(data))
        elif owner is None:
            self.write(data)
        else:
            self.write(data, owner)

    def reserve(self, units: int = 1) -> Slot:
        """Reserve a place for an answer that counts as a number of plain ones."""
        slot = Slot(units)
        self._slots.append(slot)
        self._unanswered.add(units)
        return slot

    def stream(self, units: int, begin: Callable[[Slot], None]) -> None:
        """Reserve a place for an answer that is written in pieces. ``begin`` is called once all earlier answers are written.

        ``write`` writes the pieces, and ``fill`` the last one.
        """
        slot = self.reserve(units)
        if len(self._slots) == 1:
            begin(slot)
        else:
            slot.begin = begin

    def fill(self, slot: Slot, data: bytes) -> None:
        """Complete an answer. It is written once all earlier ones are. Empty data frees the place without an answer."""
        slot.data = data
        slots = self._slots
        if slots[0] is slot and len(slots) == 1:
            slots.clear()
            if data:
                self.write(data)
            self._unanswered.remove(slot.units)
            return
        self._unanswered.add(0, len(data))
        ready: list[bytes] = []
        units = size = 0
        while slots and (ready_data := slots[0].data) is not None:
            first = slots.popleft()
            units += first.units
            size += len(ready_data)
            if first.owner is None:
                ready.append(ready_data)
                continue
            self._write_all(ready)
            ready = []
            self.write(ready_data, first.owner)
        self._write_all(ready)
        if units:
            self._unanswered.remove(units, size)
            if slots:
                first = slots[0]
                begin, first.begin = first.begin, None
                if begin is not None:
                    begin(first)

    def _write_all(self, ready: list[bytes]) -> None:
        joined = b"".join(ready)
        if joined:
            self.write(joined)


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
