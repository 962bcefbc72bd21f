"""The cost of limits: the same load on a function without limits and with limits that are never reached.

A load at its limit uses no processor time: it waits. So most limits here are far above the load, and the figures show the cost of
counting tokens, of keys and of taking turns. `on_nodes` measures how long keys at their limit wait where several nodes share
the tokens.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import processes
import python_api
from admin import connect, counts
from generator import LoadError, load
from measure import Cell, Run, Scale, Side

if TYPE_CHECKING:
    from postgres_fleet import Fleet
    from servers import Contestant, Server

KEYS = 1000
KEYED_APP = Path(__file__).resolve().parent / "keyed_app.py"
START_SECONDS = 60.0


def cells(sqlite: Contestant, memory: Contestant) -> list[Cell]:
    """Return the cells; they run only with Mainspring."""
    return [
        Cell(
            key="limits-e2e",
            measure="`memory://` end to end, 16 workers, window 16: concurrency and rate against no limits",
            required="",
            unit="jobs/s",
            sides=(
                Side("concurrency and rate", memory, Limited("--concurrency 100000 --rate 1000000/1s,100000")),
                Side("concurrency", memory, Limited("--concurrency 100000")),
                Side("no limits", memory, Limited()),
            ),
            ratio_to=2,
        ),
        Cell(
            key="limits-keys",
            measure=f"Python API, no-op task, end to end: {KEYS:,} keys with a limit each against no keys",
            required="",
            unit="jobs/s",
            sides=(
                Side("keys, per key 100", sqlite, with_limited_keys),
                Side("keys alone", sqlite, with_keys),
                Side("no keys", sqlite, python_api.end_to_end),
            ),
            ratio_to=2,
        ),
    ]


@dataclass(frozen=True)
class Limited:
    """Jobs per second of the generator from submit to result, with limits set by `mainspring functions limit`."""

    options: str = ""

    def __call__(self, server: Server, scale: Scale) -> Run:
        if self.options:
            _limit(server, "bench", self.options)
        details = load(server, "e2e", jobs=scale.count(150_000, 10_000), window=16, workers=16)
        return Run(details["rate"], {**details, "limits": self.options})


def with_keys(server: Server, scale: Scale) -> Run:
    """Return the jobs per second of the Python API if each job has one of many keys."""
    return python_api.with_a_worker(server, "keys", scale)


def with_limited_keys(server: Server, scale: Scale) -> Run:
    """Return the same if at most 100 jobs of each key may run at the same time."""
    _limit(server, "noop", "--concurrency-per-key 100")
    return python_api.with_a_worker(server, "keys", scale)


def on_nodes(fleet: Fleet, _: Scale) -> Run:
    """Return the seconds for 30 jobs of 0.1 s with 3 keys, one at a time of each key, and a worker process at each node."""
    with contextlib.ExitStack() as stack:
        for node in fleet.nodes:
            command = [sys.executable, "-m", "mainspring", "worker", str(KEYED_APP), "--processes", "1"]
            command += ["--concurrency", "16"]
            log = node.directory / "worker.log"
            stack.enter_context(processes.running(command, log, python_api.environment(node)))
        deadline = time.monotonic() + START_SECONDS
        for node in fleet.nodes:
            with connect(f"127.0.0.1:{node.port}") as connection:
                while not counts(connection, "nap").workers:
                    if time.monotonic() > deadline:
                        raise LoadError("the workers did not start")
                    time.sleep(0.05)
        command = [sys.executable, str(KEYED_APP), "30", "3"]
        details = processes.figures_of(command, python_api.environment(fleet.nodes[0]))
    return Run(details["seconds"], details)


def _limit(server: Server, function: str, options: str) -> None:
    command = [sys.executable, "-m", "mainspring", "functions", "limit", function, "--create", *options.split()]
    command += ["--server", f"127.0.0.1:{server.port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=python_api.environment(server))
    if done.returncode != 0:
        raise LoadError(f"{' '.join(command[2:])}: {done.stderr.strip()}")
