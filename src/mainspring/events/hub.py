"""A hub that publishes events to subscribers of the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Hub:
    """Publishes events to subscribers. Publishers check ``active`` first and create no event without a subscriber."""

    def __init__(self) -> None:
        self._subscribers: dict[Callable[[Any], None], None] = {}
        self.active = False

    def subscribe(self, subscriber: Callable[[Any], None]) -> None:
        """Call a function with each event from now on."""
        self._subscribers[subscriber] = None
        self.active = True

    def unsubscribe(self, subscriber: Callable[[Any], None]) -> None:
        """Stop calling a function."""
        self._subscribers.pop(subscriber, None)
        self.active = bool(self._subscribers)

    def publish(self, event: Any) -> None:
        """Call all subscribers; they must not raise."""
        for subscriber in list(self._subscribers):
            subscriber(event)
