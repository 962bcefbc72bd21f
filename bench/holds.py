"""The cost of slots of resources: jobs that take and give back one each, compared with the same jobs without."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import python_api
from admin import connect, counts
from measure import Cell, Run, Scale, Side
from servers import StartError

from postgres import ServerOnPostgres

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Contestant, Server

APP = Path(__file__).with_name("holds_app.py")
CONCURRENCY = 32
FEW = 8
"""Slots for fewer jobs than the worker runs at once: it waits for each group of the store."""
START_SECONDS = 30.0
DECLARED_SECONDS = 1.0
"""After the registration of a worker's functions: it declares what they use then."""


def cells(
    key: str, store: str, contestant: Contestant, wrapped: Callable[[Any], Any] = lambda scenario: scenario
) -> list[Cell]:
    """Return the cells for a store; ``wrapped`` adapts the scenarios to its server."""

    def side(label: str, task: str, slots: int) -> Side:
        return Side(label, contestant, wrapped(JobsPerSecond(task, slots)))

    return [
        Cell(
            key=key,
            measure=f"{store}, Python API, one slot of 1,000 for each job, over 1,000 jobs wait",
            required="0.5 x without resources",
            unit="jobs/s",
            sides=(side("a slot for each job", "held", 1000), side("without", "free", 1000)),
            ratio_to=1,
            at_least=0.5,
        ),
        Cell(
            key=f"{key}-few",
            measure=f"{store}, the same with {FEW} slots",
            required=f"0.5 x at most {FEW} at once by a limit",
            unit="jobs/s",
            sides=(side("a slot for each job", "held", FEW), side("a limit", "limited", FEW)),
            ratio_to=1,
            at_least=0.5,
        ),
    ]


@dataclass(frozen=True)
class JobsPerSecond:
    """Jobs per second of a task of the App, while others wait behind them."""

    task: str
    slots: int

    def __call__(self, server: Server, scale: Scale) -> Run:
        environment = {**python_api.environment(server), "SLOTS": str(self.slots)}
        address = environment["MAINSPRING_SERVER"]
        worker = [sys.executable, "-m", "mainspring", "worker", str(APP), "--server", address]
        worker += ["--concurrency", str(CONCURRENCY), "--processes", "1"]
        log = server.directory / "worker.log"
        with processes.running(worker, log, environment) as process:
            deadline = time.monotonic() + START_SECONDS
            with connect(address) as connection:
                while not counts(connection, "held").workers:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise StartError(f"the worker did not start: {log.read_text()[-500:]}")
                    time.sleep(0.02)
            time.sleep(DECLARED_SECONDS)
            measured = {"node": server.pids()[0], "worker": process.pid}
            if isinstance(server, ServerOnPostgres):
                measured["database"] = server.database.pid
            environment["PROCESSES"] = ",".join(f"{name}={pid}" for name, pid in measured.items())
            command = [sys.executable, str(APP), self.task, str(scale.count(20_000, 2_000))]
            details = processes.figures_of(command, environment)
        return Run(details["rate"], details)
