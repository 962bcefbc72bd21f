"""What a cell of the table is, and how its contestants take turns."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from generator import LoadError
from servers import Contestant, StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from servers import Server


class NotMeasured(Exception):  # noqa: N818 - not an error: the machine or the installation lacks what the cell needs
    """The cell cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Scale:
    """Whether a run is the full one or the quick one."""

    quick: bool

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Run:
    """One measurement: the figure, and everything else that was observed."""

    figure: float
    details: dict[str, Any]


@dataclass(frozen=True)
class Side:
    """One of the things that a cell compares: a scenario on a fresh server of a contestant."""

    label: str
    contestant: Contestant
    scenario: Callable[[Server, Scale], Run]


@dataclass(frozen=True)
class Cell:
    """One row of the table.

    The first side is what is measured. With `ratio_to`, the ratio of the medians of the first side and of the side of
    that index must reach `at_least`; without, the first side's median itself must reach `at_least` or stay under
    `under`. A cell with neither bound informs only. Further sides are there to compare with.
    """

    key: str
    measure: str
    required: str
    unit: str
    sides: tuple[Side, ...]
    ratio_to: int | None = None
    at_least: float | None = None
    figure_at_least: float | None = None
    """What the first side's median must reach as well, where `at_least` bounds a ratio."""
    under: float | None = None
    rounds: int = 1
    """Turns for each repetition: more where a turn is short and the scheduler makes it vary."""
    once: bool = False
    """Takes so long that one turn must do."""
    full_only: bool = False
    one_core: bool = False
    """Server and generator share one core: the figure is their processor time alone, without waking sleeping cores."""


@dataclass
class Outcome:
    """A cell, its runs by side, and why sides could not be measured."""

    cell: Cell
    runs: list[list[Run]]
    problems: dict[int, str] = field(default_factory=dict)
    failed: bool = False

    def median(self, side: int) -> float | None:
        """Return the median of a side's figures; None where the side was not measured."""
        if side in self.problems or not self.runs[side]:
            return None
        return statistics.median(run.figure for run in self.runs[side])

    @property
    def ratio(self) -> float | None:
        if self.cell.ratio_to is None:
            return None
        measured, other = self.median(0), self.median(self.cell.ratio_to)
        return measured / other if measured is not None and other else None

    @property
    def met(self) -> bool | None:
        """Whether the requirement is met; None where there is none or nothing was measured."""
        value = self.median(0) if self.cell.ratio_to is None else self.ratio
        if value is None:
            return None
        if self.cell.at_least is not None:
            return value >= self.cell.at_least and (self.median(0) or 0) >= (self.cell.figure_at_least or 0)
        return value < self.cell.under if self.cell.under is not None else None


def measure(cell: Cell, scale: Scale, repeat: int, directory: Path) -> Outcome:
    """Let the cell's sides take turns, A B A B…, so that a slow spell of the machine meets all of them.

    A side that cannot be measured takes no further turn; the others go on.
    """
    outcome = Outcome(cell, runs=[[] for _ in cell.sides])
    turns = 1 if cell.once or scale.quick else repeat * cell.rounds
    for index, side in [*enumerate(cell.sides)] * turns:
        if index in outcome.problems:
            continue
        try:
            outcome.runs[index].append(_take_turn(cell, side, scale, directory))
        except NotMeasured as reason:
            outcome.problems[index] = str(reason)
        except (LoadError, StartError, OSError) as error:
            outcome.problems[index], outcome.failed = str(error), True
    for index, problem in outcome.problems.items():
        print(f"  {cell.key}: {cell.sides[index].label}: {problem}", file=sys.stderr, flush=True)
    return outcome


def _take_turn(cell: Cell, side: Side, scale: Scale, directory: Path) -> Run:
    os.sync()  # what earlier turns left to be written must not be this one's burden
    with _cores(one=cell.one_core), side.contestant.running(directory) as server:
        run = side.scenario(server, scale)
    print(f"  {cell.key}: {side.label}: {run.figure:,.4g} {cell.unit}", file=sys.stderr, flush=True)
    return run


@contextlib.contextmanager
def _cores(*, one: bool) -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    if one:
        os.sched_setaffinity(0, {min(allowed)})  # inherited by everything that is started within
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
