"""When a peer is read from: not while it has too much under way, and never for longer than its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from mainspring.clock import Clock
    from mainspring.jobs.timers import Timers
    from mainspring.wire.gearman.connection import Message

UNREAD = "unread"
"""The reason to pause that is the peer's own: it does not read its answers."""
_TURN = "turn"


class Reading:
    """Hands what was read to ``handle``, which may `keep` a rest of it for later.

    Reading is paused for reasons, each of which is given once and taken back once, and while there is a rest.
    """

    __slots__ = ("_clock", "_handle", "_reasons", "_rest", "_timers", "_transport", "ended", "heard")

    def __init__(self, handle: Callable[[list[Message]], None], timers: Timers, clock: Clock) -> None:
        self._transport: asyncio.Transport
        self.heard = 0.0
        """Monotonic time of the last bytes, or of the time when they could have come again."""
        self._handle = handle
        self._timers = timers
        self._clock = clock
        self._reasons: set[str] = set()
        self._rest: list[Message] = []
        self.ended = False
        """The connection ends: nothing is handled any more."""

    def connect(self, transport: asyncio.Transport) -> None:
        """Read from this transport."""
        self._transport = transport
        self.heard = self._clock.monotonic()

    # ---- what was read ----

    def take(self, messages: list[Message]) -> None:
        """Handle what one read has brought, or put it behind what is left of the last one."""
        self.heard = self._clock.monotonic()
        if self._rest:
            self._rest += messages  # a TLS transport may have had it already when it was paused
        else:
            self._handle(messages)

    def keep(self, messages: Iterable[Message]) -> None:
        """Leave messages for the next turn, once the others had theirs and nothing pauses it any more."""
        self._rest = list(messages)
        if self._rest and not self._reasons:
            self._transport.pause_reading()
            self._next_turn()

    def _next_turn(self) -> None:
        self._reasons.add(_TURN)
        self._timers.at(self._clock.monotonic(), self._go_on)

    def _go_on(self) -> None:
        self._reasons.discard(_TURN)
        if self._reasons:
            return
        rest, self._rest = self._rest, []
        self._handle(rest)
        if not self._reasons and not self.ended:
            self._transport.resume_reading()

    # ---- reasons not to read ----

    @property
    def paused(self) -> bool:
        """Whether nothing is handled now."""
        return bool(self._reasons)

    def paused_for(self, why: str) -> bool:
        """Say whether this is a reason at the moment."""
        return why in self._reasons

    @property
    def held_up(self) -> bool:
        """Whether nothing is read for another reason than that the peer does not read itself."""
        return bool(self._reasons - {UNREAD})

    def pause(self, why: str, *, paused: bool) -> None:
        """Stop reading for a reason, or go on once the last reason is gone."""
        if paused:
            if not self._reasons and not self.ended:
                self._transport.pause_reading()
            self._reasons.add(why)
        elif why in self._reasons:
            self._reasons.discard(why)
            if not self._reasons and not self.ended:
                self.heard = self._clock.monotonic()  # as far as one would have listened
                if self._rest:
                    self._next_turn()
                else:
                    self._transport.resume_reading()

    def end(self) -> None:
        """Handle nothing any more: the connection ends."""
        self.ended = True
        self._rest = []
