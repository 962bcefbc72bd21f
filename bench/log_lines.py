"""The cost of logs: jobs per second while other tasks log, compared with the same tasks that log nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import python_api
from generator import LoadError, load
from measure import Cell, Run, Scale, Side
from scenarios import WIDE

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Contestant, Server

HERE = Path(__file__).resolve().parent
TASKS = 16
LINES = 1000
"""Lines a second of all tasks together."""


def cell(
    key: str, store: str, contestant: Contestant, wrapped: Callable[[Any], Any] = lambda scenario: scenario
) -> Cell:
    """Return the cell for a store; ``wrapped`` adapts the scenario to its server."""
    return Cell(
        key=key,
        measure=f"{store}, end to end, 16 workers, window 256, 8 connections, while {TASKS} tasks log {LINES:,} lines a second",
        required="0.95 x tasks that log nothing",
        unit="jobs/s",
        sides=(
            Side("tasks that log", contestant, wrapped(Beside(LINES / TASKS))),
            Side("tasks that log nothing", contestant, wrapped(Beside(0.0))),
        ),
        ratio_to=1,
        at_least=0.95,
        rounds=2,
    )


@dataclass(frozen=True)
class Beside:
    """Jobs per second of the generator beside tasks that log so many lines a second each."""

    lines: float

    def __call__(self, server: Server, scale: Scale) -> Run:
        environment = python_api.environment(server)
        address = environment["MAINSPRING_SERVER"]
        worker = [sys.executable, "-m", "mainspring", "worker", str(HERE / "log_app.py"), "--server", address]
        worker += ["--concurrency", str(TASKS), "--processes", "1", "--grace", "0"]
        with processes.running(worker, server.directory / "worker.log", environment):
            started = processes.figures_of(
                [sys.executable, str(HERE / "log_app.py"), str(TASKS), str(self.lines)], environment
            )
            jobs = scale.count(150_000, 5_000)
            details = load(server, "e2e", jobs=jobs, workers=16, unique="random", **WIDE)
            stored = self._stored(started["handles"][0], environment)
        expected = self.lines * details["seconds"]
        if stored < 0.9 * expected:
            raise LoadError(f"of about {expected:.0f} lines of a task, {stored} are stored")
        return Run(details["rate"], {**details, "lines": stored})

    @staticmethod
    def _stored(handle: str, environment: dict[str, str]) -> int:
        command = [sys.executable, "-m", "mainspring", "jobs", "logs", handle, "--all"]
        return len(processes.output_of(command, environment).splitlines())
