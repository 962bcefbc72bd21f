"""The last fires of a family of schedules: a row for each schedule, a column for each occasion."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mainspring.api.schedules import Run

OCCASIONS: Final = 30
CELL: Final = 24
LEFT: Final = 180
ROW: Final = 24
APART: Final = 8
"""Columns from which on there is room for two times below them."""


class Cell(NamedTuple):
    """One schedule at one occasion."""

    x: int
    y: int
    kind: str
    run: Run


class Label(NamedTuple):
    """The time of a column below it, or of two."""

    x: int
    anchor: str
    text: str


class Family(NamedTuple):
    """The drawing."""

    names: list[str]
    occasions: list[str]
    """Fire times, the oldest first."""
    cells: list[Cell]
    labels: list[Label]

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """The same as rows of a table: each occasion, the newest first, with the state of each schedule; empty: no fire."""
        kinds = {(cell.x, cell.y): cell.kind for cell in self.cells}
        found = [
            (time, [kinds.get((LEFT + CELL * column, ROW * row), "") for row in range(len(self.names))])
            for column, time in enumerate(self.occasions)
        ]
        return found[::-1]

    @property
    def kinds(self) -> list[str]:
        """The states that it has."""
        return sorted({cell.kind for cell in self.cells})

    @property
    def height(self) -> int:
        """The height of all."""
        return ROW * len(self.names) + 22

    @property
    def width(self) -> int:
        """The width of all."""
        return LEFT + CELL * OCCASIONS


def kind_of(run: Run) -> str:
    """Return the state that stands for a fire time."""
    if run.outcome:
        return run.outcome
    if run.state == "skipped":
        return "skipped"
    return "running" if run.started_at else "pending"


def family(fires: Mapping[str, Sequence[Run]], zone: dt.tzinfo) -> Family | None:
    """Return the drawing of the newest fires of each schedule; None if there are none."""
    times = sorted({run.fire_time for runs in fires.values() for run in runs if run.fire_time})[-OCCASIONS:]
    if not times:
        return None
    columns = {time: LEFT + CELL * number for number, time in enumerate(times)}
    cells = [
        Cell(columns[run.fire_time], ROW * row, kind_of(run), run)
        for row, runs in enumerate(fires.values())
        for run in runs
        if run.fire_time in columns
    ]
    return Family(list(fires), times, cells, _labels(times, zone))


def _labels(times: Sequence[str], zone: dt.tzinfo) -> list[Label]:
    """Return the times of the first and the last column."""
    first, last = (dt.datetime.fromisoformat(times[at]).astimezone(zone).strftime("%d %b %H:%M") for at in (0, -1))
    if len(times) < APART:
        return [Label(LEFT, "start", first if len(times) == 1 else f"{first} to {last}")]
    return [Label(LEFT, "start", first), Label(LEFT + CELL * len(times), "end", last)]
