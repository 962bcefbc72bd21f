"""Cells of the table, and the turns that measure them."""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from generator import LoadError
from servers import SOURCES_VARIABLE, Contestant, StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from servers import Server


class NotMeasured(Exception):  # noqa: N818 - not an error: the machine or the installation lacks a requirement of the cell
    """The cell cannot be measured here; the message has the reason."""


@dataclass(frozen=True)
class Scale:
    """The size of a run: full or quick."""

    quick: bool

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Run:
    """One measurement: the figure and all other observations."""

    figure: float
    details: dict[str, Any]


@dataclass(frozen=True)
class Side:
    """One compared item of a cell: a scenario on a fresh server of a contestant."""

    label: str
    contestant: Contestant
    scenario: Callable[[Server, Scale], Run]
    sources: Path | None = None
    """Other sources of Mainspring, for the processes of the side."""


@dataclass(frozen=True)
class Cell:
    """One row of the table.

    The first side is the measured one. With `ratio_to`, the ratio of the medians of the first side and of the side with that
    index, or of the best of several, must be at least `at_least`. Without it, the first side's median must be at least `at_least`
    or less than `under`. A cell without either bound is for information. Further sides are for comparison.
    """

    key: str
    measure: str
    required: str
    unit: str
    sides: tuple[Side, ...]
    ratio_to: int | tuple[int, ...] | None = None
    at_least: float | None = None
    figure_at_least: float | None = None
    """Bound for the first side's median, in addition to the bound of the ratio in `at_least`."""
    under: float | None = None
    rounds: int = 1
    """Turns per repetition: more for short turns, which vary with the scheduler."""
    once: bool = False
    """Take only one turn, because a turn takes long."""
    full_only: bool = False
    one_core: bool = False
    """Run server and generator on one core: the figure is then processor time alone, without wake-ups of sleeping cores."""

    @property
    def less_is_better(self) -> bool:
        return self.under is not None or self.unit in ("s", "ms")

    def compared_with(self, base: Path) -> Cell | None:
        """Return the cell with the same scenario on the Mainspring in `base`; None if it does not measure Mainspring.

        Each must reach 0.97 of the other's speed.
        """
        side = self.sides[0]
        if "mainspring" not in side.contestant.command:
            return None
        sides = (replace(side, label="now"), replace(side, label="base", sources=base / "src"))
        return replace(self, required="0.97 x base", sides=sides, ratio_to=1, at_least=0.97, figure_at_least=None)


@dataclass
class Outcome:
    """A cell, its runs by side, and the reasons for sides that could not be measured."""

    cell: Cell
    runs: list[list[Run]]
    problems: dict[int, str] = field(default_factory=dict)
    failed: bool = False

    def median(self, side: int) -> float | None:
        """Return the median of a side's figures; None if the side was not measured."""
        if side in self.problems or not self.runs[side]:
            return None
        return statistics.median(run.figure for run in self.runs[side])

    @property
    def ratio(self) -> float | None:
        if self.cell.ratio_to is None:
            return None
        to = self.cell.ratio_to
        others = [self.median(side) for side in ((to,) if isinstance(to, int) else to)]
        measured, other = self.median(0), max(filter(None, others), default=None)
        if self.cell.less_is_better:
            measured, other = other, measured
        return measured / other if measured is not None and other else None

    @property
    def met(self) -> bool | None:
        """Whether the requirement is met; None if the cell has none or was not measured."""
        value = self.median(0) if self.cell.ratio_to is None else self.ratio
        if value is None:
            return None
        if self.cell.at_least is not None:
            return value >= self.cell.at_least and (self.median(0) or 0) >= (self.cell.figure_at_least or 0)
        return value < self.cell.under if self.cell.under is not None else None


def measure(cell: Cell, scale: Scale, repeat: int, directory: Path) -> Outcome:
    """Measure the cell's sides in turns, A B B A…, so that a slow period of the machine affects all of them.

    A side that cannot be measured takes no further turns.
    """
    outcome = Outcome(cell, runs=[[] for _ in cell.sides])
    turns = 1 if cell.once or scale.quick else repeat * cell.rounds
    sides = [*enumerate(cell.sides)]
    for index, side in itertools.chain.from_iterable((sides, sides[::-1])[turn % 2] for turn in range(turns)):
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
    os.sync()  # write out the data of earlier turns first
    with _cores(one=cell.one_core), _sources(side.sources), side.contestant.running(directory) as server:
        run = side.scenario(server, scale)
    print(f"  {cell.key}: {side.label}: {run.figure:,.4g} {cell.unit}", file=sys.stderr, flush=True)
    return run


@contextlib.contextmanager
def _cores(*, one: bool) -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    if one:
        os.sched_setaffinity(0, {min(allowed)})  # child processes inherit it
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def _sources(sources: Path | None) -> Iterator[None]:
    before = os.environ.get(SOURCES_VARIABLE)
    if sources is not None:
        os.environ[SOURCES_VARIABLE] = str(sources)  # child processes inherit it
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(SOURCES_VARIABLE, None)
        else:
            os.environ[SOURCES_VARIABLE] = before
