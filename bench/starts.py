"""Starts of Python with Mainspring: what an import and the list of commands cost."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from measure import Cell, Run, Scale, Side
from servers import environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Contestant, Server

STARTS = 20
APP = "import mainspring; mainspring.App(store='sqlite:///jobs.db')"


def cells(memory: Contestant) -> list[Cell]:
    """Return the cells; each start is another process than the node."""

    def cell(key: str, measure: str, scenario: Callable[[Server, Scale], Run], under: float | None) -> Cell:
        required = "-" if under is None else f"under {under:.0f} ms"
        return Cell(key, measure, required, "ms", (Side("mainspring", memory, scenario),), under=under)

    return [
        cell("start-import", "`import mainspring`, beyond a start of Python", beyond("import mainspring"), 60.0),
        cell("start-app", "the same, and an App on SQLite", beyond(APP), None),
        cell("start-help", "`mainspring --help`", commands, 150.0),
    ]


def beyond(code: str) -> Callable[[Server, Scale], Run]:
    """Return the scenario that starts Python with and without a line of code, in turns."""

    def measure(_server: Server, scale: Scale) -> Run:
        turns = [(_start("-c", code), _start("-c", "pass")) for _ in range(scale.count(STARTS, 5))]
        with_code, without = (statistics.median(column) for column in zip(*turns, strict=True))
        return Run(with_code - without, {"with_ms": with_code, "without_ms": without})

    return measure


def commands(_server: Server, scale: Scale) -> Run:
    """Return the median of starts of ``mainspring --help``."""
    times = [_start("-m", "mainspring", "--help") for _ in range(scale.count(STARTS, 5))]
    return Run(statistics.median(times), {"times_ms": times})


def _start(*arguments: str) -> float:
    """Return the milliseconds of one process."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment())
    return (time.perf_counter() - begun) * 1000
