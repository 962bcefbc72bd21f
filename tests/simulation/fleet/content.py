"""The store that all nodes share, with a relay whose messages may be lost, repeated and delayed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tests.shared_memory import SharedTables

if TYPE_CHECKING:
    from random import Random

    from mainspring.events import Message
    from mainspring.testing import ManualClock


class Content(SharedTables):
    """Tables that keep each message until the simulation delivers it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock.wall)
        self.messages: dict[int, deque[Message]] = {}
        """Undelivered messages, by the term of their node."""

    def tell(self, term: int, message: Message) -> None:
        """Queue a message for a term."""
        if term in self.receivers:
            self.messages.setdefault(term, deque()).append(message)

    def deliver(self, term: int, chance: Random | None = None) -> None:
        """Deliver the next message of a node; with ``chance`` it may be lost, repeated, or overtaken by a later one."""
        messages = self.messages[term]
        number = 1.0
        if chance is not None:
            number = chance.random()
            if number < 0.1:
                messages.rotate(-1)
        message = messages.popleft()
        if not messages:
            del self.messages[term]
        receiver = self.receivers.get(term)
        if receiver is None or 0.1 <= number < 0.25:
            return
        receiver(message)
        if 0.25 <= number < 0.35:
            receiver(message)
