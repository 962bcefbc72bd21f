"""Streams of changes to a client, whatever the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Shared:
    """A value for many feeds, which is encoded once: all clients get the same bytes."""

    __slots__ = ("_encoded", "_value")

    def __init__(self, value: object) -> None:
        self._value = value
        self._encoded: dict[str, bytes] = {}

    def encoded(self, event: str, encode: Callable[[str, object], bytes]) -> bytes:
        """Return the bytes of an event with this value. All feeds pass the same ``encode``."""
        found = self._encoded.get(event)
        if found is None:
            found = self._encoded[event] = encode(event, self._value)
        return found


class Feed(Protocol):
    """Takes the events of one stream. No method waits: a feed drops events that a slow client cannot take."""

    def replace(self, event: str, value: object) -> None:
        """Send the newest state of something, or a `Shared` one; an unsent earlier one of the same name is dropped."""

    def append(self, event: str, value: object, place: str = "") -> None:
        """Send an event that may not be dropped. If too many are unsent, the stream ends, and its client connects again.

        A client that has got ``place`` gives it back then (``Last-Event-ID``).
        """

    @property
    def has_room(self) -> bool:
        """Whether the client has read enough to get more: a stream that reads a store waits for it."""

    def end(self) -> None:
        """End the stream once all events are sent."""
