"""The cost of watching work in other systems: memory of a worker, and how even its looks are."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import processes
import python_api
from admin import connect, counts
from measure import Cell, Run, Scale, Side
from servers import StartError

if TYPE_CHECKING:
    from servers import Contestant, Server

APP = Path(__file__).with_name("elsewhere_app.py")
JOBS = 5_000
FEW = 500
SECONDS = 60.0
START_SECONDS = 30.0


def cells(contestant: Contestant) -> list[Cell]:
    """Return the cells."""
    return [
        Cell(
            key="elsewhere-memory",
            measure="SQLite, one worker process watches 5,000 jobs in another system, a look each 30 s: memory over idle",
            required="< 64 MiB",
            unit="MiB",
            sides=(Side("watching", contestant, Watching("memory_mib")),),
            under=64.0,
            once=True,
        ),
        Cell(
            key="elsewhere-pace",
            measure="the same: the most by which a stretch of 3 s has more or fewer looks than the mean",
            required="< 10 %",
            unit="%",
            sides=(Side("watching", contestant, Watching("uneven_percent")),),
            under=10.0,
            once=True,
        ),
    ]


@dataclass(frozen=True)
class Watching:
    """A figure of a worker that watches."""

    figure: str

    def __call__(self, server: Server, scale: Scale) -> Run:
        environment = python_api.environment(server)
        address = environment["MAINSPRING_SERVER"]
        worker = [sys.executable, "-m", "mainspring", "worker", str(APP), "--server", address, "--processes", "1"]
        log = server.directory / "worker.log"
        with processes.running(worker, log, environment) as process:
            deadline = time.monotonic() + START_SECONDS
            with connect(address) as connection:
                while not (counts(connection, "watched").workers and counts(connection, "memory").workers):
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise StartError(f"the worker did not start: {log.read_text()[-500:]}")
                    time.sleep(0.02)
            environment["WORKER"] = str(process.pid)
            jobs, seconds = scale.count(JOBS, FEW), SECONDS if scale.count(JOBS, FEW) == JOBS else 6.0
            details = processes.figures_of([sys.executable, str(APP), str(jobs), str(seconds)], environment)
        return Run(details[self.figure], details)
