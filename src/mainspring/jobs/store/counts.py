"""How many jobs there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.storage.operation import Operation
from mainspring.storage.phases import Phase
from mainspring.storage.query import Query

if TYPE_CHECKING:
    from collections.abc import Sequence


class Count(Operation):
    """Read the counts. Outcome: ``dict[tuple[bytes, int, int], int]``: by function, state and priority.

    Held jobs are counted as LEASED, whether or not they are recorded as running.
    """

    __slots__ = ()

    phase = Phase.READ
    reads = True


class CountLive(Operation):
    """Read how many jobs of some functions have not ended, with all that came before. Outcome: ``Counted``."""

    __slots__ = ("functions",)

    phase = Phase.READ
    reads = True

    def __init__(self, functions: Sequence[bytes]) -> None:
        super().__init__()
        self.functions = functions
        self.rows = len(functions)


class ShowLive(Query["Counted"], frozen=True):
    """Read how many jobs of all functions have not ended, page by page, for those who look: who counts from there on, names them.

    The functions are all that the store has ever known, in an order of its own. A page costs its length, however many there are,
    and is empty where all jobs of its functions have ended.
    """

    after: bytes = b""
    limit: int = 1000


def numbered(place: bytes) -> int:
    """Return the number that a place is in most stores: clients hand places back, and what is none stands for the beginning."""
    return int(place) if place.isdigit() and len(place) <= 9 else 0


class Counted(NamedTuple):
    """The outcome of CountLive, and the answer to ShowLive."""

    counts: dict[tuple[bytes, int, int], int]
    """By function, state and priority, as that of ``Count``, without zeros."""
    next: bytes | None = None
    """What the next page comes ``after``: None where this was the last."""
