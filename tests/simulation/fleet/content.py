"""The store that all nodes share, with a relay whose messages are lost, repeated and late."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tests.shared_memory import SharedTables

if TYPE_CHECKING:
    from random import Random

    from mainspring.events.relay import Message
    from mainspring.testing import ManualClock


class Content(SharedTables):
    """Keeps each message until somebody delivers it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock.wall)
        self.letters: dict[int, deque[Message]] = {}
        """Terms to what is on its way to the node that has it."""

    def tell(self, term: int, message: Message) -> None:
        """Send a message on its way."""
        if term in self.ears:
            self.letters.setdefault(term, deque()).append(message)

    def deliver(self, term: int, chance: Random | None = None) -> None:
        """Bring a node its next message; by chance it is lost, or comes twice, or a later one is first."""
        letters = self.letters[term]
        number = 1.0
        if chance is not None:
            number = chance.random()
            if number < 0.1:
                letters.rotate(-1)
        message = letters.popleft()
        if not letters:
            del self.letters[term]
        ear = self.ears.get(term)
        if ear is None or 0.1 <= number < 0.25:
            return
        ear(message)
        if 0.25 <= number < 0.35:
            ear(message)
