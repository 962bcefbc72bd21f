"""Durable submits while clients list jobs: the p99 of the time to `JOB_CREATED`, divided by the p99 without lists."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import servers
from generator import LoadError, load
from measure import Cell, Run, Scale, Side
from scenarios import MILLION, WIDE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import Contestant, Server

HERE = Path(__file__).resolve().parent
CLIENTS = 10
RARE = 10
"""Functions with a few jobs each, the oldest of all: a search for them passes all other jobs."""
TURNS = 3
LIST_TIMEOUT = 2.0
"""Seconds within which each list must be answered."""


def cell(
    key: str, store: str, contestant: Contestant, wrapped: Callable[[Any], Any] = lambda scenario: scenario
) -> Cell:
    """Return the cell for a store; ``wrapped`` adapts the scenario to its server."""
    return Cell(
        key=key,
        measure=f"durable submits on {store} behind 1M jobs, window 1, while 10 clients list rare functions: p99",
        required="2 x without lists",
        unit="x",
        sides=(Side(f"mainspring {store}", contestant, wrapped(submits_beside_lists)),),
        under=2.0,
        once=True,
    )


def submits_beside_lists(server: Server, scale: Scale) -> Run:
    """Submit without and with lists, in turns. Raises LoadError if a list took too long."""
    for number in range(RARE):
        load(server, "submit", jobs=5, function=f"rare{number}")
    waiting = scale.count(MILLION, 50_000)
    load(server, "submit", jobs=waiting, **WIDE)
    count = scale.count(3_000, 500)
    without_lists: list[dict[str, Any]] = []
    with_lists: list[dict[str, Any]] = []
    lists: list[dict[str, Any]] = []
    for turn in range(TURNS):
        without_lists.append(load(server, "submit", jobs=count, first=waiting + 2 * turn * count))
        with _run_listers(server, lists):
            with_lists.append(load(server, "submit", jobs=count, first=waiting + (2 * turn + 1) * count))
    slowest = max(found["slowest_s"] for found in lists)
    if slowest > LIST_TIMEOUT:
        raise LoadError(f"a list took {slowest:.2f} s")
    p99_without, p99_with = (
        statistics.median(run["latency_us"]["p99"] for run in runs) for runs in (without_lists, with_lists)
    )
    details = {"alone": without_lists, "beside": with_lists, "lists": lists, "p99_us": [p99_without, p99_with]}
    return Run(p99_with / p99_without, details)


@contextlib.contextmanager
def _run_listers(server: Server, found: list[dict[str, Any]]) -> Iterator[None]:
    command = [sys.executable, str(HERE / "listing_client.py"), str(CLIENTS), str(RARE)]
    environment = {**servers.environment(), "MAINSPRING_SERVER": f"127.0.0.1:{server.port}"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as client:
        yield
        output, _ = client.communicate("")
    if client.returncode:
        raise LoadError("the clients that list jobs have failed")
    found.append(json.loads(output))
