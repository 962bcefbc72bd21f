"""The commands of a parked run: the recorded ones on the left, those of the replayed code on the right."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from mainspring.api.workflows import ParkingInfo

TOP: Final = 24
ROW: Final = 24
MOST: Final = 100
"""Rows; each has up to six shapes."""
LONGEST: Final = 56
"""Characters of a command."""


class Pair(NamedTuple):
    """The commands at one place; empty: none."""

    y: int
    recorded: str
    code: str
    is_first_difference: bool
    agrees: bool


class Difference(NamedTuple):
    """The drawing."""

    pairs: list[Pair]

    @property
    def height(self) -> int:
        """The height of all."""
        return TOP + ROW * len(self.pairs) + 6


def difference(parking: ParkingInfo) -> Difference | None:
    """Return the drawing; None if the run is parked for another reason than a difference."""
    if not (parking.recorded or parking.code):
        return None
    both = list(zip_longest(parking.recorded, parking.code, fillvalue=""))[:MOST]
    return Difference(
        [
            Pair(TOP + ROW * row, _cut(recorded), _cut(code), row == parking.at, row < parking.at)
            for row, (recorded, code) in enumerate(both)
        ]
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
