"""Durable submits while an operation retries many jobs: the p99 of the time to `JOB_CREATED`, divided by the p99 without it.

The operation has to end in time, and to retry each job once.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import servers
from generator import LoadError, load
from measure import Cell, Run, Scale, Side
from scenarios import WIDE

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Contestant, Server

HERE = Path(__file__).resolve().parent
JOBS = 100_000
LIMIT = 60.0
"""Seconds in which the operation has to end."""


def cell(
    key: str, store: str, contestant: Contestant, wrapped: Callable[[Any], Any] = lambda scenario: scenario
) -> Cell:
    """Return the cell for a store; ``wrapped`` adapts the scenario to its server."""
    return Cell(
        key=key,
        measure=f"durable submits on {store}, window 1, while an operation retries 100,000 jobs in at most 60 s: p99",
        required="2 x without the operation",
        unit="x",
        sides=(Side(f"mainspring {store}", contestant, wrapped(submits_beside_retries)),),
        under=2.0,
    )


def submits_beside_retries(server: Server, scale: Scale) -> Run:
    """Submit before, during and after an operation. Raises LoadError if it takes too long or leaves a job out."""
    jobs = scale.count(JOBS, 5_000)
    load(server, "submit", jobs=jobs, function="dead", **WIDE)
    ended = _operate(server, "cancel").communicate()[0]
    count = scale.count(1_000, 200)
    submitted = jobs
    alone: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    for _ in range(5):
        alone.append(load(server, "submit", jobs=count, first=submitted))
        submitted += count
    with _operate(server, "retry") as retry:
        while retry.poll() is None:
            beside.append(load(server, "submit", jobs=count, first=submitted))
            submitted += count
        output = retry.communicate()[0]
    for _ in range(5):
        alone.append(load(server, "submit", jobs=count, first=submitted))
        submitted += count
    cancelled, retried = json.loads(ended), json.loads(output)
    if retried["outcomes"] != {"retried": jobs}:
        raise LoadError(f"the operation has retried {retried['outcomes']}, not {jobs} jobs")
    if retried["seconds"] > LIMIT:
        raise LoadError(f"the operation took {retried['seconds']:.1f} s")
    p99_alone, p99_beside = (statistics.median(run["latency_us"]["p99"] for run in runs) for runs in (alone, beside))
    details = {
        "alone": alone,
        "beside": beside,
        "cancel": cancelled,
        "retry": retried,
        "p99_us": [p99_alone, p99_beside],
    }
    return Run(p99_beside / p99_alone, details)


def _operate(server: Server, action: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "bulk_client.py"), action, "dead"]
    environment = {**servers.environment(), "MAINSPRING_SERVER": f"127.0.0.1:{server.port}"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
