"""The cost and the speed of listeners: jobs per second with and without one, and the time from an event to its listener."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import python_api
from admin import connect, counts
from generator import LoadError
from measure import Cell, Run, Scale, Side
from servers import StartError

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Contestant, Server

APP = Path(__file__).with_name("listener_app.py")
CONCURRENCY = 32
START_SECONDS = 30.0
DECLARED_SECONDS = 1.0
"""After the registration of a worker's functions: it declares its listeners then."""


def cells(
    prefix: str, store: str, contestant: Contestant, wrapped: Callable[[Any], Any] = lambda scenario: scenario
) -> list[Cell]:
    """Return the cells for a store; ``wrapped`` adapts the scenarios to its server."""
    none = Side("no listener", contestant, wrapped(JobsPerSecond("")))
    return [
        Cell(
            key=f"{prefix}events-one-listener",
            measure=f"{store}, Python API, of 100 jobs one fails; a listener of job.failed",
            required="0.95 x no listener",
            unit="jobs/s",
            sides=(Side("one listener", contestant, wrapped(JobsPerSecond("job.failed"))), none),
            ratio_to=1,
            at_least=0.95,
            rounds=2,
        ),
        Cell(
            key=f"{prefix}events-unwanted",
            measure="the same; a listener of other events, of which there are none",
            required="0.99 x no listener",
            unit="jobs/s",
            sides=(Side("a listener of other events", contestant, wrapped(JobsPerSecond("schedule.missed"))), none),
            ratio_to=1,
            at_least=0.99,
            rounds=2,
        ),
        Cell(
            key=f"{prefix}listener-latency",
            measure=f"{store}, a quiet node: p95 from an event to the start of its listener",
            required="50 ms",
            unit="ms",
            sides=(Side("mainspring", contestant, wrapped(latency)),),
            under=50.0,
        ),
    ]


@dataclass(frozen=True)
class JobsPerSecond:
    """Jobs per second with a listener of these types of events; without types, with none."""

    types: str

    def __call__(self, server: Server, scale: Scale) -> Run:
        details = _run(server, "rate", scale.count(50_000, 2_000), {"LISTENS_TO": self.types})
        return Run(details["rate"], details)


def latency(server: Server, scale: Scale) -> Run:
    """Return the 95th percentile of milliseconds from an event to the start of its listener."""
    jobs, path = scale.count(500, 50), server.directory / "latencies"
    details = _run(server, "latency", jobs, {"LISTENS_TO": "job.failed", "LATENCIES": str(path)})
    times = [float(line) * 1e3 for line in path.read_text().splitlines()]
    if len(times) != jobs:
        raise LoadError(f"{len(times)} of {jobs} events were delivered")
    percentiles = statistics.quantiles(times, n=100)
    return Run(percentiles[94], {**details, "p50_ms": percentiles[49], "p99_ms": percentiles[98], "max_ms": max(times)})


def _run(server: Server, mode: str, jobs: int, variables: dict[str, str]) -> dict[str, Any]:
    environment = {**python_api.environment(server), **variables}
    address = environment["MAINSPRING_SERVER"]
    worker = [sys.executable, "-m", "mainspring", "worker", str(APP), "--server", address]
    worker += ["--concurrency", str(CONCURRENCY), "--processes", "1"]
    log = server.directory / "worker.log"
    with processes.running(worker, log, environment) as process:
        deadline = time.monotonic() + START_SECONDS
        with connect(address) as connection:
            while not counts(connection, "work").workers:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise StartError(f"the worker did not start: {log.read_text()[-500:]}")
                time.sleep(0.02)
        time.sleep(DECLARED_SECONDS)
        return processes.figures_of([sys.executable, str(APP), mode, str(jobs)], environment)
