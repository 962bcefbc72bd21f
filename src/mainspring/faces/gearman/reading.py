"""Reading from a peer: paused while it has too many requests in progress, and limited to its share of the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.loop_shares import LARGE_READ

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from mainspring.clock import Clock
    from mainspring.jobs.timers import Timers
    from mainspring.loop_shares import LoopShare
    from mainspring.wire.gearman.connection import Message

UNREAD = "unread"
"""The reason for a pause that a peer causes by not reading its answers."""
_SLICE = "slice"
_SHARE = "share"


class Reading:
    """Passes messages to ``handle``, which may `defer` the rest of them.

    Reading is paused while there is a reason or a deferred message. Each reason is set once and removed once.
    """

    __slots__ = (
        "_clock",
        "_handle",
        "_rest",
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
        if self._rest:
            self._rest += messages  # TLS may deliver bytes that it decrypted before the pause
        else:
            self._handle(messages)
        if len(data) >= LARGE_READ and not self.finished:
            if began < shares.crowded_until:
                self._charge(began, charged)
            if not self.reasons:
                self._transport.pause_reading()
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
            self._transport.pause_reading()
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
        if not self.reasons and not self.finished:
            self._transport.resume_reading()

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
                self._transport.pause_reading()
            self.reasons.add(why)
        elif why in self.reasons:
            self.reasons.discard(why)
            if not self.reasons and not self.finished:
                self.last_read = self._clock.monotonic()  # the peer could not be read during the pause
                if self._rest:
                    self._next_turn()
                else:
                    self._transport.resume_reading()

    def finish(self) -> None:
        """Handle no more messages; pending answers are still written."""
        self.finished = True
        self._rest = []

    def end(self) -> None:
        """Handle no more messages and write no more answers, because the connection ends."""
        self.finish()
        self.ended = True
