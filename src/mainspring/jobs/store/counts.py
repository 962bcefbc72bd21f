"""Operations that count jobs."""

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
    """Count the jobs of some functions that have not ended, including all earlier operations. Outcome: ``Counted``."""

    __slots__ = ("functions",)

    phase = Phase.READ
    reads = True

    def __init__(self, functions: Sequence[bytes]) -> None:
        super().__init__()
        self.functions = functions
        self.rows = len(functions)


class ShowLive(Query["Counted"], frozen=True):
    """Count the live jobs of all functions, page by page, for display. Callers that keep counts use ``CountLive``.

    The functions are all that the store has ever seen, in the store's own order. The cost of a page depends on its length alone.
    A page is empty if all jobs of its functions have ended.
    """

    after: bytes = b""
    limit: int = 1000


class CountDead(Query[dict[bytes, int]], frozen=True):
    """Count the dead letters of some functions. The answer is without zeros."""

    functions: tuple[bytes, ...]


class ShowDead(Query["DeadCounted"], frozen=True):
    """Count the dead letters of a page of all functions: of ``limit`` of them ``after`` a place (empty: the first)."""

    after: bytes = b""
    limit: int = 1000


class DeadCounted(NamedTuple):
    """The outcome of ShowDead."""

    numbers: dict[bytes, int]
    """By function, without zeros."""
    next: bytes | None = None
    """The place ``after`` which the next page begins; None on the last page."""


def numbered(place: bytes) -> int:
    """Return a place as the number that it is in most stores. Clients send places back; an invalid one means the first page."""
    return int(place) if place.isdigit() and len(place) <= 9 else 0


class Counted(NamedTuple):
    """The outcome of CountLive and of ShowLive."""

    counts: dict[tuple[bytes, int, int], int]
    """By function, state and priority, as that of ``Count``, without zeros."""
    next: bytes | None = None
    """The place ``after`` which the next page begins; None on the last page."""
