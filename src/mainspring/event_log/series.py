"""Series of causes: one of many alike must not have one of many events.

A series ends when its causes pause, so that the next cause begins another one. The first cause of a series has an event. Of dead
letters, the 10th, the 100th, the 1000th, and so on, have one as well. Transactions count them in rows that they lock, so no two
nodes record the same event. Nothing is counted while nobody wants the event.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import DEAD_LETTERS, FunctionFields
from mainspring.namespaces import name_text, split

PAUSE_US: Final = 600_000_000
"""Without another dead letter of a function, for the end of its series."""
SHORT_PAUSE_US: Final = 10_000_000
"""The same if then no dead letter is left, because all were retried or deleted. To look costs a read of the counts of jobs, which
is too much for each of many failures in a second."""


class Series(NamedTuple):
    """A series after a transaction."""

    number: int
    """Of causes."""
    before_us: int
    """The time of its last cause before the transaction; 0 if it has begun in the transaction."""

    def may_have_ended(self, last_us: int) -> bool:
        """Return whether one of dead letters has ended if none is left; ``last_us``: when the transaction's last job failed."""
        return self.before_us > 0 and last_us - self.before_us > SHORT_PAUSE_US


def dead_letters_key(function: bytes) -> bytes:
    """Return the key of the dead letters of a function."""
    return b"dead letters of " + function


def dead_letters(function: bytes, number: int = 0) -> NewEvent:
    """Return the event of a series with so many dead letters; the function is given by its key."""
    namespace, name = split(function)
    text = name_text(name)
    return NewEvent(DEAD_LETTERS, namespace, text, text, 0, FunctionFields(number=number))


def has_event(number: int, new: int) -> bool:
    """Return whether one of the ``new`` last ones of so many dead letters is the first, the 10th, the 100th, and so on."""
    before = number - new
    return before == 0 or len(str(number)) > len(str(before))
